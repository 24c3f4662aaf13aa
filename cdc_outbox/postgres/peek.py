"""Rows of a slot, read without consuming them.

`holding` streams from the slot itself and sends no confirmation, ever: the server gives the same rows to whoever comes
next. (The slot's SQL functions peek too, but count at the ends of transactions: one of a million rows would come
whole.) It has the slot meanwhile, so it refuses where another has it, and a relay that is started waits. A server
doesn't count one that never confirms as a synchronous standby.

`arriving` reads from a temporary slot of its own, which ends with its connection, and confirms there what was taken,
since even a temporary slot holds WAL and the catalogue's old rows.

The database comes first here too: a server that shuts down waits for every walsender, so the end of the control
connection ends the stream, also while the reader of our output sleeps.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import log
from cdc_outbox.ended import ended
from cdc_outbox.errors import (
    CdcOutboxError,
    PublicationWrong,
    SlotBlocked,
    SlotBusy,
)
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import (
    catalogue,
    publication,
    server,
    slip,
    slot,
    sqlstate,
    streamed_rows,
    synchronous,
)
from cdc_outbox.postgres.blocker import Blocker, blockers, held_up, in_words
from cdc_outbox.postgres.connection import (
    Connection,
    connect_control,
    connect_replication,
    end_with_us,
    execute,
)
from cdc_outbox.postgres.control import Control
from cdc_outbox.postgres.stream import ReplicationStream
from cdc_outbox.postgres.streamed_rows import IDLE, Streamed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence

    from cdc_outbox.postgres.streamed_rows import Row
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Mapping

_log = log.get(__name__)

APPLICATION_NAME: Final = "cdc-outbox peek"

UNFLUSHED: Final = 5
"""Looks of ASK, a second: what wasn't flushed at once is after three times wal_writer_delay, of 200 ms by default."""

WAIT: Final = 30.0
"""Seconds that the creation of the temporary slot may take."""

_END_OF_WAL: Final[LiteralString] = "select pg_catalog.pg_current_wal_flush_lsn()::text"
_INSERTED: Final[LiteralString] = "select pg_catalog.pg_current_wal_insert_lsn()::text"
# Who doesn't read can't answer either, so the server's patience has to be longer than our beat, however short it is.
_PATIENT: Final[LiteralString] = "set wal_sender_timeout = '30s'"


class Holding:
    """The slot, while it is ours alone: whoever else wants it waits as its hot standby.

    `lost` resolves to the reason when it isn't ours any more, or the server ends.
    """

    def __init__(self, settings: Settings, control: Control, streamed: Streamed) -> None:
        self._name = settings.postgres.slot
        self._control = control
        self._streamed = streamed
        self.lost = control.lost

    async def rows(self, *, unflushed: bool = False) -> AsyncGenerator[Row]:
        """The rows that the slot would give to a relay now, in their order, up to what is committed by now.

        What was committed with `synchronous_commit = off` is seen by others before it is flushed and can be streamed;
        `unflushed` waits for it as well, a second at most. To be called once. Afterwards nothing is read any more,
        and the server stops when the socket is full.
        """
        query = _INSERTED if unflushed else _END_OF_WAL
        ((end,),) = await self._control.run(partial(execute, query=query))
        patience = UNFLUSHED if unflushed else IDLE
        async for row in self._streamed.rows(until=LSN.parse(end), patience=patience):
            yield row

    async def require(self) -> None:
        """Raise SlotBusy when somebody has taken the slot from us."""
        found = await self._control.run(lambda conn: slot.inspect(conn, self._name))
        if found is not None and found.active_pid == self._streamed.pid:
            return
        now = f"process {found.active_pid} has it now" if found is not None and found.active else "it is free"
        raise SlotBusy(
            f'the slot "{self._name}" was taken from this command in the middle: {now}',
            next="stop the relay, and whoever ends other sessions there, before you run this again",
        )


@asynccontextmanager
async def holding(
    settings: Settings, mapping: Mapping, *, application_name: str = APPLICATION_NAME, tell: bool = True
) -> AsyncIterator[Holding]:
    """Have the slot for the time of the block, and confirm nothing. `tell`: log how the tables are read.

    Raises SlotBusy, naming the process, while another has the slot; what is wrong with slot, publication and table;
    PostgresUnavailable.
    """
    name = settings.postgres.slot
    async with _control(
        settings, mapping, application_name, first=f"cdc-outbox init --slot {name}", tell=tell
    ) as control:
        found, pending = await control.run(lambda conn: slot.inspect_both(conn, name))
        holder = await control.run(
            lambda conn: slip.require_slot(
                conn, found, settings.postgres, settings.outbox.tables, pending=pending
            )
        )
        if holder.active:
            raise _busy(holder)
        async with _replication(settings, control, application_name) as replication:
            stream = ReplicationStream(replication, sender_timeout=0)
            try:
                await stream.start(name, settings.postgres.publication)
            except SlotBusy:
                taken = await control.run(lambda conn: slot.inspect(conn, name))
                raise _busy(taken or holder) from None
            streamed = Streamed(stream, mapping, control)
            held = Holding(settings, control, streamed)
            async with _streaming(stream, streamed.beat(replication, held.require, confirm=False)):
                yield held


