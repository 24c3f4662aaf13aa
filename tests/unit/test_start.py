"""How `start` ends a relay that somebody else has ended."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox import memory, relay
from cdc_outbox.cli import ending, start
from cdc_outbox.errors import DrainExceeded
from cdc_outbox.settings import load
from cdc_outbox.watch import watching

OPTIONS = {"accept_gap": False, "until_caught_up": False, "fail_fast": False}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Runs `start` with a relay that does one thing and then waits for ever."""

    def run(happens: Callable[[], None]) -> None:
        class Relay:
            status = None

            def __init__(self, *_: object, **__: object) -> None:
                pass

            async def run(self) -> None:
                happens()
                await asyncio.get_running_loop().create_future()

            def stop(self) -> None:
                os.kill(os.getpid(), signal.SIGTERM)  # the second comes when the first is heard

        @asynccontextmanager
        async def unwatched(*_: object, **__: object) -> AsyncIterator[None]:
            yield

        monkeypatch.setattr(relay, "Relay", Relay)
        monkeypatch.setattr(watching, "watching", unwatched)
        monkeypatch.setattr(memory, "keep_flat", lambda: True)
        monkeypatch.setattr(memory, "settle", lambda: None)
        monkeypatch.setattr(ending, "settled", lambda: None)
        settings = load("start", {}, {}, Path("/nonexistent"))
        options: Any = OPTIONS
        before = {which: signal.getsignal(which) for which in ending.SIGNALS}
        try:
            asyncio.run(start._start(settings, None, **options))
        finally:
            for which, handler in before.items():
                signal.signal(which, handler)

    return run


def test_a_cancel_without_a_signal_is_passed_on(play: Callable[[Callable[[], None]], None]) -> None:
    def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        play(cancelled)


def test_a_second_signal_is_named(play: Callable[[Callable[[], None]], None]) -> None:
    with pytest.raises(DrainExceeded, match="SIGTERM came a second time"):
        play(lambda: os.kill(os.getpid(), signal.SIGTERM))
