"""When a batch leaves: at once when nothing is out, with others in a round, and later in a backlog."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.kafka import client, topics
from cdc_outbox.kafka import publisher as module
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.kafka.topics import Topic
from cdc_outbox.publisher import Deliveries
from cdc_outbox.settings import load

KAFKA = load("start", {}, {}, Path("/nonexistent")).kafka
LATE = 400.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No round ends by the clock, however slow the machine is, unless a test says so."""
    monkeypatch.setattr(module, "ROUND", 10.0)
    monkeypatch.setattr(module, "LONGEST_ROUND", 10.0)


class Bus:
    """A publisher over a producer that keeps what it is given until it is told to confirm."""

    def __init__(self) -> None:
        self.out: list[tuple[int, int, asyncio.Future[object]]] = []
        cluster = SimpleNamespace(partitions_for_topic=lambda _: {0, 1})
        producer = SimpleNamespace(send_batch=self._send, client=SimpleNamespace(cluster=cluster))
        with mock.patch.object(client, "producer", return_value=producer):
            self.publisher = KafkaPublisher(KAFKA, Ledger(), Deliveries())
        self._rows = 0

    async def _send(self, records: Any, _topic: str, *, partition: int) -> asyncio.Future[object]:
        reply: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.out.append((partition, records.record_count(), reply))
        return reply

    def publish(self, partition: int, *, size: int = 10) -> None:
        self._rows += 1
        self.publisher.publish(("topic", partition, b"key", b"x" * size, 0, []), 100, self._rows)

    async def flushed(self, **how: float) -> list[tuple[int, int]]:
        """Partition and records of each batch that is out after a flush."""
        self.publisher.flush(**how)
        return await self.sent()

    async def sent(self) -> list[tuple[int, int]]:
        for _ in range(4):
            await asyncio.sleep(0)
        return [(partition, count) for partition, count, _ in self.out]

    async def confirm(self) -> None:
        for _, _, reply in self.out:
            reply.set_result("where it is")
        self.out.clear()
        await self.sent()


@asynccontextmanager
async def started() -> AsyncIterator[Bus]:
    async def nothing(*_: object, **__: object) -> None:
        return

    async def look_up(*_: object) -> Topic:
        return Topic(2, None)

    with (
        mock.patch.object(client, "start", nothing),
        mock.patch.object(client, "stop", nothing),
        mock.patch.object(topics, "look_up", look_up),
    ):
        bus = Bus()
        await bus.publisher.start()
        await bus.publisher.prepare("topic")
        try:
            yield bus
        finally:
            await bus.publisher.stop(within=0.1)


def on_a_bus(test: Callable[[Bus], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        async def steps() -> None:
            async with started() as bus:
                await test(bus)

        asyncio.run(steps())

    run.__name__ = test.__name__
    return run


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
