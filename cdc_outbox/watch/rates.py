"""How fast WAL is written and confirmed, by the samples of one slot. Pure.

Rates are two time-weighted exponential averages, one that forgets within minutes and one within hours, of which the
larger counts: a burst is taken seriously at once, and the quiet after it doesn't make one forget it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc_outbox.lsn import LSN
    from cdc_outbox.watch.sample import Sample

FAST: Final = 300.0
"""Seconds in which the fast average forgets all but a third."""

SLOW: Final = 21_600.0
"""The same of the slow one."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second, fast and slow average; never negative. The confirmed ones are None where there was no slot."""

    wal_fast: float
    wal_slow: float
    confirmed_fast: float | None
    confirmed_slow: float | None

    @property
    def wal(self) -> float:
        """The rate of WAL that counts."""
        return max(self.wal_fast, self.wal_slow)


class Average:
    """A rate's exponential average over irregular intervals, right from the first one on."""

    def __init__(self, memory: float) -> None:
        """`memory`: seconds after which an interval weighs a third."""
        self._memory = memory
        self._sum = self._weight = 0.0

    def add(self, rate: float, seconds: float) -> None:
        """Take in that it went at this rate for so many seconds, more than 0."""
        new = -math.expm1(-seconds / self._memory)
        self._sum = self._sum * (1 - new) + rate * new
        self._weight = self._weight * (1 - new) + new

    @property
    def value(self) -> float | None:
        """The average, in the unit of the rates; None before there is an interval."""
        return self._sum / self._weight if self._weight else None


class Averages:
    """How fast WAL is written and confirmed, by the samples of one slot."""

    def __init__(self) -> None:
        self._wal = Average(FAST), Average(SLOW)
        self._confirmed = Average(FAST), Average(SLOW)

    def add(self, before: Sample, sample: Sample) -> None:
        """Take in the time between two samples of one server, `sample` being later."""
        seconds = (sample.at - before.at).total_seconds()
        if seconds <= 0:
            return
        written = sample.current_lsn.bytes_since(before.current_lsn)
        for average in self._wal:
            average.add(written / seconds, seconds)
        was, now = confirmed(before), confirmed(sample)
        if was is not None and now is not None:
            for average in self._confirmed:
                average.add(now.bytes_since(was) / seconds, seconds)

    @property
    def rates(self) -> Rates | None:
        """None before there are two samples."""
        (fast, slow), (confirmed_fast, confirmed_slow) = self._wal, self._confirmed
        if fast.value is None or slow.value is None:
            return None
        return Rates(fast.value, slow.value, confirmed_fast.value, confirmed_slow.value)


def confirmed(sample: Sample) -> LSN | None:
    """How far the slot of a sample is confirmed; None where there is none, or nothing is known."""
    return None if sample.kept is None else sample.kept.confirmed_flush_lsn
