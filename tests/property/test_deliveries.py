"""Sessions that break at any point, over one process's memory of what has arrived.

The real publisher over a broker that stores or loses what it was sent, and says so or doesn't; the real ledger; and a
slot that is confirmed as far as the ledger allows, now and then. Whatever happens: nothing is lost, nothing that was
confirmed is sent again while its topic stays as it is, and the rows of a key arrive in their order.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import hypothesis.strategies as st
from aiokafka.record.default_records import DefaultRecordBatch
from hypothesis import given, settings

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.event import Encoded
from cdc_outbox.kafka import client, topics
from cdc_outbox.kafka import publisher as module
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.kafka.topics import Topic
from cdc_outbox.publisher import Deliveries, TopicUnknown
from cdc_outbox.settings import load

KAFKA = load("start", {"kafka": ("batch.size=300",)}, {}, Path("/nonexistent")).kafka
TOPICS = ("orders", "payments")


@dataclass(frozen=True)
class Row:
    """One outbox row: its topic, and its key, or none, or a partition that it names."""

    topic: str
    key: bytes | None
    partition: int | None


Place = tuple[int, int]
"""Final LSN and place within: what tells a row from all others, and its order."""


class Broker:
    """Topics with their partitions, and what was stored there, by the place in each value."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(TOPICS, 2)
        self.stored: dict[tuple[str, int], list[tuple[Place, bytes | None]]] = defaultdict(list)
        self.arrived: set[Place] = set()
        self.confirmed: dict[str, set[Place]] = {topic: set() for topic in TOPICS}
        self.twice: list[Place] = []

    def partitions(self, topic: str) -> set[int]:
        return set(range(self.counts[topic]))

    def resize(self, topic: str, count: int) -> None:
        if count != self.counts[topic]:
            self.counts[topic] = count
            # Keys move: what has arrived may come again.
            self.confirmed[topic].clear()

    def store(self, sent: Sent) -> None:
        for place, key in sent.rows:
            if place in self.confirmed[sent.topic]:
                self.twice.append(place)
            self.stored[sent.topic, sent.partition].append((place, key))
            self.arrived.add(place)

    def confirm(self, sent: Sent) -> None:
        self.confirmed[sent.topic].update(place for place, _ in sent.rows)


@dataclass
class Sent:
    """A batch that is out."""

    topic: str
    partition: int
    rows: list[tuple[Place, bytes | None]]
    reply: asyncio.Future[object]


class Producer:
    """What the publisher uses of aiokafka's."""

    def __init__(self, broker: Broker) -> None:
        self.out: list[Sent] = []
        self.client = SimpleNamespace(cluster=SimpleNamespace(partitions_for_topic=broker.partitions))

    async def send_batch(self, records: Any, topic: str, *, partition: int) -> asyncio.Future[object]:
        rows = []
        for record in DefaultRecordBatch(bytes(records._build())):
            lsn, seq = (record.value or b"").split(b"/")
            rows.append(((int(lsn), int(seq)), record.key))
        assert not [sent for sent in self.out if (sent.topic, sent.partition) == (topic, partition)]
        sent = Sent(topic, partition, rows, asyncio.get_running_loop().create_future())
        self.out.append(sent)
        return sent.reply


@dataclass
class Slot:
    """The stream: transactions by the LSN of their commit, and how far the slot was confirmed."""

    transactions: list[list[Row]]
    confirmed: int = 0
    begun: int = field(default=0)

    def lsns(self, number: int) -> tuple[int, int]:
        """Final and end LSN of a transaction."""
        return 1000 + number * 100, 1000 + number * 100 + 40

    def unconfirmed(self) -> Iterator[tuple[int, int, list[Row]]]:
        for number, rows in enumerate(self.transactions):
            final, end = self.lsns(number)
            if end > self.confirmed:
                yield final, end, rows


class Session:
    """One session: it streams what isn't confirmed, a row at a time, as far as the test lets it."""

    def __init__(self, slot: Slot, broker: Broker, deliveries: Deliveries) -> None:
        self.slot = slot
        self.broker = broker
        self.ledger = Ledger()
        self.producer = Producer(broker)
        with mock.patch.object(client, "producer", return_value=self.producer):
            self.publisher = KafkaPublisher(KAFKA, self.ledger, deliveries)
        self.work = self.stream()

    async def start(self) -> None:
        await self.publisher.start()

    async def stream(self) -> Any:
        for final, end, rows in self.slot.unconfirmed():
            self.ledger.begin(final)
            for seq, row in enumerate(rows):
                yield
                value = f"{final}/{seq}".encode()
                encoded: Encoded = (row.topic, row.partition, row.key, value, 0, [])
                try:
                    self.publisher.publish(encoded, final, seq)
                except TopicUnknown as unknown:
                    await self.publisher.prepare(unknown.topic)
                    self.publisher.publish(encoded, final, seq)
            self.ledger.commit(end)

    async def advance(self, rows: int) -> bool:
        """Take so many rows, and send what may leave. Returns whether that was all."""
        for _ in range(rows):
            if await anext(self.work, "end") == "end":
                await self.settle_down()
                return True
        await self.settle_down()
        return False

    async def settle_down(self) -> None:
        self.publisher.flush()
        for _ in range(4):
            await asyncio.sleep(0)

    async def reply(self, which: int) -> None:
        """The broker stores and confirms one of the batches that are out."""
        if self.producer.out:
            sent = self.producer.out.pop(which % len(self.producer.out))
            self.broker.store(sent)
            self.broker.confirm(sent)
            sent.reply.set_result("where it is")  # of which nothing but its presence counts
            await self.settle_down()

    async def lose(self, which: int) -> None:
        """The broker stores one of the batches, and nobody hears of it."""
        if self.producer.out:
            self.broker.store(self.producer.out.pop(which % len(self.producer.out)))

    def confirm(self) -> None:
        """The slot follows the ledger; at this moment everything before must have arrived."""
        self.slot.confirmed = max(self.slot.confirmed, self.ledger.confirmable)
        for number, rows in enumerate(self.slot.transactions):
            final, end = self.slot.lsns(number)
            if end <= self.slot.confirmed:
                assert {(final, seq) for seq in range(len(rows))} <= self.broker.arrived

    async def end(self) -> None:
        await self.publisher.stop(within=0.1)
        await self.work.aclose()


