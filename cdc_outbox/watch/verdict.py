"""A check as it comes out: well, unknown, bad whatever the figures are, or by a figure and its threshold. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.watch.health import Check, Level

if TYPE_CHECKING:
    from cdc_outbox.watch.thresholds import Threshold


def good(name: str, message: str, threshold: Threshold | None = None) -> Check:
    """Nothing is wrong."""
    warning, critical = (None, None) if threshold is None else (threshold.warning, threshold.critical)
    return Check(name, Level.OK, None, warning, critical, message)


def unknown(name: str, message: str, threshold: Threshold | None = None) -> Check:
    """Nobody can tell."""
    warning, critical = (None, None) if threshold is None else (threshold.warning, threshold.critical)
    return Check(name, Level.UNKNOWN, None, warning, critical, message)


def bad(name: str, message: str, remedy: str) -> Check:
    """Critical, whatever the thresholds are."""
    return Check(name, Level.CRITICAL, None, None, None, message, remedy)


def above(value: float, threshold: Threshold) -> Level:
    """How bad a value is that is the worse the larger it is."""
    if isinstance(threshold.critical, float | int) and value >= threshold.critical:
        return Level.CRITICAL
    if isinstance(threshold.warning, float | int) and value >= threshold.warning:
        return Level.WARNING
    return Level.OK


def measured(name: str, value: float, threshold: Threshold, message: str, remedy: str | None) -> Check:
    """A figure, by its threshold. `remedy`: what would mend it."""
    return Check(name, above(value, threshold), value, threshold.warning, threshold.critical, message, remedy)
