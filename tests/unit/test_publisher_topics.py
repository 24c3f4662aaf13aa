"""Topics that the publisher doesn't know yet, that go, or that get partitions."""

from __future__ import annotations

import asyncio

import pytest

from cdc_outbox.errors import CdcOutboxError, Held, PoisonEvent, SetupError
from cdc_outbox.publisher import (
    Deliveries,
    TopicMissing,
    TopicUnknown,
)
from tests.unit.staged import Stage, T, play


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
        async with asyncio.timeout(5):
            while T in stage.publisher._lanes:
                await asyncio.sleep(0)
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


def test_added_partitions_are_seen_before_a_batch_is_sent() -> None:
    """The client may know of them long before the look that comes every second."""

    async def scene(stage: Stage) -> None:
        stage.row(b"1")
        await stage.flush()
        stage.row(b"2")
        stage.counts[T] = 3
        await stage.reply()
        assert [sent.values for sent in stage.sent] == [[b"1"]]
        assert "3 partitions instead of 2" in str(stage.failure())

    play(scene, watch=1000.0)


def test_a_change_of_partitions_forgets_where_keys_were() -> None:
    deliveries = Deliveries()
    deliveries.settle(T, 0, (500, 0))
    deliveries.settle("other", 0, (500, 0))
    assert deliveries.place(T, 0, 2) == (500, 0)
    assert deliveries.place(T, 0, 2) == (500, 0)
    assert deliveries.place(T, 0, 3) == (0, -1)
    assert deliveries.place("other", 0, 1) == (500, 0)
    assert deliveries.until == 500
