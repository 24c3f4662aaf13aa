"""What the rates of WAL mean for the slot, and what else its samples show over time: pure functions over samples.

A slot that is read and keeps up isn't lost at any rate, however much other tables write: its position moves on with
the WAL, and so does its copy on a standby. What nears its loss is a slot that nobody reads, one whose reader is slower
than the WAL grows, and one whose WAL is held by somebody's open transaction. The server may also give a slot up for
being idle, however little is kept.
"""

from __future__ import annotations

import enum
import math
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from cdc_outbox.postgres.witness import Witness
from cdc_outbox.watch.rates import Averages, Rates, confirmed

if TYPE_CHECKING:
    from cdc_outbox.lsn import LSN
    from cdc_outbox.watch.sample import Sample, Transaction

NOISE: Final = 1 << 20
"""Bytes that may be unconfirmed at any time: an idle relay doesn't write its witness for less than 64 KiB."""

CAUGHT_UP: Final = 1 << 17
"""Bytes of which no more waits where nothing does: those 64 KiB, and what was written a moment ago."""

CURRENT: Final = 30.0
"""Seconds that what a reader that keeps up has before it may be old: an idle one confirms every ten."""

HELD: Final = 60.0
"""Seconds for which WAL is kept behind the confirmed position in any case.

The server notes every 15 s which transactions are open, and keeps WAL from the last note that was confirmed.
"""

HELD_SEGMENTS: Final = 2
HELD_SHARE: Final = 0.25

RESTART: Final = 60.0
"""Seconds for which a slot may be without a reader, who is being restarted, until the server's patience counts."""

YOUNG: Final = 10.0
"""Seconds within which a transaction that only one sample has seen is taken for a passer-by."""


class Outlook(enum.Enum):
    """When something happens: it has happened, in so many seconds, never at this rate, or nobody can tell."""

    NOW = "now"
    IN = "in"
    NEVER = "never"
    UNKNOWN = "unknown"


