"""The clock of the status updates, by a clock that the test moves: nothing here waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_outbox import pulse
from cdc_outbox.errors import PostgresShutdown, PostgresUnavailable
from tests.unit.scripted import ScriptedStream


class End(Exception):
    """The test has seen enough."""


class Beating:
    """A pulse over a scripted stream, for so many seconds of its own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, sender_timeout: float = 60.0) -> None:
        self.now = 1000.0
        self.end = self.now
        self.sender_timeout = sender_timeout
        self.intake = SimpleNamespace(shutdown_signs=False)
        self.sent: list[tuple[float, bool]] = []
        self.each: Callable[[], None] = lambda: None
        monkeypatch.setattr(pulse, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(pulse, "asyncio", SimpleNamespace(sleep=self.sleep))

    async def sleep(self, seconds: float) -> None:
        for _, ask in self.stream.statuses[len(self.sent) :]:
            self.sent.append((self.now - 1000, ask))
        self.now += seconds
        self.each()
        if self.now > self.end:
            raise End

    def run(self, seconds: float) -> list[tuple[float, bool]]:
        """Seconds since the start, and whether a reply was asked for, of each status update."""

        async def beat() -> None:
            self.stream = ScriptedStream()
            self.stream.sender_timeout = self.sender_timeout
            self.end = self.now + seconds
            await pulse.beat(cast(Any, self.stream), cast(Any, self.intake))

        with pytest.raises(End):
            asyncio.run(beat())
        return self.sent


def test_it_speaks_at_once_and_asks_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Beating(monkeypatch).run(35)
    asked = [at for at, ask in sent if ask]
    assert asked[0] == 0
    assert len(asked) == 4
    assert all(10 <= later - earlier < 10.2 for earlier, later in itertools.pairwise(asked))


@pytest.mark.parametrize(("timeout", "every"), [(0.0, 10.0), (60.0, 10.0), (6.0, 2.0), (2.0, 2 / 3)])
def test_it_speaks_three_times_within_the_servers_patience(
    timeout: float, every: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = [at for at, _ in Beating(monkeypatch, sender_timeout=timeout).run(30)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(sent)]
    assert max(gaps) <= every + 2 * pulse.TICK
    assert len(sent) <= 30 / every + 6


@pytest.mark.parametrize("timeout", [0.1, 0.2, 0.25, 0.35, 0.4, 0.7, 1.0, 2.0])
def test_a_server_of_little_patience_has_no_reason_to_ask(
    timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks when it has heard nothing for half of it."""
    sent = [at for at, _ in Beating(monkeypatch, sender_timeout=timeout).run(20)]
    assert max(later - earlier for earlier, later in itertools.pairwise(sent)) < 0.45 * timeout


def test_it_answers_who_asks_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)
    quiet = len(Beating(monkeypatch).run(9))

    def ask() -> None:
        beating.stream.reply_due = 1003 < beating.now < 1004

    beating = Beating(monkeypatch)
    beating.each = ask
    answered = beating.run(9)
    assert quiet == 1
    assert 1 < len(answered) <= 12
    assert all(3 <= at < 4.1 for at, _ in answered[1:])


def test_silence_after_a_question_is_a_dead_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)

    def deaf() -> None:
        beating.stream.silence = beating.now - 1000

    beating.each = deaf
    with pytest.raises(PostgresUnavailable, match="15 s"):
        beating.run(60)
    assert 15 <= beating.now - 1000 < 15.5


def test_a_storm_of_questions_makes_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    beating = Beating(monkeypatch)

    def storm() -> None:
        beating.intake.shutdown_signs = beating.now > 1002

    beating.each = storm
    with pytest.raises(PostgresShutdown):
        beating.run(60)
    assert beating.now - 1000 < 2.5
