"""When a settlement's rounds begin, by a clock that jumps from one timer to the next."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.settlement import FIRST, Settlement


class Clock(asyncio.SelectorEventLoop):
    """A loop in which nothing takes time but waiting, and waiting none of ours."""

    def __init__(self) -> None:
        self.now = 0.0
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                loop.now += timeout or 0.0
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


async def rounds(takes: float, interval: float, *, lost_at: float | None = None) -> list[float]:
    """When the first four begin. `takes`: the seconds of each; `lost_at`: when the control connection ends."""
    loop = asyncio.get_running_loop()
    lost = loop.create_future()
    if lost_at is not None:
        loop.call_at(lost_at, lost.set_result, None)
    admission = SimpleNamespace(
        control=SimpleNamespace(lost=lost), guarded=lambda _stream: None, witness=None, position=None
    )
    settlement = Settlement(
        cast(Any, admission), cast(Any, None), Ledger(), cast(Any, None), interval=interval
    )
    began: list[float] = []

    async def settle(*, everything: bool) -> None:
        began.append(round(loop.time(), 6))
        admission.control = SimpleNamespace(lost=loop.create_future())
        if len(began) == 4:
            raise EOFError
        await asyncio.sleep(takes)

    settlement._settle = settle  # type: ignore[method-assign]
    with pytest.raises(EOFError):
        await settlement.run(asyncio.Event())
    return began


def told(takes: float, interval: float, *, lost_at: float | None = None) -> list[float]:
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(rounds(takes, interval, lost_at=lost_at))


def test_rounds_begin_an_interval_apart_however_long_each_takes() -> None:
    assert told(0.0, 1.0) == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    assert told(0.5, 1.0) == [FIRST, FIRST + 1, FIRST + 2, FIRST + 3]
    assert told(2.0, 1.0) == [FIRST, FIRST + 2, FIRST + 4, FIRST + 6]


def test_the_first_never_waits_longer_than_an_interval() -> None:
    assert told(0.0, 0.1) == [0.1, 0.2, 0.3, 0.4]


def test_a_lost_control_connection_begins_a_round_at_once() -> None:
    assert told(0.0, 1.0, lost_at=0.1)[0] == 0.1
