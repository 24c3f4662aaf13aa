"""A session's four tasks and its ends: what is settled and confirmed then, and what never is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from cdc_outbox import flow as module
from cdc_outbox.errors import (
    CdcOutboxError,
    DrainExceeded,
    GapFound,
    KafkaUnavailable,
    PostgresShutdown,
    PostgresUnavailable,
)
from cdc_outbox.state import State
from tests.unit.flowing import SETTINGS, Session, run
from tests.unit.scripted import begin, commit
from tests.unit.taken import relation, row


def test_a_stop_reads_to_the_commit_and_not_beyond() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"))
        await session.taken(1)
        session.stop.set()
        await session.until(lambda: session.status.state is State.DRAINING)
        assert not session.running.done()
        session.stream.say(row("b"), commit(0x100), begin(0x200), row("c"), commit(0x200))
        await session.until(lambda: session.publisher.inflight_events == 2)
        session.publisher.confirm(2)
        await session.running
        assert session.keys == [b"a", b"b"]
        assert session.settlement.finished == 1
        assert session.stream.confirmed == 0x108

    run(test)


def test_a_stop_between_transactions_waits_only_for_what_is_out() -> None:
    async def test() -> None:
        session = Session()
        await session.drain_one()
        session.publisher.confirm()
        await session.running
        assert session.stream.confirmed == 0x108

    run(test)


def test_being_caught_up_is_a_stop() -> None:
    async def test() -> None:
        session = Session()
        session.settlement.caught_up.set()
        await session.running
        assert session.settlement.finished == 1

    run(test)


def test_a_drain_that_takes_too_long_confirms_what_there_is_and_says_so() -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, limits=replace(SETTINGS.limits, drain=0.05)))
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        session.stream.say(begin(0x200), row("b"), row("c"), commit(0x200))
        await session.taken(3)
        session.publisher.confirm(1)
        session.publisher._waiting.rotate()
        session.publisher.confirm(1)  # of another partition
        session.stop.set()
        error = await session.error()
        assert isinstance(error, DrainExceeded)
        assert str(error).startswith("1 event was not confirmed by Kafka within the drain limit")
        assert session.stream.confirmed == 0x108

    run(test)


def test_a_drain_without_time_is_in_time_when_nothing_is_left() -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, limits=replace(SETTINGS.limits, drain=0.0)))
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.taken(1)
        session.publisher.confirm()
        session.stop.set()
        await session.running
        assert session.stream.confirmed == 0x108

    run(test)


def test_a_drain_without_time_within_a_transaction_is_too_late() -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, limits=replace(SETTINGS.limits, drain=0.0)))
        session.stream.say(begin(0x100), relation(), row("a"))
        await session.taken(1)
        session.publisher.confirm()
        session.stop.set()
        error = await session.error()
        assert isinstance(error, DrainExceeded)
        assert "the commit of the transaction under way didn't come" in str(error)

    run(test)


def test_a_last_confirmation_that_is_not_taken_is_no_clean_end() -> None:
    async def test() -> None:
        session = Session()
        session.settlement.answered = False
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.taken(1)
        session.publisher.confirm()
        session.stop.set()
        error = await session.error()
        assert isinstance(error, DrainExceeded)
        assert "last confirmation" in str(error)

    run(test)


def test_an_error_during_the_drain_is_its_end() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        session.stream.say(begin(0x200), row("b"), commit(0x200))
        await session.taken(2)
        session.stop.set()
        await session.until(lambda: session.status.state is State.DRAINING)
        session.publisher.confirm(1)
        gone = KafkaUnavailable("gone", next="wait")
        session.publisher.fail(gone)
        assert await session.error() is gone
        assert session.stream.confirmed == 0x108

    run(test)


def test_a_drain_makes_way_for_a_server_that_shuts_down() -> None:
    async def test() -> None:
        session = Session()
        await session.drain_one()
        ends = PostgresShutdown("ends", next="wait")
        session.settlement.broken.set_exception(ends)
        assert await session.error() is ends
        assert session.stream.closed

    run(test)


def test_an_end_that_somebody_cancelled_says_nothing() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        cancelled: asyncio.Future[Any] = loop.create_future()
        cancelled.cancel()
        failed: asyncio.Future[Any] = loop.create_future()
        error = KafkaUnavailable("gone", next="wait")
        failed.set_exception(error)
        assert await module._first_of(cancelled, loop.create_future()) is None
        assert await module._first_of(cancelled, failed) is error

    run(test)


def test_a_delivery_that_fails_ends_the_session_and_confirms_only_what_arrived() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        session.stream.say(begin(0x200), row("b"), commit(0x200))
        await session.taken(2)
        session.publisher.confirm(1)
        session.publisher.fail(KafkaUnavailable("gone", next="wait"))
        assert isinstance(await session.error(), KafkaUnavailable)
        assert session.stream.confirmed == 0x108

    run(test)


@pytest.mark.parametrize(
    "error", [PostgresShutdown("shutting down", next="wait"), PostgresUnavailable("gone", next="wait")]
)
def test_without_the_guard_nothing_is_confirmed(error: CdcOutboxError) -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.taken(1)
        session.publisher.confirm()
        session.settlement.broken.set_exception(error)
        assert await session.error() is error
        assert session.settlement.finished == 0
        assert session.stream.confirmed == 0
        assert session.stream.closed == isinstance(error, PostgresShutdown)

    run(test)


def test_a_guard_that_refuses_is_not_asked_again() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.taken(1)
        session.publisher.confirm()
        session.settlement.broken.set_exception(GapFound("moved", next="recover"))
        assert isinstance(await session.error(), GapFound)
        assert session.stream.confirmed == 0

    run(test)


def test_a_stream_that_ends_is_an_outage_after_all_that_it_brought() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        session.stream.break_with(PostgresUnavailable("gone", next="wait"))
        assert isinstance(await session.error(), PostgresUnavailable)
        assert session.intake.received == 1
        assert session.settlement.finished == 0

    run(test)


def test_a_fault_of_our_own_is_not_hidden() -> None:
    async def test() -> None:
        session = Session()
        session.settlement.broken.set_exception(ZeroDivisionError("a fault"))
        with pytest.raises(ZeroDivisionError):
            await session.running

    run(test)
