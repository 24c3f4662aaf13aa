"""How fast WAL is written and confirmed, and what that means for the slot: pure functions over samples.

Rates are two time-weighted exponential averages, one that forgets within minutes and one within hours, of which the
larger counts: a burst is taken seriously at once, and the quiet after it doesn't make one forget it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cdc_outbox.watch.sample import Sample

FAST: Final = 300.0
"""Seconds in which the fast average forgets all but a third."""

SLOW: Final = 21_600.0
"""The same of the slow one."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes a second, fast and slow average; the confirmed ones None where there was no slot."""

    wal_fast: float
    wal_slow: float
    confirmed_fast: float | None
    confirmed_slow: float | None

    @property
    def wal(self) -> float:
        """The rate of WAL that counts."""
        return max(self.wal_fast, self.wal_slow)


class Outlook(enum.Enum):
    """When something happens: it has happened, in so many seconds, never at this rate, or nobody can tell."""

    NOW = "now"
    IN = "in"
    NEVER = "never"
    UNKNOWN = "unknown"


class Basis(enum.Enum):
    """What the time to loss is measured against."""

    LIMIT = "max_slot_wal_keep_size"
    VOLUME = "wal volume, pg_wal by pg_ls_waldir"
    VOLUME_ESTIMATED = "wal volume, pg_wal taken for what the slot keeps"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the samples so far say of the time to come.

    The seconds are None unless the outlook is NOW (0) or IN. `basis` is None where there is neither a limit nor a
    volume size. `left` is how many bytes there are until the loss, by that basis. `confirmed_at` is when the confirmed
    position was last seen to move, `inactive_at` since when the slot is seen inactive (None: it is active),
    `began` when the first sample was taken.
    """

    rates: Rates | None
    loss: Outlook
    seconds_to_loss: float | None
    caught_up: Outlook
    seconds_to_caught_up: float | None
    basis: Basis | None
    left: int | None
    confirmed_at: datetime | None
    inactive_at: datetime | None
    began: datetime


class Course:
    """What the samples of one slot show over time. `volume`: bytes of the volume that holds pg_wal, if known."""

    def __init__(self, *, volume: int | None = None) -> None:
        self.volume = volume

    def add(self, sample: Sample) -> Forecast:
        """Take in a sample, which is later than those before, and tell what they say together.

        A server that went back in its WAL (a restore, a failover) begins anew.
        """
        raise NotImplementedError
