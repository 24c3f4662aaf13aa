"""Rows and messages for the tests of the audit's judgement, and the judgement in one call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc_outbox.repair.books import Books, Reader
from cdc_outbox.repair.findings import Findings
from cdc_outbox.repair.judgement import Judge, Rules, Stray
from cdc_outbox.table.mapping import Mapping
from tests.unit.mapped import DEFAULT, EVENT, relation, settings

TOPIC = "outbox.event.order"
CREATED_US = 1_705_497_250_250_000


@dataclass
class Sent:
    """A message as the client shows it."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


def message(
    offset: int,
    event: str | None,
    *,
    ms: int = 0,
    key: str | None = "k",
    lsn: int | None = None,
    seq: int = 0,
    slot: str = "s",
    source: str | None = None,
    broker_time: bool = False,
    value: bytes = b"{}",
    extra: Sequence[tuple[str, bytes]] = (),
) -> Sent:
    """A message of an event; `lsn`: with provenance headers."""
    headers = [] if event is None else [("id", event.encode())]
    headers += extra
    if lsn is not None:
        headers += [("cdc.lsn", b"%016x" % lsn), ("cdc.seq", b"%d" % seq)]
        headers += [("cdc.commit_ts", b"%d" % ms), ("cdc.slot", slot.encode())]
    if source is not None:
        headers.append(("cdc.source", source.encode()))
    return Sent(offset, ms, int(broker_time), None if key is None else key.encode(), value, tuple(headers))


def judged(
    rows: Iterable[tuple[str, int]],
    partitions: Sequence[Sequence[Sent]],
    rules: Rules | None = None,
    *,
    known: Iterable[str] = (),
    horizon: float | None = None,
    books: Books | None = None,
    limit: int = 1000,
) -> Findings:
    """What is found of rows, each an id and its flags, and the messages of one topic's partitions.

    `known`: ids that the table has when it is asked again.
    """
    with closing(books or Books(100, None)) as kept:
        for id_, flags in rows:
            enter_row(kept, id_, flags, CREATED_US)
        with closing(Judge(kept, rules or Rules(), limit=limit)) as judge:
            for partition, messages in enumerate(partitions):
                for nameless in kept.enter_messages(TOPIC, partition, messages):
                    judge.nameless(nameless)
            list(judge.suspect())
            strays: list[Stray] = []
            for some in judge.events({} if horizon is None else {TOPIC: horizon}):
                strays += some
            for stray in strays:
                if stray.id.decode() not in set(known):
                    judge.foreign(stray)
            judge.late()
            return judge.findings


def enter_row(books: Books, id_: str, flags: int, created_us: int, key: str | None = None) -> None:
    """Enter a row of the default table, with this aggregate id if one is given."""
    created = datetime.fromtimestamp(created_us / 1e6, UTC).isoformat(sep=" ")
    cells: dict[str, str] = {**EVENT, "id": id_, "created_at": created}
    if key is not None:
        cells["aggregate_id"] = key
    values = [cell.encode() if (cell := cells.get(name)) is not None else None for name in DEFAULT]
    books.enter_rows(READER, [values], flags)


def reader_of(columns: dict[str, int], **changes: object) -> Reader:
    """How rows of a table are entered."""
    return Reader.of(Mapping(settings(**changes), "s", source="replay").plan(relation(columns)))


READER = reader_of(DEFAULT)


def ids(kind: Iterable[dict[str, object]]) -> list[str]:
    """The ids of findings, sorted."""
    return sorted(str(each["id"]) for each in kind)
