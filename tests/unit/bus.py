"""A Kafka publisher over a producer that keeps what it is given until the test has it confirm."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.kafka import client, topics
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.kafka.topics import Topic
from cdc_outbox.publisher import Deliveries
from cdc_outbox.settings import load

KAFKA = load("start", {}, {}, Path("/nonexistent")).kafka


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
