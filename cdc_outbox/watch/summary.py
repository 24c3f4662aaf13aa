"""A health in one line for a pager: what slot and delivery do, what is wrong, and what is kept on disk. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import Basis, Outlook
from cdc_outbox.watch.health import Level

if TYPE_CHECKING:
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.health import Check, Culprit, Delivery
    from cdc_outbox.watch.sample import Sample

_SAID: Final = frozenset(
    {
        "slot",
        "inactive",
        "relay",
        "wal_status",
        "retained",
        "retained_bytes",
        "retained_volume",
        "time_to_loss",
    }
)
"""Checks that the line's first and last clauses speak of already; wal_status where nothing is as bad."""


def kept(sample: Sample, volume: int | None) -> str:
    """What the slot keeps, and of how much."""
    retained = sample.retained
    if retained is None:
        return "WAL kept: not known"
    if sample.limit is not None:
        of = f" of {words.size(sample.limit)} ({words.share(retained / sample.limit)})"
    elif volume is not None:
        of = f", no limit, on a volume of {words.size(volume)} ({words.share(retained / volume)})"
    else:
        of = ", no limit"
    return f"WAL kept {words.size(retained)}{of}"


def loss(sample: Sample, forecast: Forecast) -> str:
    """When the slot is lost."""
    what = "lost" if forecast.basis in (None, Basis.LIMIT, Basis.IDLE) else "the volume full"
    if forecast.loss is Outlook.NOW:
        lost = sample.kept is not None and sample.kept.lost
        return "lost" if lost else f"{what} at any moment"
    if forecast.loss is Outlook.NEVER:
        return f"never {what} at this rate"
    seconds = forecast.seconds_to_loss or 0.0
    if forecast.basis is Basis.IDLE:
        return f"lost in about {words.duration(seconds)} by {Basis.IDLE.value}"
    assert forecast.rates is not None  # noqa: S101 - there is no other time without a rate
    return f"{what} in about {words.duration(seconds)} at {words.rate(forecast.rates.wal)}"


def advice(sample: Sample) -> str | None:
    """What would be better some other way, though nothing is wrong."""
    if sample.kept is None or sample.limits.slot_keep is not None:
        return None
    return (
        "without max_slot_wal_keep_size a slot that nobody reads fills the disk and stops the server;"
        " set it to what the volume can spare: alter system set max_slot_wal_keep_size = '…';"
        " select pg_reload_conf();"
    )


def summary(
    checks: Sequence[Check],
    sample: Sample,
    forecast: Forecast,
    delivery: Delivery,
    culprit: Culprit | None,
    volume: int | None,
) -> str:
    """First what the slot and its delivery do, then what is wrong, then disk."""
    by_name = {each.name: each for each in checks}
    found = by_name["slot"]
    if found.status is not Level.OK:
        clauses = [found.message]
        if sample.kept is not None and len(checks) > 1 and sample.retained is not None:
            clauses.append(kept(sample, volume))
        return "; ".join(clauses)
    clauses = [_doing(by_name, sample, forecast, delivery)]
    clauses += [
        each.message
        for each in sorted(checks, key=lambda each: -each.status.gravity)
        if each.name not in _SAID and each.status in (Level.WARNING, Level.CRITICAL)
    ]
    if forecast.holder is not None and culprit is not None:
        clauses.append(culprit.message)
    others = [each.status.gravity for each in checks if each.name != "wal_status"]
    wal_status = by_name.get("wal_status")
    if wal_status is not None and wal_status.status.gravity > max(others):
        clauses.append(wal_status.message)
    disk = kept(sample, volume)
    if forecast.loss in (Outlook.IN, Outlook.NOW):
        disk = f"{disk}, {loss(sample, forecast)}"
    return "; ".join([*clauses, disk])


def _doing(by_name: dict[str, Check], sample: Sample, forecast: Forecast, delivery: Delivery) -> str:
    if sample.kept is None or not sample.kept.active:
        return by_name["inactive"].message if not sample.in_recovery else "on a standby, read by nobody"
    if delivery.state not in (None, "streaming"):
        reason = f" ({delivery.reason})" if delivery.reason else ""
        return f"{delivery.state}{reason}"
    late = by_name["oldest_unacknowledged"].status in (Level.WARNING, Level.CRITICAL)
    if forecast.caught_up is Outlook.NOW and not late:
        # An event that is stuck is no more than this, and only its relay knows of it.
        rest = sample.unconfirmed if delivery.state is None else 0
        return f"active, caught up but for {words.size(rest)}" if rest else "active, caught up"
    waiting = f"active, {words.size(sample.unconfirmed or 0)} not confirmed"
    if late:
        return waiting
    if forecast.caught_up is Outlook.IN:
        return f"{waiting}, caught up in about {words.duration(forecast.seconds_to_caught_up or 0)}"
    if forecast.caught_up is Outlook.NEVER:
        return f"{waiting}, never caught up at this rate"
    return waiting