@asynccontextmanager
async def upcoming(settings: Settings, mapping: Mapping) -> AsyncIterator[AsyncIterator[Row]]:
    """The rows that the slot would give to a relay now, in their order, up to what is committed at the call.

    Raises as `holding`.
    """
    async with holding(settings, mapping) as held:
        yield held.rows()


@asynccontextmanager
async def arriving(
    settings: Settings, mapping: Mapping, *, waiting: Callable[[Sequence[Blocker]], None]
) -> AsyncIterator[AsyncIterator[Row]]:
    """The rows that are committed from now on, as they come, without end.

    `waiting` is told of the transactions that the temporary slot has to wait for. Raises SlotBlocked, naming them;
    what is wrong with publication and table; SynchronousStandby; PostgresUnavailable.
    """
    first = "cdc-outbox init --only publication"
    async with _control(settings, mapping, APPLICATION_NAME, first=first) as control:
        await _require_no_standby(control)
        async with _replication(settings, control, APPLICATION_NAME) as replication:
            name = f"cdc_outbox_peek_{secrets.token_hex(6)}"
            await _create_temporary(replication, control, name, waiting)
            stream = ReplicationStream(replication, sender_timeout=0)
            await stream.start(name, settings.postgres.publication)
            streamed = Streamed(stream, mapping, control)

            async def may_confirm() -> None:
                await _require_no_standby(control)
                await _require_published(control, settings)

            async with _streaming(stream, streamed.beat(replication, may_confirm, confirm=True)):
                yield streamed.rows(until=None)


@asynccontextmanager
async def _control(
    settings: Settings, mapping: Mapping, application_name: str, *, first: str, tell: bool = True
) -> AsyncIterator[Control]:
    """The control connection, once server, publication and table have passed.

    `first`: the command that makes the publication, for who has none and no slot yet.
    """
    control = Control(await connect_control(settings.postgres, application_name=application_name))
    try:
        server.require_primary(await control.run(server.identity))
        await control.run(server.require_able)
        try:
            await _require_published(control, settings)
        except PublicationWrong as error:
            if error.next != slip.neither(settings.postgres.slot):
                raise
            raise PublicationWrong(str(error), next=first) from None
        await _tell_of_others(control, settings)
        ask = partial(
            catalogue.preview,
            mapping=mapping,
            publication=settings.postgres.publication,
        )
        for table in settings.outbox.tables:
            plan = await control.run(partial(ask, table=table))
            if plan is not None and mapping.is_news(plan) and tell:
                streamed_rows.tell(plan)
        yield control
    finally:
        await control.close()


async def _require_published(control: Control, settings: Settings) -> None:
    state = await control.run(lambda conn: slip.look(conn, settings.postgres, settings.outbox.tables))
    state.require()


async def _tell_of_others(control: Control, settings: Settings) -> None:
    name, tables, slot_name = (
        settings.postgres.publication,
        settings.outbox.tables,
        settings.postgres.slot,
    )
    found = await control.run(lambda conn: publication.passed_over(conn, name, tables, slot_name))
    if found is not None:
        _log.warning("noticed", what=f"{found}: rows of those are not shown")


async def _require_no_standby(control: Control) -> None:
    await control.run(lambda conn: synchronous.require_not(conn, APPLICATION_NAME))


@asynccontextmanager
async def _replication(
    settings: Settings, control: Control, application_name: str
) -> AsyncIterator[Connection]:
    connection = await connect_replication(
        settings.postgres, application_name=application_name, like=control.connection
    )
    try:
        server.require_same(await control.run(server.identity), await server.identify(connection))
        await execute(connection, _PATIENT, stage="identify")
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def _streaming(stream: ReplicationStream, pulse: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Keep a pulse beside the block, and say goodbye after it."""
    beating = asyncio.create_task(pulse, name="pulse")
    try:
        yield
    finally:
        await ended(beating)
        await stream.close()


async def _create_temporary(
    replication: Connection, control: Control, name: str, waiting: Callable[[Sequence[Blocker]], None]
) -> None:
    """Make a slot that lives as long as the connection, with a bounded wait for the transactions that are open."""
    await end_with_us(replication, stage="identify")
    statement = sql.SQL(
        "set statement_timeout = {limit};"
        " select pg_catalog.pg_create_logical_replication_slot({name}, {plugin}, true);"
        " set statement_timeout = 0"
    ).format(limit=sql.Literal(round(WAIT * 1000)), name=sql.Literal(name), plugin=sql.Literal(slot.PLUGIN))
    making = asyncio.create_task(execute(replication, statement, stage="create", within=WAIT + 5))
    seen: tuple[Blocker, ...] = ()
    try:
        seen = await held_up(
            making,
            lambda: control.run(lambda conn: blockers(conn, replication.info.backend_pid)),
            waiting,
        )
        making.result()
    except CdcOutboxError as error:
        if sqlstate.of(error) != "57014":
            raise
        names = in_words(seen)
        raise SlotBlocked(
            f"the temporary slot could not be made within {WAIT:g} s, for these transactions are open: "
            f"{names}",
            next="let them end, then run the same command again",
        ) from error
    finally:
        await ended(making)


def _busy(found: slot.Slot) -> SlotBusy:
    holder = f"process {found.active_pid}" if found.active_pid else "another process"
    return SlotBusy(
        f'{holder} streams from the slot "{found.name}"',
        next=f"stop it first; or, to see new events beside it: cdc-outbox peek --follow --slot {found.name}",
    )
