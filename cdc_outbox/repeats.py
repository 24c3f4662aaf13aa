"""Which lines of the log are worth saying again.

A server that comes and goes every few seconds would fill the log with the same changes, and hide all else in it. So a
line is said when it is new, and a few times more; while it goes on to come, it is said once a minute, with the number
of those that were held back. A minute without it makes it new again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FEW: Final = 5
"""How often a line is said at once."""

AGAIN: Final = 60.0
"""Seconds between two of the same line from then on, and without it until it is new."""


@dataclass(slots=True)
class _Line:
    came: float
    said_at: float
    said: int = 0
    held_back: int = 0


class Repeats:
    """What was said in the last minute, and how often."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}

    def say(self, to: Callable[..., None], event: str, of: str, /, **fields: object) -> bool:
        """Give `to`, a method of a log, the event with its fields, unless it is held back; whether it was said.

        `of` tells events of one name apart, as far as a reader would.
        """
        now = time.monotonic()
        line = self._line(event, of, now)
        if line.said >= FEW and now - line.said_at < AGAIN:
            line.held_back += 1
            return False
        self._give(to, event, line, now, fields)
        return True

    def insist(self, to: Callable[..., None], event: str, of: str, /, **fields: object) -> None:
        """As `say`, but it is said in any case."""
        now = time.monotonic()
        self._give(to, event, self._line(event, of, now), now, fields)

    def _line(self, event: str, of: str, now: float) -> _Line:
        line = self._lines.get((event, of))
        if line is None or now - line.came >= AGAIN:
            self._lines = {key: each for key, each in self._lines.items() if now - each.came < AGAIN}
            line = self._lines[event, of] = _Line(now, now, held_back=line.held_back if line else 0)
        line.came = now
        return line

    def _give(
        self, to: Callable[..., None], event: str, line: _Line, now: float, fields: dict[str, object]
    ) -> None:
        beside = {"held_back": line.held_back} if line.held_back else {}
        line.said_at, line.said, line.held_back = now, line.said + 1, 0
        to(event, **fields, **beside)
