"""The hot path: from the frames of the stream to rows in the publisher's batches.

Runs once per event and is one function on purpose. It parses no more than it needs (a tag, the relation's oid, the
columns as slices), makes no object that it can do without, and never waits: where something has to be waited
for (an unknown topic, the end of a budget) it stops between two frames and says so.

Rows are told apart by relation oid, columns by the Relation message that came before them on this connection; the
live catalogue knows nothing of rows of the past. Only whose a table is that isn't known by name or oid is asked of it
before its first row: it may be a partition that was made since the session began.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import replace
from struct import Struct
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import PoisonEvent
from cdc_outbox.event import TableName
from cdc_outbox.postgres import inserts, pgoutput
from cdc_outbox.postgres.protocol import EPOCH_US, KEEPALIVE, XLOG, XLOG_HEADER, decode_keepalive, malformed
from cdc_outbox.publisher import TopicUnknown, Unpublishable
from cdc_outbox.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.event import Encoded, Values
    from cdc_outbox.mark import Marks
    from cdc_outbox.postgres.inserts import ReadValues
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.publisher import Publisher
    from cdc_outbox.table.mapping import Mapping, Plan

_log = log.get(__name__)

SLICE: Final = 0.004
"""Seconds after which other tasks get their turn."""

BEHIND_US: Final = 50_000
"""Microseconds between a commit and its sending that tell a backlog from a live stream."""

MOST_NOTICED: Final = 1000
"""Values of a bus and names of headers and columns that are worth a line in the log each."""

_OID: Final = slice(XLOG_HEADER + 1, XLOG_HEADER + 5)

_sent_at = Struct(">q").unpack_from
_begin_at = pgoutput.begin_at
_commit_at = pgoutput.commit_at


class TableUnknown(Exception):
    """A table was described of which the intake doesn't know whose it is: let it `recognise` it, and go on."""

    def __init__(self, relation: pgoutput.Relation) -> None:
        super().__init__(f"{relation.namespace}.{relation.name}")
        self.relation = relation


