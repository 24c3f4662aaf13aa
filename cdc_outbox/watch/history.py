"""The last hour in points of ten seconds, and a line in the log for each minute in which something was delivered."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox import log
from cdc_outbox.watch.pace import Pace

if TYPE_CHECKING:
    from cdc_outbox.state import Status
    from cdc_outbox.watch.pace import Figures
    from cdc_outbox.watch.sampler import Sampler

_log = log.get(__name__)

STEP: Final = 10.0
"""Seconds that a point stands for."""

POINTS: Final = 360
MINUTE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """The `STEP` seconds before `at` (seconds since the epoch). Bytes are None where the slot wasn't seen."""

    at: float
    unconfirmed: int | None
    retained: int | None
    figures: Figures


class History:
    """Keeps the points, and says a line a minute."""

    def __init__(self, status: Status, sampler: Sampler) -> None:
        now = time.monotonic()
        self._status = status
        self._sampler = sampler
        self._step = Pace(status.tally, now)
        self._minute = Pace(status.tally, now)
        self._received = 0
        self._said = now
        self.points: deque[Point] = deque(maxlen=POINTS)

    async def run(self) -> None:
        """A point a step, by a clock that doesn't drift."""
        due = time.monotonic()
        while True:
            due = max(due + STEP, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            self.tick(time.monotonic())

    def tick(self, now: float) -> None:
        """A step is over; `now` in monotonic seconds."""
        self._status.remind()
        sample = self._sampler.fresh
        self.points.append(
            Point(
                at=time.time(),
                unconfirmed=sample.unconfirmed if sample else None,
                retained=sample.retained if sample else None,
                figures=self._step.take(now),
            )
        )
        if now - self._said >= MINUTE - STEP / 2:
            self._said = now
            self._say(self._minute.take(now))

    def _say(self, figures: Figures) -> None:
        """One line, unless the minute was idle. Its fields are named as the metrics are."""
        status = self._status
        received, before = status.events_received, self._received
        self._received = received
        if received == before and not figures.events:
            return
        events, size = status.inflight
        fields: dict[str, Any] = {
            "seconds": round(figures.seconds),
            "events_received": received - before,
            "events_published": figures.events,
            "events_per_second": round(figures.events_per_second, 1),
            "published_bytes": figures.bytes,
            "event_latency_seconds_p50": _rounded(figures.p50),
            "event_latency_seconds_p99": _rounded(figures.p99),
            "inflight_events": events,
            "inflight_bytes": size,
            "oldest_unacked_commit_age_seconds": _rounded(status.oldest_unacknowledged()),
        }
        sample = self._sampler.fresh
        if sample is not None:
            fields["slot_unconfirmed_wal_bytes"] = sample.unconfirmed
            fields["slot_retained_wal_bytes"] = sample.retained
        _log.info("delivered", slot=status.slot, **fields)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)
