"""Rows and batches that are too large: by our own limit, by the topic's, and by what a refusal taught."""

from __future__ import annotations

import re
from unittest import mock

import pytest
from aiokafka import errors as kafka

from cdc_outbox.errors import PoisonEvent
from cdc_outbox.event import Encoded
from cdc_outbox.kafka import publisher as module
from cdc_outbox.publisher import (
    Deliveries,
    StartOver,
    Unpublishable,
)
from tests.unit.staged import Stage, T, play


def test_a_row_over_the_clients_limit_is_poison_and_leaves_the_others_alone() -> None:
    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        with pytest.raises(PoisonEvent, match=r"max\.request\.size is 2000") as raised:
            stage.row(b"x" * 3000)
        assert (raised.value.event_id, raised.value.reason) == ("200", "too_large")
        found = re.search(r"it is (3\d\d\d) bytes as a Kafka record", str(raised.value))
        assert found is not None
        assert f"raise max.request.size under [kafka.client] to {found[1]} or more" in raised.value.next
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
