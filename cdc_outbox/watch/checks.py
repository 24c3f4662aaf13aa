"""From a sample to a judgement: every signal against its thresholds, the culprit, and one next step. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.watch.health import Delivery, Health

if TYPE_CHECKING:
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample
    from cdc_outbox.watch.thresholds import Thresholds


def judge(
    sample: Sample,
    forecast: Forecast,
    thresholds: Thresholds,
    delivery: Delivery | None = None,
    *,
    volume: int | None = None,
    named: bool = True,
) -> Health:
    """Judge the slot by a sample and what the course of samples says (`Course.add`).

    `delivery`: what the relay says of itself, None where it could not be asked. `volume`: size in bytes of the volume
    that holds pg_wal. `named`: the publication has to be there, for we stream or a person named it; else one that is
    missing is unknown for a slot that some other tool seems to own.
    """
    raise NotImplementedError


def unreachable(slot: str, error: CdcOutboxError, *, last: Sample | None = None) -> Health:
    """The health where the server could not be asked: critical, or unknown where it refuses to answer us.

    `last` is the last sample that there was, for its evidence; its age is told.
    """
    raise NotImplementedError
