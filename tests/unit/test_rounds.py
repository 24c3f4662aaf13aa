"""When a batch leaves: at once when nothing is out, with others in a round, and later in a backlog."""

from __future__ import annotations

import asyncio

import pytest

from cdc_outbox.kafka import publisher as module
from tests.unit.bus import Bus, on_a_bus, started

LATE = 400.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round ends by the clock, however slow the machine is, unless a test says so."""
    monkeypatch.setattr(module, "ROUND", 10.0)
    monkeypatch.setattr(module, "LONGEST_ROUND", 10.0)


@on_a_bus
async def test_a_lone_event_leaves_at_once(bus: Bus) -> None:
    for _ in range(2):
        bus.publish(0)
        assert await bus.flushed() == [(0, 1)]
        await bus.confirm()


@on_a_bus
async def test_what_comes_meanwhile_leaves_together_with_the_confirmation(bus: Bus) -> None:
    bus.publish(0)
    await bus.flushed()
    for partition in (0, 1, 1):
        bus.publish(partition)
        assert await bus.flushed() == [(0, 1)]
    await bus.confirm()
    assert sorted(await bus.sent()) == [(0, 1), (1, 2)]


@on_a_bus
async def test_in_a_backlog_batches_grow_first(bus: Bus) -> None:
    bus.publish(0)
    await bus.flushed(late=LATE)
    await bus.confirm()
    bus.publish(0)
    assert await bus.flushed(late=LATE) == []
    bus.publish(0, size=module.WORTH_SENDING)
    assert await bus.flushed(late=LATE) == [(0, 2)]


@on_a_bus
async def test_the_last_of_a_backlog_leaves_at_once(bus: Bus) -> None:
    bus.publish(0)
    await bus.flushed(late=LATE)
    await bus.confirm()
    bus.publish(1)
    held = await bus.flushed(late=LATE)
    assert (held, await bus.flushed()) == ([], [(1, 1)])


def test_a_backlog_that_stops_coming_waits_for_a_part_of_its_lateness_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ROUND", 0.02)
    monkeypatch.setattr(module, "LONGEST_ROUND", 0.05)

    async def steps() -> None:
        async with started() as bus:
            bus.publish(0)
            await bus.flushed(late=LATE)
            await bus.confirm()
            bus.publish(1)
            await bus.flushed(late=LATE)
            async with asyncio.timeout(20):
                while not await bus.sent():
                    await asyncio.sleep(0.01)

    asyncio.run(steps())


def test_a_lane_that_is_stuck_holds_others_back_for_a_round_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND", 0.02)

    async def steps() -> None:
        async with started() as bus:
            bus.publish(0)
            await bus.flushed()
            bus.publish(1)
            await bus.flushed()
            async with asyncio.timeout(20):
                while await bus.sent() != [(0, 1), (1, 1)]:
                    await asyncio.sleep(0.01)

    asyncio.run(steps())
