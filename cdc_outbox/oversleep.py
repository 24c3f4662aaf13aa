"""A process that was stopped for a while learns of it before anything else.

SIGSTOP, a frozen container, a suspended machine: for the process no time has passed, for everybody else it has. What
was ready before goes on as if nothing had been, though another relay may have taken over meanwhile. So the clock is
read each time that the event loop has waited, ahead of whatever it then does. What a turn of the loop was in the midst
of when it was stopped is done all the same.
"""

from __future__ import annotations

import asyncio
import selectors
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_outbox import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _Selector(selectors.DefaultSelector):
    """Calls `told` with the seconds since the last turn, when they were more than `limit`."""

    def __init__(self) -> None:
        super().__init__()
        self.limit: float | None = None
        self.told: Callable[[float], None] = lambda _seconds: None
        self.turned = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(timeout)
        if self.limit is not None:
            now = clock.passing()
            passed, self.turned = now - self.turned, now
            if passed > self.limit:
                self.told(passed)
        return ready


class Loop(asyncio.SelectorEventLoop):
    """An event loop that notices, and whose end waits for no thread."""

    def __init__(self) -> None:
        self.pauses = _Selector()
        super().__init__(self.pauses)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - asyncio's own
        """Nothing: the last word isn't to wait for a thread that hangs, and closing the loop lets the others go."""


@contextmanager
def noticed(limit: float, told: Callable[[float], None]) -> Iterator[None]:
    """Call `told` at once when more than `limit` seconds passed between two turns of the loop, with how many.

    There have to be turns more often than that, so something must tick. In a loop of another kind nothing is noticed.
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop):
        yield
        return
    pauses = loop.pauses
    pauses.told, pauses.turned, pauses.limit = told, clock.passing(), limit
    try:
        yield
    finally:
        pauses.limit = None
