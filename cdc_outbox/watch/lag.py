"""Delivery: who reads from the slot, and for how long what waits has waited. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_outbox.postgres.witness import Witness
from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import NOISE
from cdc_outbox.watch.health import Check, Level
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.verdict import above, good, measured, unknown

if TYPE_CHECKING:
    from cdc_outbox.watch.subject import Subject


def _untold(subject: Subject) -> str:
    refusal = subject.delivery.refusal
    return (
        f"the relay tells us nothing: {refusal}"
        if refusal
        else "the relay's /status is not reachable from here"
    )


def inactive_for(subject: Subject) -> tuple[float | None, str]:
    """For how many seconds nobody has read from the slot, and whether that is exact, at most or at least."""
    sample, slot = subject.sample, subject.sample.kept
    if slot is None or slot.active:
        return None, ""
    if slot.inactive_since is not None:
        return subject.since(slot.inactive_since), ""
    seen = subject.forecast.inactive_at
    if seen is not None and seen > subject.forecast.began:
        return subject.since(seen), ""
    if isinstance(sample.witness, Witness) and sample.witness.updated_at is not None:
        return subject.since(sample.witness.updated_at), "at most "
    if seen is not None and seen < sample.at:
        return subject.since(seen), "at least "
    return None, ""


def inactive(subject: Subject) -> Check:
    """Whether somebody reads from the slot, and since when nobody does."""
    slot, threshold = subject.kept, subject.thresholds.inactive
    if slot.active:
        return good("inactive", "somebody reads from the slot", threshold)
    if subject.sample.in_recovery:
        return good("inactive", "nobody reads from a slot on a standby", threshold)
    seconds, how = inactive_for(subject)
    start = subject.next
    if not subject.ours and subject.known is not Known.NAMED:
        start += ", or the tool that reads from this slot"
    if subject.sample.slot is None:
        start = f"cdc-outbox init --slot {subject.sample.name}"
    if seconds is None:
        message = (
            f"inactive, and PostgreSQL {subject.sample.version // 10000} doesn't tell since when:"
            " there is no witness row either"
        )
        return Check(
            "inactive",
            Level.UNKNOWN,
            None,
            threshold.warning,
            threshold.critical,
            message,
            start,
            counts=True,
        )
    status = above(seconds, threshold)
    if how == "at least " and status is Level.OK:
        status = Level.UNKNOWN
    message = f"inactive for {how}{words.duration(seconds)}"
    return Check(
        "inactive", status, seconds, threshold.warning, threshold.critical, message, start, counts=True
    )


def relay(subject: Subject) -> Check:
    """Whether the relay, where it could be asked, says that it can't deliver: at once, whatever its age."""
    state, reason = subject.delivery.state, subject.delivery.reason
    if state is None:
        return unknown("relay", f"not known: {_untold(subject)}")
    message = f"the relay says {state}" + (f": {reason}" if reason else "")
    level = Level.WARNING if subject.delivery.stuck else Level.OK
    return Check("relay", level, state, None, None, message, subject.next)


def oldest(subject: Subject) -> Check:
    """How old the oldest commit is that Kafka has not acknowledged, as the relay says."""
    seconds, threshold = (
        subject.delivery.oldest_unacknowledged_seconds,
        subject.thresholds.oldest_unacknowledged,
    )
    name = "oldest_unacknowledged"
    if seconds is None:
        state = subject.delivery.state
        why = f"the relay says {state}, and reads nothing" if state is not None else _untold(subject)
        return unknown(name, f"not known: {why}", threshold)
    message = (
        f"the oldest commit without an acknowledgement is {words.duration(seconds)} old{_trouble(subject)}"
    )
    return measured(name, seconds, threshold, message, subject.next)


def stalled(subject: Subject) -> Check:
    """Whether what waits has waited without any acknowledgement."""
    threshold, forecast = subject.thresholds.stalled, subject.forecast
    unconfirmed = subject.sample.unconfirmed
    if unconfirmed is None or unconfirmed <= NOISE:
        return measured("stalled", 0.0, threshold, "no more than 1 MiB is not confirmed", None)
    witness = subject.sample.witness
    known = [subject.delivery.last_acknowledged_at, forecast.confirmed_at, forecast.caught_up_at]
    known += [witness.updated_at] if isinstance(witness, Witness) else []
    times = [each for each in known if each is not None]
    seconds = subject.since(max(times) if times else forecast.began)
    if forecast.rates is not None and forecast.rates.wal > 0:
        # What waits is no older than the time in which so much WAL was written.
        seconds = min(seconds, unconfirmed / forecast.rates.wal) if forecast.keeps_up else seconds
    for_so_long = f"no acknowledgement for {words.duration(seconds)}{_trouble(subject)}"
    message = f"{words.size(unconfirmed)} not confirmed, and {for_so_long}"
    check = measured("stalled", seconds, threshold, message, subject.next)
    if not times and check.status is Level.OK and not forecast.keeps_up:
        return replace(check, status=Level.UNKNOWN, value=None)
    return check


def _trouble(subject: Subject) -> str:
    return f" ({subject.delivery.trouble})" if subject.delivery.trouble else ""
