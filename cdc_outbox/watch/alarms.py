"""When a signal crosses a threshold and when it comes back: each once, not with every sample. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc_outbox.watch.health import Level

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_outbox.watch.health import Check, Health

CALM: Final = 3
"""Samples in a row that have to be better, before that is said: a value on its threshold would fill the log."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A check that is on another level than was said last; `was` is that level."""

    check: Check
    was: Level

    @property
    def worse(self) -> bool:
        """Whether the signal is graver than it was."""
        return self.check.status.gravity > self.was.gravity


ITS_OWN: Final = frozenset({"slot", "inactive", "relay"})
"""What the relay itself logs, with the reason and the step that it knows: that it is stuck, or has no slot to read."""


class Alarms:
    """The levels that were said last."""

    def __init__(self) -> None:
        self._said: dict[str, Level] = {}
        self._better: dict[str, int] = {}

    def look(self, health: Health) -> Iterator[Crossing]:
        """What has to be said of a new sample's health. What is unknown says nothing either way."""
        for check in health.checks:
            if check.name in ITS_OWN:
                continue
            was = self._said.get(check.name, Level.OK)
            if check.status is Level.UNKNOWN or check.status is was:
                self._better.pop(check.name, None)
                continue
            if check.status.gravity < was.gravity:
                calm = self._better.get(check.name, 0) + 1
                if calm < CALM:
                    self._better[check.name] = calm
                    continue
            self._better.pop(check.name, None)
            self._said[check.name] = check.status
            yield Crossing(check, was)
