"""From a sample to a judgement: every signal against its thresholds, the culprit, and one next step. Pure.

Two lags are kept apart. What is unconfirmed is delivery: the relay, Kafka, or nobody. What is kept beyond that is disk:
somebody's open transaction or another slot, which is named and not blamed on the relay.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.watch import bars, disk, lag
from cdc_outbox.watch import culprit as culprits
from cdc_outbox.watch import summary as summaries
from cdc_outbox.watch.health import Check, Delivery, Health, Level, worst
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.subject import Subject
from cdc_outbox.watch.thresholds import Thresholds

if TYPE_CHECKING:
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample


def judge(
    sample: Sample,
    forecast: Forecast,
    thresholds: Thresholds,
    delivery: Delivery | None = None,
    *,
    volume: int | None = None,
    known: Known = Known.NAMED,
) -> Health:
    """Judge the slot by a sample and what the course of samples says (`Course.add`).

    `delivery`: what the relay says of itself, None where it could not be asked. `volume`: size in bytes of the volume
    that holds pg_wal. `known`: how it is known that the slot is read through the sample's publication. Where it is no
    more than the default, one that is missing is unknown for a slot that some other tool seems to own.
    """
    delivery = delivery or Delivery()
    subject = Subject(sample, forecast, thresholds, delivery, volume, known)
    checks = [bars.slot(subject)]
    if sample.kept is not None and sample.kept.here and sample.kept.slot_type == "logical":
        checks += _of_the_slot(subject)
    culprit = culprits.find(sample, forecast)
    status = worst([each.status for each in checks if each.counts or each.status is not Level.UNKNOWN])
    remedies = [each.next for each in checks if each.status is status and each.next is not None]
    return Health(
        slot=sample.name,
        status=status,
        summary=summaries.summary(checks, sample, forecast, delivery, culprit, volume),
        checks=tuple(checks),
        next=remedies[0] if remedies and status is not Level.OK else None,
        culprit=culprit,
        sample=sample,
        forecast=forecast,
        delivery=delivery,
        inactive_seconds=lag.inactive_for(subject)[0],
        incidents=sample.witness.incidents if isinstance(sample.witness, Witness) else (),
        foreign_publication=subject.foreign_publication,
        advice=summaries.advice(sample),
        volume=volume,
    )


def _of_the_slot(subject: Subject) -> Iterator[Check]:
    """In the order of causes: the first bad one of a kind has the next step."""
    yield bars.synchronous_standby(subject)
    yield bars.publication(subject)
    yield from bars.incidents(subject)
    yield bars.position(subject)
    yield lag.inactive(subject)
    yield bars.standbys(subject)
    yield lag.relay(subject)
    yield lag.oldest(subject)
    yield lag.stalled(subject)
    yield disk.wal_status(subject)
    yield disk.retained(subject)
    yield disk.time_to_loss(subject)
    yield disk.catalog_xmin(subject)


def unreachable(slot: str, error: CdcOutboxError, *, last: Sample | None = None) -> Health:
    """The health where the server could not be asked: critical, or unknown where it refuses to answer us.

    `last` is the last sample that there was. Its figures are not told as if they were today's, only when it was.
    """
    status = Level.CRITICAL if isinstance(error, PostgresUnavailable) else Level.UNKNOWN
    summary = str(error)
    if last is not None:
        summary = f"{summary}; last seen {last.at:%Y-%m-%d %H:%M:%S}Z"
    check = Check("server", status, None, None, None, str(error), error.next)
    return Health(slot, status, summary, (check,), error.next, None, None, None)


def unasked(slot: str, error: str, remedy: str) -> Health:
    """The health that nobody could look at, for settings or flags are wrong; `slot` is empty where it isn't known."""
    check = Check("settings", Level.UNKNOWN, None, None, None, error, remedy)
    return Health(slot or "slot not known", Level.UNKNOWN, error, (check,), remedy, None, None, None)
