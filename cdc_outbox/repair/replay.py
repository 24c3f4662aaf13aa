"""Publishing rows of the table again, in the order in which they were written.

A row that the relay has yet to deliver is left out: it comes by the stream. And while a relay streams, what is
replayed would come between its events of the same key; so the slot is taken for the time, and a relay that is started
meanwhile waits. Whoever accepts the mixture goes beside the relay, without the slot.

With the slot it is known exactly what the relay has yet to deliver: what the slot gives. Without it, or behind a long
backlog, only rows are replayed of which the witness proves that they were delivered.

Nothing is published before all rows were read once: an id that isn't there, or a row that can't be published, ends it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.ended import ended
from cdc_outbox.errors import (
    CdcOutboxError,
    PoisonEvent,
    PostgresUnavailable,
    SlotBusy,
    UsageError,
)
from cdc_outbox.event import quote
from cdc_outbox.postgres import chosen as choosing
from cdc_outbox.postgres import lookup, peek, table_rows, table_wanted
from cdc_outbox.postgres.acknowledged import acknowledged
from cdc_outbox.postgres.chosen import ChosenRows
from cdc_outbox.postgres.connection import connect_control, reach_operators
from cdc_outbox.postgres.written_order import written_order
from cdc_outbox.postgres.zoneless import zoneless
from cdc_outbox.repair.passage import Passage
from cdc_outbox.repair.planned import planned
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterator

    from cdc_outbox.event import Encoded, TableName, Values
    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.postgres.chosen import Chosen, Condition
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.peek import Holding
    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.postgres.zoneless import Zoneless
    from cdc_outbox.repair.passage import Portion
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan

APPLICATION_NAME: Final = "cdc-outbox replay"

SHOWN: Final = 3
"""Events that are shown before they are published."""

BACKLOG: Final = 200_000
"""Events that the relay has yet to deliver, beyond which they aren't told one by one."""

_TURN: Final = 1000
"""Rows after which others get their turn."""


class NotThere(CdcOutboxError):
    """No row has an id that was named."""


@dataclass(slots=True)
class Found:
    """What would be published. `undelivered` rows are left to the stream; `left_out` are those that a rule leaves out.

    `ordered`: the columns that say in which order the rows were written. `beside`: who streams meanwhile, in words.
    `unproven`: why nothing, or not all, is known to be delivered, and the next step. `clock`: how the times of a window
    are read, where they have no zone.
    """

    table: TableName
    ordered: str = ""
    events: int = 0
    topics: Counter[str] = field(default_factory=Counter)
    first: list[Encoded] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    undelivered: int = 0
    undelivered_ids: list[str] = field(default_factory=list)
    poison: int = 0
    first_poison: PoisonEvent | None = None
    beside: str | None = None
    unproven: tuple[str, str] | None = None
    clock: Zoneless | None = None

    @property
    def rows(self) -> int:
        """All rows that were chosen."""
        return self.events + self.left_out.total() + self.undelivered + self.poison

    def leave(self, ids: Collection[str], count: int) -> None:
        """So many rows are yet to be delivered, some of them with these ids."""
        self.undelivered += count
        self.undelivered_ids += list(ids)[: choosing.NAMED - len(self.undelivered_ids)]

    def take(self, plan: Plan, values: Values) -> None:
        """Count a row that isn't left to the stream."""
        try:
            event = plan.encode(values, 0, 0, plan.created_us(values, 0))
        except PoisonEvent as poison:
            self.poison += 1
            self.first_poison = self.first_poison or poison
            return
        if isinstance(event, str):
            self.left_out[event] += 1
            return
        self.events += 1
        self.topics[event[0]] += 1
        if len(self.first) < SHOWN:
            self.first.append(event)


class _Some:
    """Those rows of a chunk that are kept."""

    __slots__ = ("_chunk", "_count", "_kept", "size")

    def __init__(self, chunk: Chunk, kept: list[bool]) -> None:
        self._chunk = chunk
        self._kept = kept
        self._count = sum(kept)
        self.size = chunk.size

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Values]:
        return compress(self._chunk, self._kept)


