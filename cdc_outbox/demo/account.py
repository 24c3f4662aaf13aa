"""The account of a run: what committed, what arrived by either way, what arrived twice and what never did. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrival:
    """One record: the event's id, its key, and its number among all orders."""

    id: str
    key: str
    number: int


@dataclass(slots=True)
class Chapter:
    """One part of the story: the ids of its orders that committed and that rolled back.

    `lsn` is where the last of them was written, just before its commit.
    """

    name: str
    committed: list[str] = field(default_factory=list)
    rolled_back: list[str] = field(default_factory=list)
    lsn: str = "0/0"


@dataclass(frozen=True, slots=True)
class Way:
    """What became of a chapter's committed orders on one way, and of those that rolled back (`ghosts`)."""

    arrived: int
    again: int
    lost: int
    ghosts: int


@dataclass(frozen=True, slots=True)
class Line:
    """A chapter's line of the table."""

    name: str
    committed: int
    rolled_back: int
    relayed: Way
    naive: Way


@dataclass(frozen=True, slots=True)
class Account:
    """All lines, their sum, and whether the relay kept its word.

    `strangers`: events that it sent under an id that no order has.
    """

    lines: tuple[Line, ...]
    in_order: bool
    strangers: int

    @property
    def total(self) -> Line:
        return Line(
            "total",
            sum(line.committed for line in self.lines),
            sum(line.rolled_back for line in self.lines),
            _sum(line.relayed for line in self.lines),
            _sum(line.naive for line in self.lines),
        )

    @property
    def kept(self) -> bool:
        """Nothing lost, nothing that rolled back, each by its id, order kept per customer."""
        relayed = self.total.relayed
        return not relayed.lost and not relayed.ghosts and not self.strangers and self.in_order

    def document(self, seconds: float) -> dict[str, object]:
        """The account for `--json`."""
        return {
            "schema_version": 1,
            "seconds": round(seconds, 1),
            "broker": "in-memory stand-in",
            "in_order": self.in_order,
            "chapters": [_document(line) for line in self.lines],
            "total": _document(self.total),
        }


def draw_up(chapters: Sequence[Chapter], relayed: Sequence[Arrival], naive: Sequence[Arrival]) -> Account:
    """Compare what committed with what arrived."""
    by_relay, naively = Counter(each.id for each in relayed), Counter(each.id for each in naive)
    lines = tuple(
        Line(
            chapter.name,
            len(chapter.committed),
            len(chapter.rolled_back),
            _way(chapter, by_relay),
            _way(chapter, naively),
        )
        for chapter in chapters
    )
    known = {each for chapter in chapters for each in (*chapter.committed, *chapter.rolled_back)}
    return Account(lines, in_order(relayed), len(by_relay.keys() - known))


def in_order(arrivals: Iterable[Arrival]) -> bool:
    """Whether the numbers of each key rise, as far as first deliveries go."""
    seen: set[str] = set()
    last: dict[str, int] = {}
    for each in arrivals:
        if each.id in seen:
            continue
        if each.number <= last.get(each.key, 0):
            return False
        seen.add(each.id)
        last[each.key] = each.number
    return True


def arrived(ids: Collection[str], arrivals: Iterable[Arrival]) -> int:
    """How many of these events have arrived, once or more."""
    return len(set(ids) & {each.id for each in arrivals})


def _way(chapter: Chapter, arrivals: Counter[str]) -> Way:
    there = [arrivals[each] for each in chapter.committed if arrivals[each]]
    return Way(
        arrived=len(there),
        again=sum(there) - len(there),
        lost=len(chapter.committed) - len(there),
        ghosts=sum(1 for each in chapter.rolled_back if arrivals[each]),
    )


def _sum(ways: Iterable[Way]) -> Way:
    all_ = list(ways)
    return Way(
        sum(way.arrived for way in all_),
        sum(way.again for way in all_),
        sum(way.lost for way in all_),
        sum(way.ghosts for way in all_),
    )


def _document(line: Line) -> dict[str, object]:
    return {
        "name": line.name,
        "committed": line.committed,
        "rolled_back": line.rolled_back,
        "cdc_outbox": {
            "arrived": line.relayed.arrived,
            "again": line.relayed.again,
            "lost": line.relayed.lost,
            "rolled_back_arrived": line.relayed.ghosts,
        },
        "naive": {
            "arrived": line.naive.arrived,
            "lost": line.naive.lost,
            "rolled_back_arrived": line.naive.ghosts,
        },
    }
