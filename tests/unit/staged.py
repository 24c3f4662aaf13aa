"""A Kafka publisher on a stage: the producer is played by the test, the cluster is a number of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from aiokafka.record.default_records import DefaultRecordBatch

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.event import Encoded
from cdc_outbox.kafka import client, topics
from cdc_outbox.kafka import publisher as module
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.kafka.topics import Topic
from cdc_outbox.publisher import (
    Deliveries,
)
from cdc_outbox.settings import load

T = "orders"


@dataclass
class Sent:
    """A batch that the client was given."""

    topic: str
    partition: int
    values: list[bytes]
    reply: asyncio.Future[object]


class Stage:
    """A publisher, the ledger behind it and the cluster before it."""

    def __init__(self, deliveries: Deliveries | None = None, *options: str, limit: int | None = None) -> None:
        self.counts: dict[str, int] = {T: 2}
        self.sent: list[Sent] = []
        self.bootstraps = 0
        self.refuse: Exception | None = None
        producer: Any = SimpleNamespace(
            client=SimpleNamespace(
                cluster=SimpleNamespace(partitions_for_topic=self.partitions),
                force_metadata_update=self.nothing,
            ),
            send_batch=self.send_batch,
        )
        self.settings = load("start", {"kafka": options}, {}, Path("/nonexistent")).kafka
        self.ledger = Ledger()
        self.deliveries = deliveries or Deliveries()
        self.limit = limit
        with mock.patch.object(client, "producer", return_value=producer):
            self.publisher = KafkaPublisher(self.settings, self.ledger, self.deliveries)
        self.lsn = 0

    def partitions(self, topic: str) -> set[int] | None:
        count = self.counts.get(topic)
        return None if count is None else set(range(count))

    async def nothing(self, *_: object, **__: object) -> None:
        return

    async def bootstrap_again(self, *_: object) -> None:
        self.bootstraps += 1

    async def look_up(self, _producer: object, _settings: object, topic: str) -> Topic:
        if topic not in self.counts:
            raise topics.missing(topic, self.settings)
        return Topic(self.counts[topic], self.limit)

    async def send_batch(self, records: Any, topic: str, *, partition: int) -> asyncio.Future[object]:
        if self.refuse is not None:
            raise self.refuse
        assert not any((each.topic, each.partition) == (topic, partition) for each in self.out)
        values = [record.value or b"" for record in DefaultRecordBatch(bytes(records._build()))]
        assert len(values) == records.record_count()
        self.sent.append(Sent(topic, partition, values, asyncio.get_running_loop().create_future()))
        return self.sent[-1].reply

    @property
    def out(self) -> list[Sent]:
        return [each for each in self.sent if not each.reply.done()]

    def row(
        self,
        value: bytes | None = b"v",
        *,
        partition: int | None = 0,
        key: bytes | None = b"k",
        topic: str = T,
    ) -> tuple[int, int]:
        """Publish the only row of a transaction; its place."""
        self.lsn += 100
        encoded: Encoded = (topic, partition, key, value, 1000, [("id", b"%d" % self.lsn)])
        self.ledger.begin(self.lsn)
        self.publisher.publish(encoded, self.lsn, 0)
        self.ledger.commit(self.lsn + 1)
        return self.lsn, 0

    async def turn(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def flush(self) -> None:
        self.publisher.flush()
        await self.turn()

    async def reply(self, *, error: Exception | None = None, partition: int | None = None) -> None:
        """Answer the oldest batch that is out (of a partition)."""
        sent = next(each for each in self.out if partition in (None, each.partition))
        if error is None:
            sent.reply.set_result("where it is")  # of which nothing but its presence counts
        else:
            sent.reply.set_exception(error)
        await self.turn()

    def failure(self) -> CdcOutboxError:
        assert self.publisher.failed.done()
        return self.publisher.failed.result()


async def _nothing(*_: object, **__: object) -> None:
    return


def play(
    scene: Callable[[Stage], Coroutine[Any, Any, None]],
    *options: str,
    deliveries: Deliveries | None = None,
    limit: int | None = None,
    watch: float = 0.01,
) -> Stage:
    """Run a scene on a stage whose topic is prepared.

    `options` are the client's, `limit` the topic's own, in bytes; `watch`: seconds between looks at the cluster.
    """

    async def run() -> Stage:
        stage = Stage(deliveries, *options, limit=limit)
        with (
            mock.patch.object(client, "start", _nothing),
            mock.patch.object(client, "stop", _nothing),
            mock.patch.object(client, "bootstrap_again", stage.bootstrap_again),
            mock.patch.object(topics, "look_up", stage.look_up),
            mock.patch.object(module, "WATCH", watch),
            mock.patch.object(module, "DOUBT", 0.02),
        ):
            await stage.publisher.start()
            await stage.publisher.prepare(T)
            try:
                await scene(stage)
            finally:
                await stage.publisher.stop(within=0.1)
        return stage

    return asyncio.run(run())
