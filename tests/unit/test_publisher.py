"""How a publisher fails, as a whole, and what it tells meanwhile; a row that can't be published."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from aiokafka import errors as kafka

from cdc_outbox.errors import CdcOutboxError, ConfigError, Held, KafkaUnavailable
from cdc_outbox.kafka import client
from cdc_outbox.kafka import publisher as module
from cdc_outbox.publisher import (
    StartOver,
    TopicMissing,
    Unpublishable,
)
from tests.unit.staged import Stage, T, play


@pytest.mark.parametrize(
    ("error", "kind", "refuses"),
    [
        (kafka.TopicAuthorizationFailedError(T), Held, True),
        (kafka.MessageSizeTooLargeError(), Unpublishable, True),
        (kafka.NotLeaderForPartitionError(), Held, False),
        (kafka.UnknownTopicOrPartitionError(), TopicMissing, False),
        (kafka.OutOfOrderSequenceNumber(), KafkaUnavailable, False),
        (RuntimeError("a fault of the client"), KafkaUnavailable, False),
    ],
)
def test_any_failed_delivery_ends_the_publisher(
    error: Exception, kind: type[CdcOutboxError], refuses: bool
) -> None:
    """Where the broker doesn't refuse the batch, it may have taken it."""

    async def scene(stage: Stage) -> None:
        stage.row()
        assert stage.publisher.unanswered == 0
        await stage.flush()
        assert stage.publisher.unanswered == 1
        await stage.reply(error=error)
        assert isinstance(stage.failure(), kind)
        assert stage.publisher.unanswered == (0 if refuses else 1)
        assert stage.ledger.confirmable == 0

    play(scene)


@pytest.mark.parametrize("dropped", ["no place", "cancelled"])
def test_a_batch_that_the_client_drops_is_not_confirmed(dropped: str) -> None:
    """So it answers without a broker where a batch looks empty to it."""

    async def scene(stage: Stage) -> None:
        stage.row()
        await stage.flush()
        if dropped == "cancelled":
            stage.sent[0].reply.cancel()
        else:
            stage.sent[0].reply.set_result(None)
        await stage.turn()
        assert isinstance(stage.failure(), KafkaUnavailable)
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


def test_a_file_that_the_settings_name_and_that_cant_be_read_any_more_is_told_as_it_is() -> None:
    unreadable = ConfigError("the TLS files of [kafka.client] can't be used", next="check ssl.key.location")

    async def scene(stage: Stage) -> None:
        with (
            mock.patch.object(module, "STALLED", 0.0),
            mock.patch.object(client, "bootstrap_again", side_effect=unreadable),
        ):
            stage.row()
            await stage.flush()
            assert await asyncio.wait_for(stage.publisher.failed, 10) is unreadable

    play(scene)


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
        await asyncio.sleep(0.03)  # the silence itself
        assert stage.publisher.silent_for >= 0.03
        with mock.patch.object(module, "STALLED", 0.0):
            async with asyncio.timeout(5):
                while not stage.bootstraps:
                    await asyncio.sleep(0)
        await stage.reply()
        assert stage.publisher.silent_for == 0
        assert stage.publisher.unanswered == 0

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