class _Opened:
    """The chosen rows under one snapshot. `undelivered`: ids that are left to the stream."""

    def __init__(
        self, reader: Connection, rows: ChosenRows, key: bytes | None, undelivered: set[str], found: Found
    ) -> None:
        self.found = found
        self._reader = reader
        self._rows = rows
        self._plan = rows.plan
        self._key = key
        self._undelivered = undelivered

    async def portions(self) -> AsyncIterator[tuple[Plan, Portion]]:
        """The rows, in order, without those that are left to the stream."""
        plan = self._plan
        all_of_them = self._key is None and not self._undelivered
        async for chunk in self._rows.rows(self._reader):
            portion: Portion = chunk
            if not all_of_them:
                portion = _Some(chunk, [self._is_wanted(values) for values in chunk])
            if len(portion):
                yield plan, portion

    def _is_wanted(self, values: Values) -> bool:
        plan = self._plan
        if self._key is not None and not self._has_key(values):
            return False
        id_ = plan.event_id(values)
        if id_ is None or id_ not in self._undelivered:
            return True
        self.found.leave([id_], 1)
        return False

    def _has_key(self, values: Values) -> bool:
        """Whether the message would have the key; a row that can't be one has none."""
        try:
            event = self._plan.encode(values, 0, 0, 0)
        except PoisonEvent:
            return False
        return not isinstance(event, str) and event[2] == self._key