class Basis(enum.Enum):
    """What the time to loss is measured against, and how it is known."""

    LIMIT = "max_slot_wal_keep_size"
    VOLUME = "the volume's size, and pg_wal's by pg_ls_waldir()"
    VOLUME_ESTIMATED = "the volume's size, and of pg_wal only what this slot keeps"
    IDLE = "idle_replication_slot_timeout"


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the samples so far say of the time to come.

    The seconds are None unless the outlook is NOW (0) or IN. `basis` is None where there is neither a limit nor a
    volume size. `left` is how many bytes there are until the loss, by limit or volume. `confirmed_at` is when the
    confirmed position was last seen to move, `caught_up_at` when no more than `CAUGHT_UP` was last seen unconfirmed,
    `inactive_at` since when the slot is seen inactive (None: it is active), `began` when the first sample was taken,
    `confirmed_before` the confirmed position of the sample before. `holder` is the transaction, open or prepared, that
    holds WAL back behind the confirmed position. `keeps_up`: the slot is read, and what is unconfirmed is no older than
    half a minute.
    """

    rates: Rates | None
    loss: Outlook
    seconds_to_loss: float | None
    caught_up: Outlook
    seconds_to_caught_up: float | None
    basis: Basis | None
    left: int | None
    confirmed_at: datetime | None
    caught_up_at: datetime | None
    inactive_at: datetime | None
    began: datetime
    confirmed_before: LSN | None
    holder: Transaction | None
    keeps_up: bool


class Course:
    """What the samples of one slot show over time. `volume`: bytes of the volume that holds pg_wal, if known."""

    def __init__(self, *, volume: int | None = None) -> None:
        self.volume = volume
        self._begin()

    def _begin(self) -> None:
        self._averages = Averages()
        self._last: Sample | None = None
        self._began: datetime | None = None
        self._confirmed_at: datetime | None = None
        self._caught_up_at: datetime | None = None
        self._inactive_at: datetime | None = None
        self._open: dict[int, datetime] = {}
        self._written: deque[tuple[datetime, LSN]] = deque()

    def add(self, sample: Sample) -> Forecast:
        """Take in a sample, which is later than those before, and tell what they say together.

        A server that went back in its WAL (a restore), another server, and a slot that was set back begin anew.
        """
        if self._last is not None and not _follows(self._last, sample):
            self._begin()
        last, self._last = self._last, sample
        began = self._began = self._began or sample.at
        if last is not None:
            self._averages.add(last, sample)
            if confirmed(sample) != confirmed(last):
                self._confirmed_at = sample.at
        if sample.unconfirmed is not None and sample.unconfirmed <= CAUGHT_UP:
            self._caught_up_at = sample.at
        active = sample.kept is not None and sample.kept.active
        self._inactive_at = None if active else self._inactive_at or sample.at
        candidates = [each for each in (sample.oldest, sample.oldest_prepared) if each is not None]
        self._open = {each.xid: self._open.get(each.xid, sample.at) for each in candidates}
        rates = self._averages.rates
        self._note(sample)
        holder = self._holder(sample, candidates, rates)
        current = keeps_up(sample, rates, self._ago(sample, CURRENT))
        left, basis = room(sample, self.volume)
        nearing = None
        stands = _age(sample, self._confirmed_at or _witnessed(sample) or began) >= CURRENT
        if rates is not None:
            nearing = approach(sample, rates, current=current, stands=stands, held=holder is not None)
        loss, seconds_to_loss = until_lost(sample, left, nearing)
        idle = until_given_up(sample)
        if idle is not None and (seconds_to_loss is None or idle < seconds_to_loss):
            loss, seconds_to_loss, basis = Outlook.IN if idle else Outlook.NOW, idle, Basis.IDLE
        caught_up, seconds_to_caught_up = until_caught_up(sample, rates, current=current, stands=stands)
        return Forecast(
            rates=rates,
            loss=loss,
            seconds_to_loss=seconds_to_loss,
            caught_up=caught_up,
            seconds_to_caught_up=seconds_to_caught_up,
            basis=basis,
            left=left,
            confirmed_at=self._confirmed_at,
            caught_up_at=self._caught_up_at,
            inactive_at=self._inactive_at,
            began=began,
            confirmed_before=None if last is None else confirmed(last),
            holder=holder,
            keeps_up=current,
        )

    def _note(self, sample: Sample) -> None:
        """Remember where the WAL ended, for a little longer than is asked for."""
        self._written.append((sample.at, sample.current_lsn))
        while len(self._written) > 1 and _age(sample, self._written[1][0]) >= HELD:
            self._written.popleft()

    def _ago(self, sample: Sample, seconds: float) -> LSN | None:
        """Where the WAL ended so many seconds ago, or a little longer; None where that wasn't seen."""
        passed = [lsn for at, lsn in self._written if _age(sample, at) >= seconds]
        return passed[-1] if passed else None

    def _holder(
        self, sample: Sample, candidates: list[Transaction], rates: Rates | None
    ) -> Transaction | None:
        """The oldest transaction that is no passer-by, where more WAL is kept than delivery needs.

        A slot that nobody reads moves on by nothing, whatever transactions are open.
        """
        if rates is None or sample.kept is None or not sample.kept.active:
            return None
        if not is_held(sample, rates, self._ago(sample, HELD)):
            return None
        old = [
            each
            for each in candidates
            if self._open[each.xid] < sample.at
            or (each.began is not None and _age(sample, each.began) >= YOUNG)
        ]
        return max(old, key=lambda each: each.xid_age, default=None)


def room(sample: Sample, volume: int | None) -> tuple[int | None, Basis | None]:
    """How many bytes of WAL can still be written before the slot can be lost or the volume is full, and by what."""
    if sample.limit is not None:
        return sample.safe, Basis.LIMIT
    if volume is None:
        return None, None
    if sample.wal_bytes is not None:
        return max(0, volume - sample.wal_bytes), Basis.VOLUME
    return max(0, volume - (sample.retained or 0)), Basis.VOLUME_ESTIMATED


def is_held(sample: Sample, rates: Rates, passed: LSN | None) -> bool:
    """Whether more WAL is kept behind the confirmed position than the server always keeps for a while.

    `passed`: where the WAL ended that while ago. Where that isn't known, the rate tells.
    """
    beyond, limit, slot = sample.held_beyond, sample.limit, sample.kept
    if beyond is None or slot is None or slot.restart_lsn is None:
        return False
    usual = float(HELD_SEGMENTS * sample.limits.segment)
    if passed is None:
        usual = max(usual, HELD * rates.wal)
    elif slot.restart_lsn >= passed:
        return False
    return beyond > (usual if limit is None else min(usual, HELD_SHARE * limit))


