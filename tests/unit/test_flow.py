"""A session's four tasks and its ends: what is settled and confirmed then, and what never is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import pytest

from cdc_outbox import flow as module
from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import (
    CdcOutboxError,
    DrainExceeded,
    GapFound,
    KafkaUnavailable,
    MappingError,
    PoisonEvent,
    PostgresShutdown,
    PostgresUnavailable,
)
from cdc_outbox.flow import Flow
from cdc_outbox.intake import Intake
from cdc_outbox.publisher import StartOver, Unpublishable
from cdc_outbox.settings import Settings, load
from cdc_outbox.state import State, Status
from cdc_outbox.table.mapping import Mapping
from tests.unit.mapped import TEXT
from tests.unit.memory_publisher import MemoryPublisher
from tests.unit.scripted import OID, ScriptedStream, begin, commit, insert
from tests.unit.taken import relation, row

SETTINGS = load("start", {}, {}, Path("/nonexistent"))


class FakeSettlement:
    """Confirms what the ledger allows when it is told to, as the real one does after guard and witness."""

    def __init__(self, ledger: Ledger, stream: ScriptedStream) -> None:
        self._ledger = ledger
        self._stream = stream
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.caught_up = asyncio.Event()
        self.finished = 0
        self.answered = True
        """Whether PostgreSQL takes the last confirmation."""

    async def run(self, caught_up: asyncio.Event) -> None:
        ends: list[asyncio.Future[Any]] = [self.broken, asyncio.ensure_future(self.caught_up.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.broken.done():
            self.broken.result()
        caught_up.set()
        await self.broken

    async def finish(self, *, within: float) -> CdcOutboxError | None:
        assert within > 0
        self.finished += 1
        if not self.answered:
            return DrainExceeded("PostgreSQL didn't take the last confirmation", next="")
        self._stream.confirm(self._ledger.confirmable)
        return None


class Bus(MemoryPublisher):
    """Says when somebody waits for room."""

    waits_for_room = False

    async def room(self) -> None:
        self.waits_for_room = True
        try:
            await super().room()
        finally:
            self.waits_for_room = False


class Session:
    """A flow over a scripted stream and a bus in memory."""

    def __init__(
        self,
        settings: Settings = SETTINGS,
        *,
        topics: set[str] | None = None,
        suspect: tuple[int, int] | None = None,
    ) -> None:
        self.stream = ScriptedStream()
        self.ledger = Ledger()
        self.publisher = Bus(self.ledger, topics=topics, patient=True)
        self.intake = Intake(
            cast(Any, self.stream), self.ledger, Mapping(settings.outbox, "outbox_slot"), self.publisher
        )
        self.settlement = FakeSettlement(self.ledger, self.stream)
        self.status = Status("outbox_slot", State.STREAMING)
        self.stop = asyncio.Event()
        self.flow = Flow(
            settings,
            self.status,
            cast(Any, self.stream),
            self.ledger,
            self.publisher,
            self.intake,
            cast(Any, self.settlement),
            suspect,
        )
        self.running = asyncio.create_task(self.flow.run(self.stop, asyncio.Event()))

    @property
    def keys(self) -> list[bytes | None]:
        return [message[2] for message in self.publisher.messages]

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the session run until a condition holds; the test's own limit ends a wait in vain."""
        while not condition():
            assert not self.running.done(), self.running
            await asyncio.sleep(0.001)

    async def drain_one(self) -> None:
        """Take one row, and be asked to stop while it is out."""
        self.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await self.taken(1)
        self.stop.set()
        await self.until(lambda: self.status.state is State.DRAINING)

    async def stopping_for_room(self) -> None:
        """Be asked to stop, and wait until what is out holds that up."""
        self.stop.set()
        await self.until(lambda: self.status.state is State.DRAINING and self.publisher.waits_for_room)

    async def taken(self, rows: int) -> None:
        await self.until(lambda: self.intake.received >= rows)

    async def error(self) -> CdcOutboxError:
        with pytest.raises(CdcOutboxError) as raised:
            await self.running
        return raised.value


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(within())


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


def test_poison_ends_with_all_before_it_published_and_confirmed() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        keyless = insert([b"bad", b"order", None, b"placed", b"1", b"{}", None, None])
        session.stream.say(begin(0x200), row("b"), keyless, row("c"), commit(0x200))
        await session.until(lambda: session.publisher.inflight_events == 2)
        session.publisher.confirm(2)
        error = await session.error()
        assert isinstance(error, PoisonEvent)
        assert (error.event_id, error.lsn, error.seq) == ("bad", 0x200, 1)
        assert session.keys == [b"a", b"b"]
        assert session.stream.confirmed == 0x108

    run(test)


@pytest.mark.parametrize("policy", ["stop", "block"])
def test_a_server_that_shuts_down_is_not_kept_waiting_for_what_comes_before_poison(
    policy: Literal["stop", "block"],
) -> None:
    async def test() -> None:
        session = Session(replace(SETTINGS, delivery=replace(SETTINGS.delivery, on_poison=policy)))
        keyless = insert([b"bad", b"order", None, b"placed", b"1", b"{}", None, None])
        session.stream.say(begin(0x100), relation(), row("a"), keyless, commit(0x100))
        await session.until(lambda: session.publisher.waits_for_room)
        ends = PostgresShutdown("ends", next="wait")
        session.settlement.broken.set_exception(ends)
        async with asyncio.timeout(5):
            assert await session.error() is ends
        assert session.stream.closed

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


