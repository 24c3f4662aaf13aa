"""How long to wait before trying again: doubling from `initial` to `max`, with jitter so that many relays spread."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_outbox.settings import RetrySettings


class Backoff:
    """Seconds between tries. The jitter takes away up to half, so that `max` is kept."""

    def __init__(self, settings: RetrySettings) -> None:
        self._settings = settings
        self._next = settings.initial

    def seconds(self) -> float:
        """The next wait."""
        now = self._next
        self._next = min(self._settings.max, now * 2)
        return now * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """It worked."""
        self._next = self._settings.initial
