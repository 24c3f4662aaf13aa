"""Disk: what the server keeps for the slot, and when that costs the slot. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.postgres import slot as slots
from cdc_outbox.postgres.remedy import recover
from cdc_outbox.watch import culprit as culprits
from cdc_outbox.watch import summary as summaries
from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import Outlook
from cdc_outbox.watch.health import Check, Level
from cdc_outbox.watch.thresholds import Threshold
from cdc_outbox.watch.verdict import above, measured, unknown

if TYPE_CHECKING:
    from cdc_outbox.watch.subject import Subject


def wal_status(subject: Subject) -> Check:
    """PostgreSQL's own word on the slot's WAL."""
    threshold, status = subject.thresholds.wal_status, subject.kept.wal_status
    if status not in slots.WAL_STATUSES:
        return unknown("wal_status", f"wal_status is {status or 'not known'}", threshold)
    level = above(
        slots.WAL_STATUSES.index(status), Threshold(_rank(threshold.warning), _rank(threshold.critical))
    )
    return Check(
        "wal_status",
        level,
        status,
        threshold.warning,
        threshold.critical,
        f"wal_status is {status}",
        _next(subject),
    )


def retained(subject: Subject) -> Check:
    """What is kept for the slot: of its limit, else of the volume, else in bytes."""
    sample, retained = subject.sample, subject.sample.retained
    if sample.limit is not None:
        name, threshold, whole = "retained", subject.thresholds.retained, sample.limit
    elif subject.volume is not None:
        name, threshold, whole = "retained_volume", subject.thresholds.retained_volume, subject.volume
    else:
        name, threshold, whole = "retained_bytes", subject.thresholds.retained_bytes, None
    if retained is None:
        return unknown(name, "not known", threshold)
    value = retained if whole is None else retained / whole
    return measured(name, value, threshold, summaries.kept(sample, subject.volume), _next(subject))


def time_to_loss(subject: Subject) -> Check:
    """How long until the slot can be lost, at the present rate."""
    threshold, forecast = subject.thresholds.time_to_loss, subject.forecast
    if forecast.loss is Outlook.UNKNOWN:
        message = "not known: two samples are needed"
        if forecast.rates is not None:
            message = "not known yet: nothing was confirmed in the moment that was looked at"
        if forecast.basis is None:
            message = (
                "not known: there is no max_slot_wal_keep_size, and PostgreSQL doesn't know the size of"
                " its volume; say it with --wal-volume-size"
            )
        return unknown("time_to_loss", message, threshold)
    seconds = forecast.seconds_to_loss
    level = Level.OK
    if seconds is not None:
        level = above(-seconds, Threshold(_negative(threshold.warning), _negative(threshold.critical)))
    return Check(
        "time_to_loss",
        level,
        seconds,
        threshold.warning,
        threshold.critical,
        "the slot is lost" if subject.kept.lost else summaries.loss(subject.sample, forecast),
        _next(subject),
    )


def catalog_xmin(subject: Subject) -> Check:
    """How far VACUUM of the catalogue is held back by the slot."""
    age, threshold = subject.sample.catalog_xmin_age, subject.thresholds.catalog_xmin_age
    if age is None:
        return unknown("catalog_xmin_age", "the slot holds no catalog_xmin", threshold)
    message = f"catalog_xmin is {words.count(age)} transactions old, and VACUUM of the catalogue waits for it"
    return measured("catalog_xmin_age", age, threshold, message, _next(subject))


def _next(subject: Subject) -> str:
    """The step that lets WAL go, by who keeps it."""
    culprit, name = culprits.find(subject.sample, subject.forecast), subject.sample.name
    if culprit is not None and culprit.kind != "slot":
        return culprit.next
    if subject.sample.slot is None:
        return slots.unfinished(name)
    if subject.kept.lost:
        return recover(name)
    return subject.next


def _rank(word: float | str | None) -> float | None:
    return None if word is None else slots.WAL_STATUSES.index(str(word))


def _negative(value: float | str | None) -> float | None:
    return None if value is None else -float(value)
