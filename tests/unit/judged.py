"""A course of samples, judged: what `health` says of a slot, without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.settings import HealthSettings
from cdc_outbox.watch.checks import judge
from cdc_outbox.watch.forecast import Course
from cdc_outbox.watch.health import Check, Delivery, Health
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.sample import Sample
from cdc_outbox.watch.thresholds import Thresholds
from tests.unit.sampled import AT, START, sample, slot

WITNESS = Witness("outbox_slot", "7", 1, LSN(START), updated_at=AT)


def judged(
    *course: Sample,
    delivery: Delivery | None = None,
    warning: dict[str, str] | None = None,
    critical: dict[str, str] | None = None,
    volume: int | None = None,
    known: Known = Known.NAMED,
) -> Health:
    followed = Course(volume=volume)
    *_, forecast = [followed.add(each) for each in course]
    thresholds = Thresholds.of(HealthSettings(warning or {}, critical or {}))
    return judge(course[-1], forecast, thresholds, delivery, volume=volume, known=known)


def check(health: Health, name: str) -> Check:
    return next(each for each in health.checks if each.name == name)


def stopped(seconds: float, **changes: Any) -> Sample:
    """A slot that nobody reads for so many seconds, with everything else well."""
    given = sample(**changes)
    since = given.at - timedelta(seconds=seconds)
    return replace(given, slot=slot(active=False, active_pid=None, inactive_since=since))
