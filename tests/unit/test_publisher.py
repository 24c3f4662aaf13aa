"""The rules by which batches form, leave, are refused and end, with a producer that the test plays."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from aiokafka import errors as kafka
from aiokafka.record.default_records import DefaultRecordBatch

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, PoisonEvent, SetupError
from cdc_outbox.event import Encoded
from cdc_outbox.kafka import client, topics
from cdc_outbox.kafka import publisher as module
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.kafka.topics import Topic
from cdc_outbox.publisher import (
    Deliveries,
    MemoryPublisher,
    StartOver,
    TopicMissing,
    TopicUnknown,
    Unpublishable,
)
from cdc_outbox.settings import load

T = "orders"


@dataclass
class Sent:
    """A batch that the client was given."""

    topic: str
    partition: int
    values: list[bytes]
    reply: asyncio.Future[None]


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
            raise topics.missing(topic)
        return Topic(self.counts[topic], self.limit)

    async def send_batch(self, records: Any, topic: str, *, partition: int) -> asyncio.Future[None]:
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
            sent.reply.set_result(None)
        else:
            sent.reply.set_exception(error)
        await self.turn()

    def failure(self) -> CdcOutboxError:
        assert self.publisher.failed.done()
        return self.publisher.failed.result()


@pytest.fixture(autouse=True)
def _without_network() -> Iterator[None]:
    async def nothing(*_: object, **__: object) -> None:
        return

    with (
        mock.patch.object(client, "start", nothing),
        mock.patch.object(client, "stop", nothing),
        mock.patch.object(module, "WATCH", 0.01),
        mock.patch.object(module, "DOUBT", 0.02),
    ):
        yield


def play(scene: Callable[[Stage], Coroutine[Any, Any, None]], *options: str, **changes: Any) -> Stage:
    """Run a scene on a stage whose topic is prepared."""

    async def run() -> Stage:
        stage = Stage(changes.pop("deliveries", None), *options, **changes)
        with (
            mock.patch.object(topics, "look_up", stage.look_up),
            mock.patch.object(client, "bootstrap_again", stage.bootstrap_again),
        ):
            await stage.publisher.start()
            await stage.publisher.prepare(T)
            try:
                await scene(stage)
            finally:
                await stage.publisher.stop(within=0.1)
        return stage

    return asyncio.run(run())


def test_a_lone_row_leaves_at_once_and_is_confirmed_by_the_broker_alone() -> None:
    async def scene(stage: Stage) -> None:
        stage.row()
        assert stage.publisher.inflight_bytes > 0
        await stage.flush()
        assert [sent.values for sent in stage.sent] == [[b"v"]]
        assert stage.ledger.confirmable == 0
        assert stage.publisher.inflight_events == 1
        await stage.reply()
        assert stage.ledger.confirmable == 101
        assert (stage.publisher.inflight_events, stage.publisher.inflight_bytes) == (0, 0)
        assert stage.publisher.published == {T: 1}

    play(scene)


def test_rows_gather_while_a_batch_is_out_and_one_is_out_per_partition() -> None:
    async def scene(stage: Stage) -> None:
        with mock.patch.object(module, "ROUND", 1000.0):
            stage.row(b"1")
            await stage.flush()
            for value in (b"2", b"3"):
                stage.row(value)
                await stage.flush()
            stage.row(b"4", partition=1)
            await stage.flush()
            assert [sent.values for sent in stage.sent] == [[b"1"]]
            await stage.reply()
            assert sorted((sent.partition, sent.values) for sent in stage.sent[1:]) == [
                (0, [b"2", b"3"]),
                (1, [b"4"]),
            ]

    play(scene)


def test_a_slow_partition_holds_up_no_other_for_longer_than_a_round() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        await stage.flush()
        stage.row(b"2", partition=1)
        await stage.flush()
        await asyncio.sleep(module.ROUND * 2)
        await stage.turn()
        assert [(sent.partition, sent.values) for sent in stage.sent] == [(0, [b"1"]), (1, [b"2"])]

    play(scene)


def test_full_batches_leave_by_themselves_one_after_another() -> None:
    async def scene(stage: Stage) -> None:
        for n in range(10):
            stage.row(b"%d" % n * 100)
        await stage.turn()
        assert len(stage.sent) == 1
        while len(stage.sent[-1].values) > 1 or stage.out:
            await stage.reply()
            await stage.flush()
        assert [value for sent in stage.sent for value in sent.values] == [b"%d" % n * 100 for n in range(10)]
        assert len(stage.sent) >= 3
        assert stage.ledger.confirmable == stage.lsn + 1

    play(scene, "batch.size=500")


def test_no_more_is_out_than_a_request_may_hold() -> None:
    async def scene(stage: Stage) -> None:
        stage.counts["wide"] = 8
        await stage.publisher.prepare("wide")
        for n in range(3):
            for partition in range(8):
                stage.row(b"%d" % n * 700, partition=partition, topic="wide")
        most = 0
        await stage.flush()
        while stage.out:
            most = max(most, len(stage.out))
            await stage.reply()
            await stage.flush()
        assert most == 2
        for partition in range(8):
            mine = [value[:1] for sent in stage.sent if sent.partition == partition for value in sent.values]
            assert mine == [b"0", b"1", b"2"]
        assert stage.ledger.confirmable == stage.lsn + 1

    play(scene, "max.request.size=2000", "batch.size=1000")


def test_nothing_behind_an_open_batch_is_confirmable() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        stage.row(b"2", partition=1)
        await stage.flush()
        await stage.reply(partition=1)
        assert stage.ledger.confirmable == 0
        await stage.reply(partition=0)
        assert stage.ledger.confirmable == 201

    play(scene)


def test_keys_choose_partitions_and_rows_without_a_key_are_spread_by_their_place() -> None:
    async def scene(stage: Stage) -> None:
        for key in (b"a", b"b", b"a", b""):
            stage.row(key, partition=None, key=key)
        for _ in range(40):
            stage.row(b"none", partition=None, key=None)
        await stage.flush()
        by_partition = {sent.partition: sent.values for sent in stage.sent}
        home = next(number for number, held in by_partition.items() if b"a" in held)
        assert by_partition[home].count(b"a") == 2
        assert all(held.count(b"none") > 5 for held in by_partition.values())

    play(scene)


def test_a_topic_that_isnt_prepared() -> None:
    async def scene(stage: Stage) -> None:
        with pytest.raises(TopicUnknown) as raised:
            stage.row(topic="other")
        assert raised.value.topic == "other"
        with pytest.raises(TopicMissing):
            await stage.publisher.prepare("other")
        stage.counts["other"] = 1
        await stage.publisher.prepare("other")
        stage.ledger.commit(stage.lsn + 1)
        stage.row(topic="other")
        await stage.flush()
        assert stage.sent[-1].topic == "other"

    play(scene)


@pytest.mark.parametrize("partition", [2, -1, 1 << 40])
def test_a_partition_that_isnt_there_is_poison(partition: int) -> None:
    async def scene(stage: Stage) -> None:
        with pytest.raises(
            PoisonEvent, match=f"it names partition {partition}, and topic orders has 2"
        ) as raised:
            stage.row(partition=partition)
        assert (raised.value.event_id, raised.value.reason) == ("100", "partition")
        assert not stage.ledger.unsettled

    play(scene)


def test_a_row_over_the_clients_limit_is_poison_and_leaves_the_others_alone() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        with pytest.raises(PoisonEvent, match=r"max\.request\.size is 2000") as raised:
            stage.row(b"x" * 3000)
        assert (raised.value.event_id, raised.value.reason) == ("200", "too_large")
        found = re.search(r"it is (3\d\d\d) bytes as a Kafka record", str(raised.value))
        assert found is not None
        assert f'"max.request.size" = {found[1]} or more' in raised.value.next
        assert f"--topic orders --add-config max.message.bytes={found[1]}" in raised.value.next
        await stage.flush()
        assert [sent.values for sent in stage.sent] == [[b"1"]]

    play(scene, "max.request.size=2000")


def test_headers_count_for_the_limit_and_the_budget() -> None:
    async def scene(stage: Stage) -> None:
        encoded: Encoded = (T, 0, b"k", b"v", 1000, [("big", b"x" * 1500)])
        stage.publisher.publish(encoded, 1, 0)
        assert stage.publisher.inflight_bytes > 1500
        with pytest.raises(PoisonEvent, match=r"max\.request\.size"):
            stage.publisher.publish((T, 1, b"k", b"v", 1000, [("big", b"x" * 2500)]), 1, 1)

    play(scene, "max.request.size=2000")


def test_the_topics_own_limit_bounds_a_batch_but_not_its_first_record() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"x" * 900)
        for n in range(4):
            stage.row(b"%d" % n * 100)
        await stage.flush()
        while stage.out:
            await stage.reply()
            await stage.flush()
        assert [len(sent.values) for sent in stage.sent] == [1, 3, 1]

    play(scene, limit=500)


def test_a_refused_batch_halves_for_the_whole_topic_in_a_new_session() -> None:
    deliveries = Deliveries()

    async def first(stage: Stage) -> None:
        for n in range(8):
            stage.row(b"%d" % n * 100)
        stage.row(b"other", partition=1)
        await stage.flush()
        await stage.reply(partition=1)
        await stage.reply(error=kafka.MessageSizeTooLargeError(), partition=0)
        assert isinstance(stage.failure(), StartOver)
        assert "orders[0] refused a batch of 8 records" in str(stage.failure())
        with pytest.raises(StartOver):
            await stage.publisher.settled()

    stage = play(first, deliveries=deliveries)
    learnt = {place: size for place, (size, _) in deliveries.limits.items()}
    assert learnt.keys() == {(T, 0), (T, 1)}
    assert 400 < learnt[T, 0] == learnt[T, 1] < 700
    last = stage.lsn

    async def second(stage: Stage) -> None:
        for n in range(8):
            stage.row(b"%d" % n * 100)
        stage.row(b"other", partition=1)
        assert stage.lsn == last
        await stage.flush()
        while stage.out:
            await stage.reply()
            await stage.flush()
        # What had arrived isn't sent again.
        assert {sent.partition for sent in stage.sent} == {0}
        assert [value for sent in stage.sent for value in sent.values] == [b"%d" % n * 100 for n in range(8)]
        assert max(len(sent.values) for sent in stage.sent) in {3, 4}
        assert stage.ledger.confirmable == stage.lsn + 1

    play(second, deliveries=deliveries)


def test_what_isnt_a_matter_of_size_is_learnt_for_one_partition() -> None:
    async def scene(stage: Stage) -> None:
        stage.row()
        stage.row()
        await stage.flush()
        await stage.reply(error=kafka.InvalidTimestampError())
        assert isinstance(stage.failure(), StartOver)
        assert stage.deliveries.limits.keys() == {(T, 0)}

    play(scene)


def test_a_learnt_limit_grows_again() -> None:
    deliveries = Deliveries(limits={(T, 0): (300, 0.0), (T, 1): (100_000, 0.0)})

    async def scene(stage: Stage) -> None:
        with mock.patch.object(module, "GROW_AFTER", -1.0):
            stage.row(b"a")
            stage.row(b"b", partition=1)
        assert deliveries.limits[T, 0][0] == 600
        assert deliveries.limits[T, 1][0] == 200_000

    play(scene, deliveries=deliveries)


def test_a_refused_record_alone_is_suspected() -> None:
    async def scene(stage: Stage) -> None:
        place = stage.row()
        await stage.flush()
        await stage.reply(error=kafka.MessageSizeTooLargeError())
        failure = stage.failure()
        assert isinstance(failure, Unpublishable)
        assert (failure.lsn, failure.seq) == place
        named = failure.named((T, 0, b"k", b"v", 0, [("id", b"the-id")]))
        assert "event the-id at 0/64, row 0, can't be published: orders[0] refuses it" in str(named)

    play(scene)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (kafka.TopicAuthorizationFailedError(T), Held),
        (kafka.NotLeaderForPartitionError(), Held),
        (kafka.UnknownTopicOrPartitionError(), TopicMissing),
        (kafka.OutOfOrderSequenceNumber(), KafkaUnavailable),
        (RuntimeError("a fault of the client"), KafkaUnavailable),
    ],
)
def test_any_failed_delivery_ends_the_publisher(error: Exception, kind: type[CdcOutboxError]) -> None:
    async def scene(stage: Stage) -> None:
        stage.row()
        await stage.flush()
        await stage.reply(error=error)
        assert isinstance(stage.failure(), kind)
        assert stage.ledger.confirmable == 0

    play(scene)


@pytest.mark.parametrize("error", [kafka.ProducerClosed(), AssertionError("Unrecognized partition")])
def test_a_client_that_takes_no_batch_ends_the_publisher(error: Exception) -> None:
    async def scene(stage: Stage) -> None:
        stage.refuse = error
        stage.row()
        await stage.flush()
        assert isinstance(stage.failure(), KafkaUnavailable)

    play(scene)


def test_a_topic_that_is_gone_isnt_named_to_the_client() -> None:
    async def scene(stage: Stage) -> None:
        del stage.counts[T]
        stage.row()
        stage.publisher.flush()
        async with asyncio.timeout(5):
            assert isinstance(await stage.publisher.failed, TopicMissing)
        assert not stage.sent

    play(scene)


def test_a_topic_that_went_while_idle_is_asked_for_again() -> None:
    async def scene(stage: Stage) -> None:
        del stage.counts[T]

        await asyncio.sleep(0.05)
        with pytest.raises(TopicUnknown):
            stage.row()
        assert not stage.publisher.failed.done()

    play(scene)


@pytest.mark.parametrize(("policy", "kind"), [("warn", Held), ("stop", SetupError)])
def test_added_partitions_end_the_session(policy: str, kind: type[CdcOutboxError]) -> None:
    async def scene(stage: Stage) -> None:
        stage.counts[T] = 3
        object.__setattr__(stage.settings, "on_partition_change", policy)
        async with asyncio.timeout(5):
            failure = await stage.publisher.failed
        assert isinstance(failure, kind)
        assert "3 partitions instead of 2" in str(failure)

    play(scene)


def test_a_change_of_partitions_forgets_where_keys_were() -> None:
    deliveries = Deliveries()
    deliveries.settle(T, 0, (500, 0))
    deliveries.settle("other", 0, (500, 0))
    assert deliveries.place(T, 0, 2) == (500, 0)
    assert deliveries.place(T, 0, 2) == (500, 0)
    assert deliveries.place(T, 0, 3) == (0, -1)
    assert deliveries.place("other", 0, 1) == (500, 0)
    assert deliveries.until == 500


def test_a_producer_ends_before_its_numbers_do() -> None:
    async def scene(stage: Stage) -> None:
        with mock.patch.object(module, "SEQUENCE_LIMIT", 2):
            for _ in range(3):
                stage.row()
            await stage.flush()
        assert isinstance(stage.failure(), StartOver)

    play(scene)


def test_silence_is_counted_while_something_is_owed() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.publisher.silent_for == 0
        stage.row()
        await stage.flush()
        await asyncio.sleep(0.03)
        assert stage.publisher.silent_for >= 0.03
        with mock.patch.object(module, "STALLED", 0.0):
            await asyncio.sleep(0.03)
        assert stage.bootstraps >= 1
        await stage.reply()
        assert stage.publisher.silent_for == 0

    play(scene)


def test_settled_waits_for_the_last_confirmation() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        stage.row(b"2", partition=1)
        waiting = asyncio.create_task(stage.publisher.settled())
        await stage.turn()
        await stage.reply()
        assert not waiting.done()
        await stage.reply()
        await stage.turn()
        assert waiting.done()
        room = asyncio.create_task(stage.publisher.room())
        await stage.turn()
        assert not room.done()
        stage.row(b"3")
        await stage.flush()
        await stage.reply()
        assert room.done()

    play(scene)


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        (b"17", "event 17 at"),
        (b"a\nb", "event 'a\\nb' at"),
        (b"x" * 300, "event " + "x" * 200 + " at"),
        (b"\xff", "\ufffd"),
    ],
)
def test_a_row_that_cant_be_published_is_named(identity: bytes, shown: str) -> None:
    error = Unpublishable(
        "why", (T, 0, b"k", b"v", 0, [("id", identity)]), next="n", reason="r", lsn=1, seq=2
    )
    assert shown in str(error)
    assert str(error).endswith("at 0/1, row 2, can't be published: why")
    assert "\n" not in str(error)
    nameless = error.named((T, 0, b"k", b"v", 0, []))
    assert str(nameless) == "event without an id at 0/1, row 2, can't be published: why"
    assert str(error.named(None)) == "a row at 0/1, row 2, can't be published: why"


def test_a_bus_in_memory() -> None:
    async def scene() -> None:
        ledger = Ledger()
        bus = MemoryPublisher(ledger, topics={T}, patient=True)
        ledger.begin(10)
        row: Encoded = (T, None, b"k", b"v", 0, [])
        bus.publish(row, 10, 0)
        bus.publish(row, 10, 1)
        ledger.commit(20)
        with pytest.raises(TopicUnknown):
            bus.publish(("other", None, b"k", b"v", 0, []), 10, 2)
        with pytest.raises(TopicMissing):
            await bus.prepare("other")
        bus.flush()
        assert ledger.confirmable == 0
        bus.confirm()
        assert ledger.confirmable == 0
        bus.confirm()
        assert ledger.confirmable == 20
        assert bus.published == {T: 2}
        await bus.settled()
        bus.publish(row, 30, 0)
        bus.fail(KafkaUnavailable("gone", next="wait"))
        with pytest.raises(KafkaUnavailable):
            await bus.settled()
        await bus.stop(within=0)

    asyncio.run(scene())