def keeps_up(sample: Sample, rates: Rates | None, passed: LSN | None) -> bool:
    """Whether the slot is moved on, and what is unconfirmed was written within half a minute.

    `passed`: where the WAL ended half a minute ago. Where that isn't known, the rate tells.
    """
    slot, unconfirmed = sample.kept, sample.unconfirmed
    if slot is None or not sample.is_moved or slot.confirmed_flush_lsn is None or unconfirmed is None:
        return False
    if unconfirmed <= NOISE:
        return True
    if passed is not None:
        return slot.confirmed_flush_lsn >= passed
    return rates is not None and unconfirmed <= CURRENT * rates.wal


def approach(sample: Sample, rates: Rates, *, current: bool, stands: bool, held: bool) -> float | None:
    """Bytes a second by which the slot nears its loss; never more than the rate of WAL.

    `current`: it keeps up. `stands`: nothing was confirmed for half a minute, whatever the averages remember. `held`: a
    transaction holds its WAL. None where the witness row tells of a confirmation within that half minute and none came
    while we looked: the next one will show how much it takes.
    """
    if not sample.is_moved or held:
        return rates.wal
    if current:
        return 0.0
    if stands or rates.confirmed_fast is None or rates.confirmed_slow is None:
        return rates.wal
    if not rates.confirmed_fast and _witnessed(sample) is not None:
        return None
    return max(0.0, rates.wal_fast - rates.confirmed_fast, rates.wal_slow - rates.confirmed_slow)


def until_lost(sample: Sample, left: int | None, nearing: float | None) -> tuple[Outlook, float | None]:
    """When the slot can be lost: `left` bytes from here, at so many bytes a second."""
    slot = sample.kept
    if slot is None:
        return Outlook.UNKNOWN, None
    if slot.lost or left == 0:
        return Outlook.NOW, 0.0
    if left is None or nearing is None:
        return Outlook.UNKNOWN, None
    return _until(left, nearing)


def until_given_up(sample: Sample) -> float | None:
    """Seconds until the next checkpoint may invalidate the slot for being idle; None where none does, or not for long.

    https://www.postgresql.org/docs/18/runtime-config-replication.html#GUC-IDLE-REPLICATION-SLOT-TIMEOUT
    """
    slot, timeout = sample.kept, sample.limits.idle
    if timeout is None or slot is None or slot.active or slot.inactive_since is None:
        return None
    if slot.lost or slot.restart_lsn is None or (sample.in_recovery and slot.synced):
        return None
    idle = _age(sample, slot.inactive_since)
    return max(0.0, timeout - idle) if idle >= min(RESTART, timeout / 2) else None


def until_caught_up(
    sample: Sample, rates: Rates | None, *, current: bool, stands: bool
) -> tuple[Outlook, float | None]:
    """When everything that is written will be confirmed, as fast as it is confirmed now.

    A reader of an idle outbox confirms every ten seconds: that none came in one or two says nothing.
    """
    slot, unconfirmed = sample.kept, sample.unconfirmed
    if slot is None or unconfirmed is None:
        return Outlook.UNKNOWN, None
    if unconfirmed == 0:
        return Outlook.NOW, 0.0
    if slot.lost or not sample.is_moved:
        return Outlook.NEVER, None
    if current:
        return Outlook.NOW, 0.0
    if stands:
        return Outlook.NEVER, None
    if rates is None or not rates.confirmed_fast:
        return Outlook.UNKNOWN, None
    return _until(unconfirmed, max(0.0, rates.confirmed_fast - rates.wal_fast))


def _witnessed(sample: Sample) -> datetime | None:
    """When the slot was last confirmed, as the witness row says: it is written just before."""
    return sample.witness.updated_at if isinstance(sample.witness, Witness) else None


def _age(sample: Sample, at: datetime) -> float:
    return (sample.at - at).total_seconds()


def _until(size: int, rate: float) -> tuple[Outlook, float | None]:
    seconds = size / rate if rate > 0 else math.inf
    return (Outlook.IN, seconds) if math.isfinite(seconds) else (Outlook.NEVER, None)


def _follows(last: Sample, sample: Sample) -> bool:
    """Whether a sample tells of the same server and slot, further on."""
    was, now = confirmed(last), confirmed(sample)
    return (
        last.system_identifier == sample.system_identifier
        and last.timeline == sample.timeline
        and last.current_lsn <= sample.current_lsn
        and last.at <= sample.at
        and (was is None or now is None or was <= now)
    )
