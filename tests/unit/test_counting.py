"""What intake and publisher count on the way: transactions by size, when rows were committed, what waits."""

from __future__ import annotations

import time

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.tally import ROWS, SECONDS
from tests.unit.bus import Bus, on_a_bus
from tests.unit.scripted import begin, commit, keepalive
from tests.unit.taken import Taken, relation, row


def counted(taken: Taken) -> dict[float, int]:
    taken.intake.count()
    counts = taken.intake._tally.transactions.counts
    return {bound: count for bound, count in zip((*ROWS, float("inf")), counts, strict=True) if count}


@pytest.mark.usefixtures("loop")
def test_transactions_count_by_their_rows() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), row("a"), row("b"), commit(0x100))
    assert counted(taken) == {2.0: 1}
    taken.drain(begin(0x200), row("c"), commit(0x200), begin(0x300), row("d"), commit(0x300))
    assert counted(taken) == {1.0: 2, 2.0: 1}
    assert taken.intake._tally.transactions.sum == 4


@pytest.mark.usefixtures("loop")
def test_a_transaction_counts_once_it_is_whole() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), row("a"), row("b"))
    assert counted(taken) == {}
    taken.drain(row("c"), commit(0x100))
    assert counted(taken) == {5.0: 1}


@pytest.mark.usefixtures("loop")
def test_what_waits_is_the_oldest_row_that_the_bus_has_not_confirmed() -> None:
    taken = Taken()
    assert taken.intake.waiting_since_us == 0
    taken.drain(begin(0x100, commit_us=5_000), relation(), row("a"), commit(0x100))
    taken.drain(begin(0x200, commit_us=6_000), row("b"), commit(0x200))
    assert taken.intake.waiting_since_us == 5_000
    taken.publisher.confirm(1)
    assert taken.intake.waiting_since_us == 6_000
    taken.publisher.confirm(1)
    assert taken.intake.waiting_since_us == 0
    taken.drain(keepalive(0x300))
    assert taken.intake.waiting_since_us == 0


@pytest.mark.usefixtures("loop")
def test_a_transaction_under_way_waits_as_well() -> None:
    taken = Taken()
    taken.drain(begin(0x100, commit_us=5_000), relation())
    assert taken.intake.waiting_since_us == 5_000
    taken.drain(commit(0x100))
    assert taken.intake.waiting_since_us == 0


def test_the_ledger_knows_when_the_oldest_open_mark_was_committed() -> None:
    ledger = Ledger()
    assert ledger.oldest_us == 0
    first, second = ledger.pin(7), ledger.pin(9)
    ledger.settle(second)
    assert ledger.oldest_us == 7
    ledger.settle(first)
    assert ledger.oldest_us == 0


@on_a_bus
async def test_latency_is_from_the_first_and_the_last_commit_of_a_batch(bus: Bus) -> None:
    now = time.time_ns() // 1000
    for age in (40.0, 20.0):
        bus.publisher.committed_us = now - int(age * 1e6)
        bus.publish(0)
    await bus.flushed()
    bus.publisher.committed_us = now
    await bus.confirm()
    latency = bus.publisher._tally.latency
    assert latency.sum == pytest.approx(60, abs=10)
    assert sum(latency.counts) == 2
    assert sum(latency.counts[: SECONDS.index(10.0) + 1]) == 0
    assert bus.publisher._tally.published == {"topic": 2}
    assert bus.publisher._tally.bytes["topic"] > 0


@on_a_bus
async def test_events_are_in_flight_from_when_they_are_taken(bus: Bus) -> None:
    for number in (1, 2, 3):
        bus.publish(0)
        assert bus.publisher.inflight_events == number
        await bus.flushed()
    await bus.confirm()
    assert bus.publisher.inflight_events == 2
    await bus.confirm()
    assert bus.publisher.inflight_events == bus.publisher.inflight_bytes == 0
