"""The audit's judgement on random histories: each planted fault is found, and nothing else."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_outbox.repair.books import ACKNOWLEDGED
from cdc_outbox.repair.judgement import CLOSE_MS
from tests.unit.audited import Sent, ids, judged, message

PARTITIONS = 3


@dataclass(frozen=True)
class Event:
    """A committed row, by its place in the commit order."""

    id: str
    key: str
    ms: int
    lsn: int
    seq: int


def history(chance: random.Random) -> list[Event]:
    """Transactions of a few rows, in commit order; some commits take their time a little late."""
    events: list[Event] = []
    ms, lsn = 1_000_000, 0x1000
    for _ in range(chance.randint(1, 40)):
        ms += chance.choice((0, 1, 30, 99, 100, 101, 5_000))
        lsn += chance.randint(8, 999)
        late = ms - chance.choice((0, 0, 0, 1, CLOSE_MS - 1))
        for seq in range(chance.randint(1, 3)):
            id_ = str(uuid.UUID(int=chance.getrandbits(128))) if chance.random() < 0.7 else f"e{len(events)}"
            events.append(Event(id_, f"key-{chance.randint(0, 5)}", late, lsn, seq))
    return events


def delivered(events: list[Event], chance: random.Random) -> list[list[Event]]:
    """The partitions after a relay that was killed at times, and sent some again."""
    partitions: list[list[Event]] = [[] for _ in range(PARTITIONS)]
    at = 0
    while at < len(events):
        event = events[at]
        partitions[sum(event.key.encode()) % PARTITIONS].append(event)
        at += 1
        if chance.random() < 0.05:
            at -= chance.randint(1, min(at, 7))
    return partitions


def spoilt(partitions: list[list[Event]], chance: random.Random) -> list[list[Event]]:
    """The same with a few faults: gone, swapped, put elsewhere, sent twice, belonging to no row."""
    spoilt = [list(each) for each in partitions]
    for _ in range(chance.randint(0, 6)):
        place = chance.choice(spoilt)
        if not place:
            continue
        at = chance.randrange(len(place))
        fault = chance.choice(("gone", "moved", "late", "twice", "foreign"))
        if fault == "gone":
            del place[at]
        elif fault == "late":
            place.insert(chance.randint(at, len(place)), place.pop(at))
        elif fault == "moved":
            chance.choice(spoilt).append(place[at])
        elif fault == "twice":
            place.append(place[at])
        else:
            place.insert(at, replace(place[at], id=str(uuid.UUID(int=chance.getrandbits(128)))))
    return spoilt


def late(partitions: list[list[Event]], *, exact: bool) -> tuple[list[str], list[str]]:
    """Ids of first deliveries that surely, and that perhaps, came after a message that committed later."""
    surely, perhaps = [], []
    seen: set[str] = set()
    for place in partitions:
        before: dict[str, list[Event]] = {}
        for event in place:
            others = before.setdefault(event.key, [])
            others.append(event)
            if event.id in seen:
                continue
            seen.add(event.id)
            if exact:
                if any((other.lsn, other.seq) > (event.lsn, event.seq) for other in others):
                    surely.append(event.id)
            else:
                lag = max((other.ms - event.ms for other in others), default=0)
                if lag >= CLOSE_MS:
                    surely.append(event.id)
                elif lag > 0:
                    perhaps.append(event.id)
    return sorted(surely), sorted(perhaps)


def messages(place: list[Event], *, exact: bool) -> list[Sent]:
    return [
        message(offset, each.id, ms=each.ms, key=each.key, lsn=each.lsn if exact else None, seq=each.seq)
        for offset, each in enumerate(place)
    ]


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**40), exact=st.booleans())
def test_a_healthy_history_is_clean_but_for_copies(seed: int, exact: bool) -> None:
    chance = random.Random(seed)
    events = history(chance)
    partitions = delivered(events, chance)
    found = judged(
        [(event.id, ACKNOWLEDGED) for event in events], [messages(each, exact=exact) for each in partitions]
    )
    counts = Counter(event.id for place in partitions for event in place)
    assert found.delivered == len(events)
    assert ids(found.twice.events) == sorted(id_ for id_, count in counts.items() if count > 1)
    for kind in (found.missing, found.out_of_order, found.foreign, found.moved_keys, found.unknown):
        assert kind.count == 0, kind.events


@settings(max_examples=600, deadline=None)
@given(seed=st.integers(0, 2**40), exact=st.booleans())
def test_each_planted_fault_is_found_and_nothing_else(seed: int, exact: bool) -> None:
    chance = random.Random(seed)
    events = history(chance)
    partitions = spoilt(delivered(events, chance), chance)
    found = judged(
        [(event.id, ACKNOWLEDGED) for event in events], [messages(each, exact=exact) for each in partitions]
    )
    rows = {event.id for event in events}
    counts = Counter(event.id for place in partitions for event in place)
    homes: dict[str, set[int]] = {}
    for number, place in enumerate(partitions):
        for event in place:
            homes.setdefault(event.key, set()).add(number)
    surely, perhaps = late(partitions, exact=exact)
    assert ids(found.missing.events) == sorted(rows - counts.keys())
    assert ids(found.foreign.events) == sorted(counts.keys() - rows)
    assert ids(found.twice.events) == sorted(id_ for id_, count in counts.items() if count > 1)
    assert {str(each["id"]): each["copies"] for each in found.twice.events} == {
        id_: count for id_, count in counts.items() if count > 1
    }
    assert ids(found.out_of_order.events) == surely
    assert ids(found.undecided.events) == perhaps
    assert found.moved_keys.count == sum(len(places) > 1 for places in homes.values())
