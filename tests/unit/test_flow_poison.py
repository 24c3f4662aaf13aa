"""An event that can't be published, or was refused by the bus: all before it is delivered, and its place is known."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Literal

import pytest

from cdc_outbox import flow as module
from cdc_outbox.errors import (
    MappingError,
    PoisonEvent,
    PostgresShutdown,
)
from cdc_outbox.publisher import StartOver, Unpublishable
from cdc_outbox.state import State
from tests.unit.flowing import SETTINGS, Session, run
from tests.unit.mapped import TEXT
from tests.unit.scripted import OID, begin, commit, insert
from tests.unit.taken import relation, row


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
