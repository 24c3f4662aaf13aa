"""The rate limit: how many rows may be taken now, so that a relay that catches up doesn't flatten what is behind it."""

from __future__ import annotations

import time
from typing import Final

_UNLIMITED: Final = 1 << 62


class RateLimit:
    """A bucket that holds a tenth of a second's rows, at least one."""

    def __init__(self, per_second: float | None) -> None:
        self._per_second = per_second
        self._room = max(1.0, per_second / 10) if per_second else 0.0
        self._tokens = self._room
        self._filled = time.monotonic()

    def rows(self) -> int:
        """Rows that may be taken now."""
        if not self._per_second:
            return _UNLIMITED
        now = time.monotonic()
        self._tokens = min(self._room, self._tokens + (now - self._filled) * self._per_second)
        self._filled = now
        return int(self._tokens)

    def took(self, rows: int) -> None:
        """So many were taken."""
        self._tokens -= rows

    @property
    def wait(self) -> float:
        """Seconds until the next row may be taken."""
        return (1.0 - self._tokens) / self._per_second if self._per_second and self._tokens < 1.0 else 0.0
