"""A pause of the whole process is told before anything that was ready meanwhile is done."""

from __future__ import annotations

import asyncio

import pytest

from cdc_outbox import oversleep


class Clock:
    """Stands in for the module `clock`."""

    def __init__(self) -> None:
        self.now = 100.0

    def passing(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(oversleep, "clock", clock)
    return clock


def happened(clock: Clock, *pauses: float, loop_factory: type[asyncio.AbstractEventLoop]) -> list[object]:
    """What was told and done in three turns, each with such a pause before."""
    events: list[object] = []

    async def work() -> None:
        with oversleep.noticed(15.0, events.append):
            for pause in pauses:
                clock.now += pause
                await asyncio.sleep(0)
                events.append("done")
        clock.now += 1000
        await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(work())
    return events


def test_a_pause_is_told_before_what_was_ready_is_done(clock: Clock) -> None:
    assert happened(clock, 0.1, 20.0, 15.0, loop_factory=oversleep.Loop) == ["done", 20.0, "done", "done"]


def test_another_kind_of_loop_notices_nothing(clock: Clock) -> None:
    assert happened(clock, 20.0, loop_factory=asyncio.SelectorEventLoop) == ["done"]
