"""How far a long command is: one line in place on a terminal, a line every ten seconds elsewhere, on stderr.

Where that can't be written nobody hears it, and the command goes on.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from cdc_outbox.cli.streams import say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from cdc_outbox.postgres.blocker import Blocker

IN_PLACE = 0.2
"""Seconds between two lines on a terminal."""

APART = 10.0
"""The same elsewhere."""

WINDOW = 15.0
"""Seconds whose rate tells how long it will take."""

_BAR = 24


class Progress:
    """The progress of one command. `what` names what is counted; `total` is 0 where nobody knows it.

    Made for a `with` block, at whose end the line in place is wiped out.
    """

    def __init__(
        self,
        what: str,
        total: int = 0,
        *,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.total = total
        self._what = what
        self._stream = stream or sys.stderr
        self._now = now
        self._terminal = self._stream.isatty()
        self._due = now() + (IN_PLACE if self._terminal else APART)
        self._seen: deque[tuple[float, int]] = deque([(now(), 0)])
        self._shown = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.clear()

    def moved(self, done: int) -> None:
        """So many are done by now. Cheap: it may be called for every few."""
        now = self._now()
        if now < self._due:
            return
        self._due = now + (IN_PLACE if self._terminal else APART)
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= WINDOW:
            self._seen.popleft()
        line = self.line(done)
        self._write(f"\r\x1b[K{line}" if self._terminal else f"{line}\n")
        self._shown = True

    def line(self, done: int) -> str:
        """The line as it is now."""
        began, first = self._seen[0]
        passed = self._seen[-1][0] - began
        rate = (done - first) / passed if passed > 0 else 0.0
        parts = [f"{done:,} {self._what}".replace(",", " ")]
        if self.total:
            share = min(1.0, done / self.total)
            parts = [f"{100 * share:3.0f} %", f"{done:,} of {self.total:,} {self._what}".replace(",", " ")]
            if self._terminal:
                filled = round(share * _BAR)
                parts.insert(0, f"[{'#' * filled}{'-' * (_BAR - filled)}]")
        parts.append(f"{rate:,.0f}/s".replace(",", " "))
        if rate and self.total > done:
            parts.append(f"{duration((self.total - done) / rate)} left")
        return "  ".join(parts)

    def clear(self) -> None:
        """Wipe out the line in place, before something else is written."""
        if self._terminal and self._shown:
            self._write("\r\x1b[K")
            self._shown = False

    def _write(self, text: str) -> None:
        with suppress(OSError):
            self._stream.write(text)
            self._stream.flush()


class Phases:
    """The progress of a command that counts one thing after the other. Made for a `with` block."""

    def __init__(self, *, stream: TextIO | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._now = now
        self._what = ""
        self._progress: Progress | None = None

    def __enter__(self) -> Phases:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.clear()

    def moved(self, what: str, done: int, total: int) -> None:
        """So many of what is counted now are done, of `total`, which is 0 where nobody knows it."""
        if self._progress is None or what != self._what:
            if self._progress is not None:
                self._progress.clear()
            self._what, self._progress = what, Progress(what, stream=self._stream, now=self._now)
        self._progress.total = total
        self._progress.moved(done)


def held_up(blockers: Iterable[Blocker]) -> None:
    """One line, on stderr, about the transactions that hold the creation of the slot up."""
    say(f"waiting for open transactions: {'; '.join(map(str, blockers))}")


def duration(seconds: float) -> str:
    """Seconds for a person: `7 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
