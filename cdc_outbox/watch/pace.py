"""What was delivered since the last look: events a second, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_outbox.tally import quantile

if TYPE_CHECKING:
    from cdc_outbox.tally import Tally


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a span of `seconds`: events and bytes that the bus acknowledged, and seconds from commit to that."""

    seconds: float
    events: int
    bytes: int
    p50: float | None
    p99: float | None

    @property
    def events_per_second(self) -> float:
        """0 for a span of no time."""
        return self.events / self.seconds if self.seconds > 0 else 0.0


class Pace:
    """Takes figures from a tally, each time those since the time before. `now`: monotonic seconds."""

    def __init__(self, tally: Tally, now: float) -> None:
        self._tally = tally
        self._at = now
        self._events = tally.published.total()
        self._bytes = tally.bytes.total()
        self._counts = tuple(tally.latency.counts)

    def take(self, now: float) -> Figures:
        """The figures since the last call."""
        tally = self._tally
        events, size, counts = tally.published.total(), tally.bytes.total(), tuple(tally.latency.counts)
        since = [count - before for count, before in zip(counts, self._counts, strict=True)]
        bounds = tally.latency.bounds
        figures = Figures(
            seconds=now - self._at,
            events=events - self._events,
            bytes=size - self._bytes,
            p50=quantile(bounds, since, 0.5),
            p99=quantile(bounds, since, 0.99),
        )
        self._at, self._events, self._bytes, self._counts = now, events, size, counts
        return figures
