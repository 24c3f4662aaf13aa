"""The books of a cut-over: which events were committed in which order per key, and what became of each.

Events are known by the id that the application put into the payload, which no relay makes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tests.polling.outlet import SENT_BY
from tests.servers.ledger import Record


@dataclass(frozen=True, slots=True)
class Entry:
    """One committed event: its key, its place among the events of that key, and when its commit was known."""

    key: str
    n: int
    committed_at: float


@dataclass(slots=True)
class Books:
    """What was committed for Kafka, by event id; what was rolled back; what is another bus's."""

    committed: dict[str, Entry] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)


def sender(record: Record) -> str:
    """Who sent it: a polling relay by its name, `backfill` or another command, or the `stream`."""
    return record.header(SENT_BY) or record.header("cdc.source") or "stream"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One time that an event was delivered."""

    sender: str
    where: str


Excuse = Callable[[str, Entry, Delivery, Delivery], str | None]
"""Why an event (its id, its entry) came again (the first delivery, this one); None when nothing explains it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the events. `twice` counts second and later deliveries by their cause."""

    committed: int
    records: int
    first: Mapping[str, int]
    twice: Mapping[str, int]
    lost: tuple[str, ...]
    out_of_order: tuple[str, ...]
    unexplained: tuple[str, ...]
    wrong: tuple[str, ...]

    @property
    def faults(self) -> list[str]:
        """All that must not be."""
        return [*self.lost, *self.out_of_order, *self.unexplained, *self.wrong]

    def __str__(self) -> str:
        first = ", ".join(f"{count} by {name}" for name, count in self.first.items())
        twice = "; ".join(f"{count} {cause}" for cause, count in sorted(self.twice.items()))
        return (
            f"{self.committed} committed, {self.records} delivered (first {first}), lost {len(self.lost)}, "
            f"out of order {len(self.out_of_order)}, twice {sum(self.twice.values())}"
            + (f" ({twice})" if twice else "")
            + f", unexplained {len(self.unexplained)}, wrong otherwise {len(self.wrong)}"
        )

    def require(self) -> Verdict:
        """Raise AssertionError, naming the first twenty faults, unless all is well."""
        if self.faults:
            raise AssertionError(f"{self}\n" + "\n".join(self.faults[:20]))
        return self


def judge(
    books: Books,
    records: Iterable[Record],
    *,
    ids: Mapping[str, str],
    excuse: Excuse,
    undelivered: frozenset[str] = frozenset(),
) -> Verdict:
    """Compare what was committed with what arrived.

    `ids`: for each event the id that consumers know it by. `undelivered`: events that nobody was asked to send.
    """
    disorder: list[str] = []
    unexplained: list[str] = []
    wrong: list[str] = []
    deliveries: dict[str, list[Delivery]] = {}
    last: dict[str, tuple[int, Delivery]] = {}
    home: dict[str, tuple[str, int]] = {}
    first: Counter[str] = Counter()
    twice: Counter[str] = Counter()
    count = 0
    for record in sorted(records, key=lambda each: (each.topic, each.partition, each.offset)):
        count += 1
        here = Delivery(sender(record), f"{record.topic}/{record.partition}/{record.offset}")
        payload = record.json()
        event_id = payload["event_id"]
        entry = books.committed.get(event_id)
        if entry is None or event_id in undelivered:
            wrong.append(f"{event_id} at {here.where} by {here.sender} {_stranger(books, event_id)}")
            continue
        key = (record.key or b"").decode()
        if (key, payload["n"], record.id) != (entry.key, entry.n, ids[event_id]):
            wrong.append(f"{event_id} at {here.where} has the key {key!r}, the id {record.id!r}")
        if home.setdefault(entry.key, (record.topic, record.partition)) != (record.topic, record.partition):
            wrong.append(f"{entry.key} is in two partitions: {home[entry.key]} and {here.where}")
        before = deliveries.setdefault(event_id, [])
        before.append(here)
        if len(before) > 1:
            cause = excuse(event_id, entry, before[0], here)
            if cause is None:
                unexplained.append(f"{event_id} {entry}: {before[0]}, again {here}")
            else:
                twice[cause] += 1
            continue
        first[here.sender] += 1
        if (known := last.get(entry.key)) is not None and entry.n < known[0]:
            disorder.append(f"{entry.key}: {entry.n} by {here} comes after {known[0]} by {known[1]}")
        else:
            last[entry.key] = (entry.n, here)
    missing: dict[str, list[int]] = defaultdict(list)
    for event_id, entry in books.committed.items():
        if event_id not in deliveries and event_id not in undelivered:
            missing[entry.key].append(entry.n)
    lost = [f"{key}: {n} is missing" for key, numbers in missing.items() for n in sorted(numbers)]
    return Verdict(
        len(books.committed) - len(undelivered),
        count,
        first,
        twice,
        tuple(lost),
        tuple(disorder),
        tuple(unexplained),
        tuple(wrong),
    )


def _stranger(books: Books, event_id: str) -> str:
    if event_id in books.committed:
        return "was not to be sent"
    if event_id in books.rolled_back:
        return "was rolled back"
    return "belongs to another bus" if event_id in books.elsewhere else "was never written"