class Intake:
    """What was taken from one stream, and where in it we are."""

    def __init__(
        self,
        stream: ReplicationStream,
        ledger: Ledger,
        mapping: Mapping,
        publisher: Publisher,
        ours: dict[int, TableName] | None = None,
        tally: Tally | None = None,
        marks: Marks | None = None,
    ) -> None:
        """`ours`: our tables by OID, whatever their names were when a row was written; None if nobody can be asked."""
        self._tally = tally or Tally()
        self._marks = marks
        self._transactions: defaultdict[int, int] = defaultdict(int)
        self._stream = stream
        self._ledger = ledger
        self._mapping = mapping
        self._publisher = publisher
        self._ours = ours
        self._plans: dict[
            bytes, tuple[ReadValues, Callable[[Values, int, int, int], Encoded | str]] | None
        ] = {}
        self._lsn = 0
        self.xid = 0
        """The transaction under way, or the last one."""
        self._commit_us = 0
        self._place = 0
        self._retry: Encoded | None = None
        self._unknown: pgoutput.Relation | None = None
        self._last: Encoded | str | None = None
        self._lag_us = 0
        self.plans: dict[TableName, Plan] = {}
        self._noticed: set[tuple[TableName, str, str]] = set()
        self.received = 0
        self.latest = 0
        """Final LSN of the last transaction in which a row of ours was seen, or of one soon after it."""
        self.skipped: dict[str, int] = {}
        self.shutdown_signs = False

    @property
    def late(self) -> float:
        """Seconds between the commit and the sending of what came last, by the server's clock; 0 for a live stream."""
        return self._lag_us / 1_000_000 if self._lag_us > BEHIND_US else 0.0

    @property
    def waiting_since_us(self) -> int:
        """Commit time of the oldest row that the bus hasn't confirmed, in microseconds since the epoch; 0 without one.

        A transaction under way counts as well.
        """
        return self._ledger.oldest_us or (self._commit_us if self._ledger.in_transaction else 0)

    @property
    def place(self) -> tuple[int, int]:
        """Final LSN of the transaction under way (or the last one), and the place of the row to come."""
        return self._lsn, self._place

    def drain(self, *, rows: int, to_commit: bool = False) -> bool:
        """Take what has arrived, for a slice of time or until `rows` more rows were published.

        `to_commit`: stop at the end of the transaction under way. Returns whether it stopped for a limit, so that
        more may be waiting. Raises TopicUnknown (call again once the topic is prepared), TableUnknown, PoisonEvent,
        MappingError, ProtocolViolation and the errors of a stream that ended.
        """
        if self._unknown is not None:
            raise TableUnknown(self._unknown)
        stream, ledger, publisher = self._stream, self._ledger, self._publisher
        publish, transactions = publisher.publish, self._transactions
        frame, plans = stream.frame, self._plans
        if self._retry is not None:
            publish(self._retry, self._lsn, self._place)
            self._retry = None
            self._place += 1
            rows -= 1
            if rows <= 0:
                return True
        if to_commit and not ledger.in_transaction:
            return False
        deadline = time.monotonic() + SLICE
        lsn, xid, commit_us, place = self._lsn, self.xid, self._commit_us, self._place
        received = self.received
        last = received + rows
        encoded = self._last
        data = b""
        try:
            length, view = frame(1)
            while True:
                if length <= 0:
                    if length < 0:
                        raise stream.ended()
                    if time.monotonic() > deadline:
                        return True
                    stream.receive()
                    length, view = frame(1)
                    if length == 0:
                        return False
                    continue
                data = bytes(view)
                if data[0] == XLOG and length > XLOG_HEADER:
                    tag = data[XLOG_HEADER]
                    if tag == pgoutput.INSERT:
                        plan = plans.get(data[_OID])
                        if plan is not None:
                            received += 1
                            read, encode = plan
                            try:
                                encoded = encode(read(data, XLOG_HEADER), lsn, place, commit_us)
                            except IndexError:
                                raise malformed(
                                    "a row with fewer values than its relation has columns"
                                ) from None
                            if isinstance(encoded, str):
                                self._skip(encoded)
                            else:
                                try:
                                    publish(encoded, lsn, place)
                                except TopicUnknown:
                                    self._retry = encoded
                                    raise
                        else:
                            self._foreign(data)
                        place += 1
                        if received >= last:
                            return True
                    elif tag == pgoutput.BEGIN:
                        lsn, commit_us, xid = _begin_at(data, XLOG_HEADER)
                        ledger.begin(lsn)
                        publisher.committed_us = commit_us
                        place = 0
                    elif tag == pgoutput.COMMIT:
                        ledger.commit(_commit_at(data, XLOG_HEADER)[1])
                        transactions[place] += 1
                        if to_commit:
                            return False
                    else:
                        self._other(data)
                elif data[0] == KEEPALIVE:
                    self._keepalive(data)
                else:
                    raise malformed(f"a frame of {length} bytes with the tag {data[0]:#04x}")
                length, view = frame(1)
        except stream.broken as error:
            raise stream.gone(error) from error
        finally:
            self._lsn, self.xid, self._commit_us, self._place = lsn, xid, commit_us, place
            if received != self.received:
                self.latest = lsn
                if self._marks is not None:
                    self._marks.cut(lsn)
            self.received = received
            self._last = encoded
            if len(data) > XLOG_HEADER and data[0] == XLOG:
                self._lag_us = _sent_at(data, 17)[0] + EPOCH_US - commit_us

    @property
    def last(self) -> Encoded | None:
        """The row that was taken last, unless it was left out."""
        return None if isinstance(self._last, str) else self._last

    def poison(self, error: CdcOutboxError, *, reason: str) -> PoisonEvent:
        """The row that waits to be published again, as a poison event, for a cause that lies outside of it."""
        return Unpublishable(
            str(error), self._retry, next=error.next, reason=reason, lsn=self._lsn, seq=self._place
        )

    def notice(self) -> None:
        """Count and log what came since the last call: each value of a bus, each name of a header or column once."""
        self.count()
        for table, plan in self.plans.items():
            for value in plan.other_buses:
                if self._is_news(table, "bus", value):
                    _log.warning("rows for another bus are left out", table=str(table), bus=value)
            plan.other_buses.clear()
            for column in plan.inserted_sent:
                if self._is_news(table, "sent", column):
                    _log.warning(
                        "rows that were inserted as sent are left out", table=str(table), column=column
                    )
            plan.inserted_sent.clear()
            for name in plan.dropped:
                if self._is_news(table, "header", name):
                    _log.warning("header members are dropped", table=str(table), name=name)

    def _is_news(self, table: TableName, kind: str, value: str) -> bool:
        """Once for each: a table is described again from time to time, with a plan that has seen nothing yet."""
        seen = len(self._noticed)
        if seen < MOST_NOTICED:
            self._noticed.add((table, kind, value))
        return len(self._noticed) > seen

    def count(self) -> None:
        """Add to the tally what came since the last call."""
        self._tally.transactions_of(self._transactions)
        self._transactions.clear()

    def _keepalive(self, data: bytes) -> None:
        keepalive = decode_keepalive(data)
        self._lag_us = 0
        self._stream.heard(keepalive.end)
        self._ledger.idle(keepalive.end)
        if keepalive.reply and self._stream.asked():
            self.shutdown_signs = True

    def _skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def _foreign(self, data: bytes) -> None:
        if data[_OID] not in self._plans:
            raise malformed(f"a row of relation {int.from_bytes(data[_OID])}, which was never described")
        self._skip("foreign")

    def _other(self, data: bytes) -> None:
        message = pgoutput.decode(data[XLOG_HEADER:])
        if isinstance(message, pgoutput.Relation):
            self._plan(message)
        elif isinstance(message, pgoutput.Type):
            self._mapping.learn(message)
        elif isinstance(message, pgoutput.Unknown):
            if message.tag in pgoutput.TWO_PHASE:
                raise malformed("rows of a prepared transaction, from a slot with two_phase = true")
            self._skip("unknown_message")

    def recognise(self, relation: pgoutput.Relation, ours: dict[int, TableName]) -> None:
        """Read the rows of `relation` as those of our table, if `ours` has it; else pass them over.

        `ours` is as it is once the transaction of those rows is over.
        """
        self._ours, self._unknown = ours, None
        if relation.oid in ours:
            self._plan(relation)
        else:
            self._plans[relation.oid.to_bytes(4)] = None

    def _plan(self, relation: pgoutput.Relation) -> None:
        key = relation.oid.to_bytes(4)
        ours = self._ours.get(relation.oid) if self._ours is not None else None
        if ours is not None:
            relation = replace(relation, namespace=ours.schema, name=ours.name)
        if not self._mapping.wants(relation):
            if self._ours is not None:
                self._unknown = relation
                raise TableUnknown(relation)
            self._plans[key] = None
            return
        table = TableName(relation.namespace, relation.name)
        known = self.plans.get(table)
        plan = self._mapping.plan(relation, known)
        encode, read = (plan.encode, plan.read) if self._marks is None else self._marks.noting(plan)
        self._plans[key] = inserts.reader(len(relation.columns), read), encode
        lost = plan.lost(known) if known is not None else ()
        if lost:
            _log.warning("columns are gone", table=str(table), roles=list(lost))
        if self._mapping.is_news(plan):
            _log.info("mapping", mapping={str(table): plan.describe()})
        self.plans[table] = plan