def test_a_table_that_cannot_be_mapped_ends_as_orderly_as_poison() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100), begin(0x200))
        session.stream.say(relation("outbox", OID, {"id": TEXT}))
        await session.until(lambda: session.publisher.inflight_events == 1)
        session.publisher.confirm()
        assert isinstance(await session.error(), MappingError)
        assert session.stream.confirmed == 0x108

    run(test)


def test_blocked_stays_up_and_says_so_and_ends_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCKED_FOR", 0.3)

    async def test() -> None:
        session = Session(replace(SETTINGS, delivery=replace(SETTINGS.delivery, on_poison="block")))
        keyless = insert([b"bad", b"order", None, b"placed", b"1", b"{}", None, None])
        session.stream.say(begin(0x100), relation(), keyless, row("c"), commit(0x100))
        await session.until(lambda: session.status.state is State.BLOCKED)
        assert "bad" in session.status.reason
        assert isinstance(await session.error(), PoisonEvent)
        assert session.flow.suspect == (0x100, 0)
        assert session.keys == []

    run(test)


def test_a_suspect_and_what_comes_before_it_go_one_by_one() -> None:
    async def test() -> None:
        session = Session(suspect=(0x200, 0))
        session.stream.say(begin(0x100), relation(), row("a"), row("b"), commit(0x100))
        session.stream.say(begin(0x200), row("c"), row("d"), commit(0x200))
        for count in (1, 2, 3):
            await session.until(lambda count=count: session.publisher.inflight_events == 1)  # type: ignore[misc]
            assert session.intake.received == count
            session.publisher.confirm()
        await session.taken(4)
        await session.until(lambda: session.publisher.inflight_events == 1)
        assert session.flow.suspect is None
        session.running.cancel()

    run(test)


def refused(lsn: int, seq: int) -> Unpublishable:
    return Unpublishable("too large", None, next="make it smaller", reason="too_large", lsn=lsn, seq=seq)


def test_a_record_that_the_bus_refuses_is_tried_alone_before_it_is_poison() -> None:
    async def test() -> None:
        session = Session()
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await session.taken(1)
        session.publisher.fail(refused(0x100, 0))
        assert isinstance(await session.error(), StartOver)
        assert session.flow.suspect == (0x100, 0)

        again = Session(suspect=session.flow.suspect)
        again.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await again.taken(1)
        again.publisher.fail(refused(0x100, 0))
        error = await again.error()
        assert isinstance(error, PoisonEvent)
        assert error.event_id == "a"

    run(test)


def test_a_record_that_the_bus_refuses_blocks_as_quietly_as_any_poison(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guard goes on, nothing else is tried, and only the minute's end ends it."""
    monkeypatch.setattr(module, "BLOCKED_FOR", 0.3)

    async def test() -> None:
        settings = replace(SETTINGS, delivery=replace(SETTINGS.delivery, on_poison="block"))
        session = Session(settings, suspect=(0x200, 0))
        session.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        session.stream.say(begin(0x200), row("b"), row("c"), commit(0x200))
        await session.taken(1)
        session.publisher.confirm()
        await session.taken(2)
        session.publisher.fail(refused(0x200, 0))
        await session.until(lambda: session.status.state is State.BLOCKED)
        assert session.stream.confirmed == 0x108
        began = asyncio.get_running_loop().time()
        error = await session.error()
        assert isinstance(error, PoisonEvent)
        assert error.event_id == "b"
        assert asyncio.get_running_loop().time() - began > 0.2
        assert session.intake.received == 2
        assert session.flow.suspect == (0x200, 0)

    run(test)


def test_a_stop_sends_nothing_along_with_a_suspect() -> None:
    """Reading on to the commit, it goes one by one as well: what the bus refuses must be known for sure."""

    async def test() -> None:
        session = Session(suspect=(0x100, 1))
        session.stream.say(begin(0x100), relation(), row("a"), row("b"), row("c"), row("d"), commit(0x100))
        await session.taken(1)
        await session.stopping_for_room()
        for rows in (1, 2):
            assert session.intake.received == rows
            session.publisher.confirm()
            await session.taken(rows + 1)
        await session.taken(4)
        session.publisher.confirm(2)
        await session.running
        assert session.keys == [b"a", b"b", b"c", b"d"]

    run(test)


def test_a_suspect_that_is_refused_after_a_stop_has_its_own_name() -> None:
    async def test() -> None:
        session = Session(suspect=(0x100, 0))
        session.stream.say(begin(0x100), relation(), row("a"), row("b"), commit(0x100))
        await session.taken(1)
        await session.stopping_for_room()
        session.publisher.fail(refused(0x100, 0))
        error = await session.error()
        assert isinstance(error, PoisonEvent)
        assert error.event_id == "a"
        assert session.publisher.inflight_events == 1

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
