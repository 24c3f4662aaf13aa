"""What the bus has the reader wait for: room, a topic, a rate; and what the state says meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from cdc_outbox import flow as module
from cdc_outbox.errors import (
    PoisonEvent,
)
from cdc_outbox.state import State
from tests.unit.flowing import SETTINGS, Session, run
from tests.unit.scripted import begin, commit
from tests.unit.taken import relation, row


def test_the_budget_of_bytes_stops_the_reader_and_a_confirmation_lets_it_go_on() -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, limits=replace(SETTINGS.limits, inflight_bytes=1)))
        session.stream.say(begin(0x100), relation(), row("a"))
        await session.taken(1)
        session.stream.say(row("b"))
        await session.until(lambda: session.publisher.waits_for_room)
        assert session.intake.received == 1
        session.publisher.confirm()
        await session.taken(2)
        session.running.cancel()

    run(test)


def test_a_topic_that_is_missing_holds_and_nothing_is_lost_when_it_comes() -> None:
    async def test() -> None:
        session = Session(topics=set())
        session.stream.say(begin(0x100), relation(), row("a"), row("b"), commit(0x100))
        await session.until(lambda: session.status.state is State.HELD)
        assert "outbox.event.order" in session.status.reason
        assert session.publisher.topics is not None
        session.publisher.topics.add("outbox.event.order")
        await session.until(lambda: session.publisher.inflight_events == 2)
        session.publisher.confirm(2)
        await session.until(lambda: session.status.state is State.STREAMING)
        assert session.keys == [b"a", b"b"]
        session.running.cancel()

    run(test)


def test_a_session_that_has_yet_to_hear_of_a_topic_is_no_evidence_of_a_bus_that_takes_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The session before was held. A cluster that answers slowly may be about to say the same again."""
    monkeypatch.setattr(module, "MIND", 0.001)
    monkeypatch.setattr(module, "STEADY", 0.002)

    async def test() -> None:
        session = Session()
        asked, answers = asyncio.Event(), asyncio.Event()

        async def prepare(_topic: str) -> None:
            asked.set()
            await answers.wait()

        monkeypatch.setattr(session.publisher, "topics", set())
        monkeypatch.setattr(session.publisher, "prepare", prepare)
        session.status.change(State.HELD, "no right to write")
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.until(asked.is_set)
        await asyncio.sleep(0.02)  # several looks at the bus
        assert session.status.state is State.HELD
        monkeypatch.setattr(session.publisher, "topics", None)
        answers.set()
        await session.until(lambda: session.publisher.inflight_events == 1)
        session.publisher.confirm(1)
        await session.until(lambda: session.status.state is State.STREAMING)
        session.running.cancel()

    run(test)


def test_a_topic_that_is_missing_can_be_poison() -> None:
    async def test() -> None:
        session = Session(
            replace(SETTINGS, kafka=replace(SETTINGS.kafka, unknown_topic="poison")), topics=set()
        )
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        error = await session.error()
        assert isinstance(error, PoisonEvent)
        assert (error.reason, error.event_id) == ("unknown_topic", "a")

    run(test)


def test_a_rate_limit_is_kept() -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, limits=replace(SETTINGS.limits, max_events_per_second=50.0)))
        session.stream.say(begin(0x100), relation(), *(row(str(number)) for number in range(20)))
        began = asyncio.get_running_loop().time()
        await session.taken(20)
        assert asyncio.get_running_loop().time() - began > 0.2
        session.running.cancel()

    run(test)
