"""Rows of the outbox as a stream brings them, for who looks at a slot without relaying it.

Whoever reads what is printed sets the pace, so status updates have a clock of their own. A stream has no end by itself:
it is read up to a position, or until the server has no more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import protocol
from cdc_outbox.postgres.connection import Connection, execute, sever
from cdc_outbox.postgres.pgoutput import Begin, Commit, Insert, Relation, Type, decode
from cdc_outbox.postgres.protocol import decode_keepalive, decode_xlog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from cdc_outbox.event import Values
    from cdc_outbox.postgres.control import Control
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.table.mapping import Mapping, Plan

_log = log.get(__name__)

BEAT: Final = 2.0
"""Seconds between status updates, and between checks of what has to stay as it is."""

ASK: Final = 0.2
"""Seconds in which nothing comes until the server is asked how far it has read."""

IDLE: Final = 2
"""Looks in a row at which the server waits for more to be written, until there is no more for now."""

_WAIT_EVENT: Final[LiteralString] = (
    "select (select wait_event from pg_catalog.pg_stat_activity where pid = %s)"
)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the outbox as the stream has it: where it stands, and the plan that makes a message of it.

    `xid` is its transaction's number, of 32 bits.
    """

    lsn: LSN
    seq: int
    commit_us: int
    xid: int
    plan: Plan
    values: Values


class Streamed:
    """The rows of one stream, and how far it was read."""

    def __init__(self, stream: ReplicationStream, mapping: Mapping, control: Control) -> None:
        self._stream = stream
        self._mapping = mapping
        self._control = control
        self._plans: dict[int, Plan | None] = {}
        self._begin: Begin | None = None
        self._seq = 0
        self._received = LSN(0)
        self._idle = 0

    async def rows(self, *, until: LSN | None, patience: int = IDLE) -> AsyncIterator[Row]:
        """The rows in the stream's order; with `until` to that position, or as far as the server can read now.

        It can read no further when it waited for WAL at `patience` looks in a row. The flushed WAL may end within a
        record of a transaction that is still open, and what is left of it may be flushed many seconds later: then the
        walsender waits short of `until`.
        """
        stream = self._stream
        while True:
            try:
                length, view = stream.frame(1)
                if length == 0:
                    self._receive()
                    length, view = stream.frame(1)
            except stream.broken as error:
                raise stream.gone(error) from error
            if length < 0:
                raise self._reason(stream.ended())
            if length == 0:
                if await self._more() or until is None:
                    continue
                stream.send_status(ask=True)
                self._idle = self._idle + 1 if await self._waits_for_wal() else 0
                if self._idle < patience:
                    continue
                return
            row = self._take(bytes(view), until)
            if row is not None:
                yield row
            if until is not None and self._received >= until:
                return

    def _receive(self) -> None:
        try:
            self._stream.receive()
        except PostgresUnavailable as error:
            raise self._reason(error) from error

    def _reason(self, error: CdcOutboxError) -> CdcOutboxError:
        """Why the stream ended: the control connection heard it first, if the server is ending."""
        return self._control.lost.result() if self._control.lost.done() else error

    async def _more(self) -> bool:
        """Wait a moment; whether something came."""
        try:
            async with asyncio.timeout(ASK):
                await self._stream.readable()
        except TimeoutError:
            return False
        return True

    async def _waits_for_wal(self) -> bool:
        pid = self._stream.pid
        ((event,),) = await self._control.run(lambda conn: execute(conn, _WAIT_EVENT, (pid,)))
        return str(event).lower() == "walsenderwaitforwal"

    def _take(self, data: bytes, until: LSN | None) -> Row | None:
        if data[0] == protocol.KEEPALIVE:
            keepalive = decode_keepalive(data)
            if self._begin is None:
                self._received = max(self._received, keepalive.end)
            if keepalive.reply:
                self._stream.send_status()
            return None
        self._idle = 0
        message = decode(decode_xlog(data).payload)
        if isinstance(message, Begin):
            self._begin, self._seq = message, 0
            if until is not None and message.final_lsn >= until:
                self._received = message.final_lsn
        elif isinstance(message, Commit):
            self._begin = None
            self._received = max(self._received, message.end_lsn)
        elif isinstance(message, Relation):
            self._describe(message)
        elif isinstance(message, Type):
            self._mapping.learn(message)
        elif isinstance(message, Insert):
            return self._row(message)
        return None

    def _describe(self, relation: Relation) -> None:
        known = self._plans.get(relation.oid)
        plan = self._mapping.plan(relation, known) if self._mapping.wants(relation) else None
        if plan is not None and self._mapping.is_news(plan):
            tell(plan)
        self._plans[relation.oid] = plan

    def _row(self, insert: Insert) -> Row | None:
        seq, self._seq = self._seq, self._seq + 1
        if self._begin is None or insert.relation_oid not in self._plans:
            raise protocol.malformed(
                "a row outside of a transaction, or of a relation that was never described"
            )
        plan = self._plans[insert.relation_oid]
        if plan is None:
            return None
        begin = self._begin
        return Row(begin.final_lsn, seq, begin.commit_us, begin.xid, plan, insert.values)

    @property
    def pid(self) -> int:
        """The walsender's process id."""
        return self._stream.pid

    async def beat(
        self, replication: Connection, check: Callable[[], Awaitable[None]], *, confirm: bool
    ) -> None:
        """Status updates by a clock of their own, until the server ends or `check` raises, which ends the stream.

        `confirm`: what was taken is confirmed by them, since the slot is ours alone.
        """
        stream, lost = self._stream, self._control.lost
        try:
            while True:
                await asyncio.wait({lost}, timeout=BEAT)
                if lost.done():
                    return
                position = self._received
                await check()
                if confirm:
                    stream.confirm(position)
                stream.send_status()
        except CdcOutboxError as error:
            if not lost.done():
                lost.set_result(error)
        finally:
            if lost.done():
                # Whoever waits for rows gets an error at once, and `_reason` tells it why.
                sever(replication)


def tell(plan: Plan) -> None:
    """Log how rows of a table become messages."""
    _log.info("mapping", mapping={str(plan.table): plan.describe()})