class Replay:
    """One replay of rows of one table: `look` first, then `publish`."""

    def __init__(self, settings: Settings, chosen: Chosen, *, order_by: str | None, beside: bool) -> None:
        """`order_by`: columns as SQL has them; `beside`: go on though a relay streams from the slot.

        Raises UsageError where the settings name several tables.
        """
        if len(settings.outbox.tables) > 1:
            raise UsageError(
                f"the settings name {len(settings.outbox.tables)} tables, and a replay is of one",
                next="name it with --table SCHEMA.NAME",
            )
        (self._table,) = settings.outbox.tables
        self._settings = settings
        self._chosen = chosen
        self._order_by = order_by
        self._beside = beside
        self._streamed = Mapping(settings.outbox, settings.postgres.slot)
        self._rest = "with a later --since"
        """How what is left is chosen once a replay has ended in the middle."""
        self._reader: int | None = None
        """Process id of the session that reads the table: at last the one that has the snapshot."""
        self.published: dict[str, int] = {}
        """Confirmed events by topic, once `publish` has ended, however it did."""

    async def look(self, *, read: Callable[[int], None]) -> Found:
        """Read all rows that were chosen, and publish nothing. `read` hears how many were read.

        Raises SlotBusy while a relay streams from the slot, unless beside it; UsageError for values that the table
        can't hold; NotThere; what is wrong with the set-up; PostgresUnavailable; TableWanted.
        """
        async with AsyncExitStack() as stack:
            held, streams = await stack.enter_async_context(self._standing())
            watcher = await connect_control(self._settings.postgres, application_name=APPLICATION_NAME)
            stack.push_async_callback(watcher.close)
            looking = await stack.enter_async_context(self._looking(watcher))
            found = await table_wanted.unless(looking, self._read(held, read))
            found.beside = streams
            return found

    async def _read(self, held: Holding | None, read: Callable[[int], None]) -> Found:
        async with self._opened(held) as opened:
            found = opened.found
            count = 0
            async for plan, portion in opened.portions():
                for values in portion:
                    found.take(plan, values)
                count += len(portion)
                read(count)
            return found

    async def publish(self, *, moved: Callable[[int], None]) -> None:
        """Publish them, and wait for the broker. `moved` hears how many rows are through.

        Raises as `look`, and PoisonEvent, SetupError for a topic that isn't there, KafkaUnavailable where no broker
        answers at the beginning; SlotBusy when the slot is taken from us in the middle; TableWanted.
        """
        async with AsyncExitStack() as stack:
            held, _ = await stack.enter_async_context(self._standing())
            watcher = await connect_control(self._settings.postgres, application_name=APPLICATION_NAME)
            stack.push_async_callback(watcher.close)
            passage = Passage(
                self._settings, [await planned(self._settings, watcher, self._table)], moved=moved
            )
            portions = await stack.enter_async_context(aclosing(self._portions(held)))
            looking = await stack.enter_async_context(self._looking(watcher))
            moving = asyncio.create_task(passage.run(portions), name="passage")
            ends: set[asyncio.Future[Any]] = {moving, looking}
            if held is not None:
                ends.add(held.lost)
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if held is not None:
                    if held.lost.done():
                        raise self._ended(held.lost.result())
                    await held.require()
                if looking.done():
                    looking.result()
                await moving
            finally:
                await ended(moving)
                self.published = passage.published

    async def _portions(self, held: Holding | None) -> AsyncGenerator[tuple[Plan, Portion]]:
        """The snapshot ends with the last row that is read, not with the last confirmation."""
        async with self._opened(held) as opened:
            async for each in opened.portions():
                yield each

    def _looking(self, watcher: Connection) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        """A task that ends with an error only: someone waits to have the table to itself."""
        return table_wanted.watched(
            watcher,
            lambda: self._reader,
            next=lambda: f"let it be done, then replay what is left, {self._rest}",
        )

    def _ended(self, error: CdcOutboxError) -> CdcOutboxError:
        """Why we have the slot no more, and what is left to do."""
        if isinstance(error, SlotBusy):
            return error
        return PostgresUnavailable(
            str(error), next=f"when PostgreSQL is there, replay what is left, {self._rest}"
        )

    @asynccontextmanager
    async def _standing(self) -> AsyncIterator[tuple[Holding | None, str | None]]:
        """Have the slot, so that no relay streams; or None beside one that does, and who that is."""
        async with AsyncExitStack() as stack:
            held: Holding | None = None
            streams: str | None = None
            try:
                held = await stack.enter_async_context(
                    peek.holding(self._settings, self._streamed, application_name=APPLICATION_NAME)
                )
            except SlotBusy as busy:
                if not self._beside:
                    raise SlotBusy(
                        f"{busy}: what is replayed would come between its events of the same key",
                        next="stop that relay first, it goes on afterwards where it stood; or accept the mixture "
                        "with --while-running",
                    ) from None
                streams = str(busy)
            yield held, streams

    @asynccontextmanager
    async def _opened(self, held: Holding | None) -> AsyncIterator[_Opened]:
        postgres = self._settings.postgres
        async with AsyncExitStack() as stack:
            owner = await stack.enter_async_context(lookup.connected(postgres, APPLICATION_NAME))
            await table_rows.patient(owner)
            self._reader = owner.info.backend_pid
            stack.callback(self._read_no_more)
            plan = await planned(self._settings, owner, self._table)
            condition = await choosing.condition(
                owner,
                plan,
                self._settings.outbox,
                self._chosen,
                otherwise="choose rows by --id or --aggregate",
            )
            self._rest = "with a later --since" if "created_at" in plan.optional else "by --id"
            self._require_there(plan, condition)
            order, ordered = await written_order(owner, plan, self._ordered_by(plan))
            reader = await stack.enter_async_context(
                table_rows.snapshot(postgres, [self._table], application_name=APPLICATION_NAME, like=owner)
            )
            await reach_operators(reader, *(field.type_oid for field in plan.needed.values()))
            self._reader = reader.info.backend_pid
            found = Found(self._table, ordered, clock=await zoneless(owner, plan, condition.window))
            undelivered = await _undelivered(held, self._table) if held is not None else None
            proven = None
            if undelivered is None:
                proof = await self._proof(owner)
                proven = proof.condition()
                found.unproven = next(
                    ((each.lacking, each.next) for each in proof.proofs if each.lacking is not None), None
                )
            rows = ChosenRows(plan, condition, order, proven)
            count, ids = await rows.unproven(owner)
            found.leave(ids, count)
            yield _Opened(reader, rows, condition.key, undelivered or set(), found)

    def _read_no_more(self) -> None:
        self._reader = None

    async def _proof(self, owner: Connection) -> Acknowledged:
        """What the witness proves to be delivered."""
        postgres = self._settings.postgres
        relay = await connect_control(postgres, application_name=APPLICATION_NAME)
        try:
            return await acknowledged(relay, owner, postgres.slot, self._table)
        finally:
            await relay.close()

    def _ordered_by(self, plan: Plan) -> str | None:
        """A single row has every order."""
        if self._order_by is None and len(self._chosen.ids) == 1:
            return quote(plan.layout.id.name)
        return self._order_by

    def _require_there(self, plan: Plan, condition: Condition) -> None:
        if not condition.missing:
            return
        ids = ", ".join(condition.missing[: choosing.NAMED])
        more = ", …" if len(condition.missing) > choosing.NAMED else ""
        raise NotThere(
            f"no row of {plan.table} has the {quote(plan.layout.id.name)} {ids}{more}; nothing was published",
            next="it may have been removed, or never committed: cdc-outbox find "
            f"{condition.missing[0]} says what is known",
        )


async def _undelivered(held: Holding, table: TableName) -> set[str] | None:
    """The ids of the table's events that the slot would give to a relay; None where they are too many to tell.

    Called once the snapshot is there: what it sees and the relay has yet to deliver is among them.
    """
    ids: set[str] = set()
    read = 0
    try:
        async with aclosing(held.rows(unflushed=True)) as rows:
            async for row in rows:
                read += 1
                if row.plan.table == table and (id_ := row.plan.event_id(row.values)) is not None:
                    ids.add(id_)
                if read > BACKLOG:
                    return None
                if read % _TURN == 0:
                    await asyncio.sleep(0)
    except CdcOutboxError:
        if held.lost.done():
            raise
        return None  # a table that has changed since, say: then the witness has to do
    return ids