@contextmanager
def faked(broker: Broker) -> Iterator[None]:
    """The publisher's ways to the network, cut; its round without a clock."""

    async def nothing(*_: object, **__: object) -> None:
        return

    async def look_up(_producer: object, _settings: object, topic: str) -> Topic:
        return Topic(broker.counts[topic], None)

    with (
        mock.patch.object(client, "start", nothing),
        mock.patch.object(client, "stop", nothing),
        mock.patch.object(topics, "look_up", look_up),
        mock.patch.object(module, "ROUND", 0.0),
    ):
        yield


rows = st.one_of(
    st.builds(Row, st.sampled_from(TOPICS), st.sampled_from([b"a", b"b", b"c", b"", None]), st.none()),
    # A key of its own: where the number of partitions changes, a key that moves may meet rows that name a partition.
    st.builds(Row, st.sampled_from(TOPICS), st.just(b"placed"), st.sampled_from([0, 1])),
)
transactions = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=10)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(1, 12)),
        st.tuples(st.just("reply"), st.integers(0, 3)),
        st.tuples(st.just("reply"), st.integers(0, 3)),
        st.tuples(st.just("confirm"), st.just(0)),
        st.tuples(st.just("break"), st.integers(0, 3)),
        st.tuples(st.just("resize"), st.integers(2, 4)),
    ),
    max_size=40,
)


async def relay(slot: Slot, broker: Broker, script: list[tuple[str, int]], losses: list[int]) -> None:
    deliveries = Deliveries()
    session = Session(slot, broker, deliveries)
    await session.start()
    for what, number in script:
        if what == "advance":
            await session.advance(number)
        elif what == "reply":
            await session.reply(number)
        elif what == "confirm":
            session.confirm()
        else:
            for which in losses[:number]:
                await session.lose(which)
            await session.end()
            if what == "resize":
                broker.resize(TOPICS[number % 2], number)
            session = Session(slot, broker, deliveries)
            await session.start()
    while not await session.advance(50) or session.producer.out:
        await session.reply(0)
    session.confirm()
    assert session.ledger.unsettled == 0
    assert slot.confirmed == slot.lsns(len(slot.transactions) - 1)[1]
    assert session.publisher.inflight_bytes == session.publisher.inflight_events == 0
    await session.end()


@settings(max_examples=300, deadline=None)
@given(transactions, steps, st.lists(st.integers(0, 3), max_size=3))
def test_nothing_is_lost_or_needlessly_sent_again(
    transactions: list[list[Row]], script: list[tuple[str, int]], losses: list[int]
) -> None:
    broker, slot = Broker(), Slot(transactions)
    with faked(broker):
        asyncio.run(relay(slot, broker, script, losses))
    assert broker.arrived == {
        (slot.lsns(number)[0], seq) for number, rows in enumerate(transactions) for seq in range(len(rows))
    }
    assert broker.twice == []
    for stored in broker.stored.values():
        firsts: dict[bytes | None, list[Place]] = defaultdict(list)
        for place, key in stored:
            if place not in firsts[key]:
                firsts[key].append(place)
        for key, places in firsts.items():
            assert key is None or places == sorted(places)


def test_the_memory_of_a_topic_ends_when_its_partitions_change() -> None:
    deliveries = Deliveries()
    assert deliveries.place("orders", 0, 2) == (0, -1)
    deliveries.settle("orders", 0, (100, 3))
    deliveries.settle("payments", 0, (90, 0))
    assert deliveries.place("orders", 0, 2) == (100, 3)
    assert deliveries.until == 100
    assert deliveries.place("orders", 0, 3) == (0, -1)
    assert deliveries.place("payments", 0, 1) == (90, 0)
    assert deliveries.until == 90


def test_a_run_of_the_server_that_is_over_leaves_the_memory_of_what_a_witness_row_covers() -> None:
    deliveries = Deliveries()
    for number, place in enumerate([(90, 7), (100, 0), (140, 2)]):
        deliveries.settle("orders", number, place)
    deliveries.forget_beyond(100)
    assert [deliveries.place("orders", number, 3) for number in range(3)] == [(90, 7), (100, -1), (100, -1)]
    deliveries.forget_beyond(0)
    assert deliveries.until == 0


def test_all_memory_ends_when_the_stream_may_differ() -> None:
    deliveries = Deliveries()
    deliveries.place("orders", 0, 2)
    deliveries.settle("orders", 0, (100, 3))
    deliveries.forget()
    assert deliveries.place("orders", 0, 3) == (0, -1)
    assert deliveries.until == 0
    assert cast(Any, deliveries).limits == {}
