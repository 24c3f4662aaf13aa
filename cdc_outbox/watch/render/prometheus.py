"""Health as a file for the node exporter's textfile collector: the metrics of the relay's own `/metrics` on a slot.

https://github.com/prometheus/node_exporter#textfile-collector
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.watch.exposition import CollectorRegistry, GaugeMetricFamily, text
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.metrics import PREFIX, slot_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client.metrics_core import Metric
    from prometheus_client.samples import Sample

    from cdc_outbox.watch.health import Health

PUBLICATION_OK: Final = f"{PREFIX}publication_ok"


def prometheus(healths: Sequence[Health]) -> str:
    """One or several slots, without the last line's end."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Healths(healths))
    return text(registry).decode().rstrip("\n")


class _Healths:
    """Collects the metrics of several slots into one family each."""

    def __init__(self, healths: Sequence[Health]) -> None:
        self._healths = healths

    def describe(self) -> Sequence[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for health in self._healths:
            for family in _of(health):
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples = _together(family.name, known.samples, family.samples)
        yield from families.values()


def _together(name: str, known: Sequence[Sample], more: Sequence[Sample]) -> list[Sample]:
    """One sample for each set of labels: what has no slot's name is the server's, but for publications the worst."""
    if name == PUBLICATION_OK:
        return [min(*known, *more, key=lambda sample: sample.value)]
    there = [sample.labels for sample in known]
    return [*known, *(each for each in more if each.labels not in there)]


def _of(health: Health) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        PREFIX + "slot_health",
        "The health of slot and delivery: 1 for its status, 0 for the others.",
        labels=("slot", "status"),
    )
    for level in Level:
        family.add_metric((health.slot, level.value), int(level is health.status))
    yield family
    if health.sample is None:
        return
    for each in slot_metrics(health.sample, health.forecast):
        if each.name != PUBLICATION_OK or not health.foreign_publication:
            yield each
