"""The relay's metrics for Prometheus, read from the tally, the status and the last sample when they are asked for.

Nothing is counted here, so that being watched costs the relay nothing while nobody asks. Names are a contract; base
units; every label has few values: topics beyond the first hundred are `other`. What isn't known is absent, never 0: a
server that can't be asked has no `slot_*`, a slot without a limit has no time to its loss.

There is no number of pending rows, as polling relays have it: to count them would need a query on the table. What
waits is bytes of WAL (`slot_unconfirmed_wal_bytes`) and the age of the oldest commit
(`oldest_unacked_commit_age_seconds`).
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import cdc_outbox
from cdc_outbox.postgres.slot import WAL_STATUSES
from cdc_outbox.state import State
from cdc_outbox.tally import by_topic
from cdc_outbox.watch.exposition import (
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from cdc_outbox.watch.forecast import Outlook

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.metrics_core import Metric

    from cdc_outbox.mark import Marks
    from cdc_outbox.state import Status
    from cdc_outbox.tally import Histogram
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample
    from cdc_outbox.watch.sampler import Sampler

PREFIX: Final = "cdc_outbox_"
LEFT_OUT: Final = ("bus", "only", "sent", "foreign", "unknown_message")
"""Reasons of rows that are left out, which are there as 0 before the first; others come when they do."""

SET_ASIDE: Final = (
    *("headers", "key", "partition", "refused", "scheduled", "timestamp", "too_large", "topic"),
    "unknown_topic",
)
"""Reasons of dead letters, likewise."""


def registry(status: Status, sampler: Sampler) -> CollectorRegistry:
    """A registry of its own with all metrics of this relay."""
    made = CollectorRegistry(auto_describe=False)
    made.register(Metrics(status, sampler))
    return made


class Metrics:
    """Collects from where the numbers are."""

    def __init__(self, status: Status, sampler: Sampler) -> None:
        self._status = status
        self._sampler = sampler

    def describe(self) -> Sequence[Metric]:
        """Nothing: a registry asks for it when a collector is registered, long before there is a sample."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, those of the slot only while the last sample is fresh."""
        yield from self._process()
        yield from self._events()
        yield from self._waiting()
        if self._status.marks is not None:
            yield from _of_marks(self._status.marks)
        yield from self._connections()
        sample = self._sampler.fresh
        if sample is not None:
            yield from slot_metrics(sample, self._sampler.forecast)

    def _process(self) -> Iterator[Metric]:
        status = self._status
        yield _gauges("build_info", "The version that runs.", "version", {cdc_outbox.__version__: 1})
        states = {state.value: int(state is status.state) for state in State}
        yield _gauges("state", "What the relay is doing: 1 for its state, 0 for the others.", "state", states)
        yield _counters(
            "session_restarts",
            "Sessions that had streamed and ended with an error, so that another began.",
            "reason",
            status.tally.restarts,
        )

    def _events(self) -> Iterator[Metric]:
        status, tally = self._status, self._status.tally
        yield CounterMetricFamily(
            PREFIX + "events_received",
            "Rows of the outbox table that came from PostgreSQL.",
            value=status.events_received,
        )
        yield _counters(
            "events_published", "Events that Kafka has acknowledged.", "topic", by_topic(tally.published)
        )
        yield _counters(
            "published_bytes",
            "Bytes of the acknowledged record batches, before compression.",
            "topic",
            by_topic(tally.bytes),
        )
        skipped = dict.fromkeys(LEFT_OUT, 0) | status.events_skipped
        yield _counters("events_skipped", "Rows and messages that were left out by rule.", "reason", skipped)
        set_aside = dict.fromkeys(SET_ASIDE, 0)
        yield _counters("dead_letters", "Events that were set aside as dead letters.", "reason", set_aside)
        yield CounterMetricFamily(
            PREFIX + "rows_cleaned",
            "Old rows that the relay has removed from the outbox table.",
            value=tally.cleaned,
        )
        yield _counters(
            "cleanup_failures",
            "Times that the relay could not remove old rows.",
            "reason",
            tally.cleanup_failures,
        )
        yield _gauge("dead_letters_open", "Dead letters that wait for a person.", 0)
        yield _gauge("parked_keys", "Aggregates whose events are set aside behind a dead letter.", 0)
        yield _counters(
            "publish_errors",
            "Batches that Kafka refused or whose outcome is unknown.",
            "error",
            tally.publish_errors,
        )
        yield _histogram(
            "event_latency_seconds",
            "Seconds from a row's commit (PostgreSQL's clock) to Kafka's acknowledgement (the relay's).",
            tally.latency,
        )
        yield _histogram(
            "publish_duration_seconds",
            "Seconds from handing a batch to the Kafka client to its acknowledgement.",
            tally.publish_duration,
        )
        yield _histogram(
            "transaction_events",
            "Rows of a transaction that the publication lets through.",
            tally.transactions,
        )

    def _waiting(self) -> Iterator[Metric]:
        status = self._status
        events, size = status.inflight
        yield _gauge("inflight_events", "Events that were read and are not acknowledged.", events)
        yield _gauge("inflight_bytes", "Bytes of them in memory.", size)
        yield _gauge(
            "oldest_unacked_commit_age_seconds",
            "Seconds since the commit of the oldest event that is not acknowledged; 0 with nothing waiting.",
            status.oldest_unacknowledged(),
        )
        if status.tally.last_acknowledged is not None:
            yield _gauge(
                "last_ack_timestamp_seconds",
                "When Kafka acknowledged something last; absent before the first time.",
                status.tally.last_acknowledged,
            )

    def _connections(self) -> Iterator[Metric]:
        status, tally = self._status, self._status.tally
        reconnects = CounterMetricFamily(
            PREFIX + "reconnects",
            "Connections that were lost or refused, and made or tried again.",
            labels=("side", "reason"),
        )
        for (side, reason), count in tally.reconnects.items():
            reconnects.add_metric((side, reason), count)
        yield reconnects
        yield CounterMetricFamily(
            PREFIX + "keepalives_received", "Keepalives from PostgreSQL.", value=status.keepalives
        )
        yield CounterMetricFamily(
            PREFIX + "status_updates_sent", "Status updates to PostgreSQL.", value=status.status_updates
        )
        yield _counters(
            "guard_checks",
            "Looks at publication, slot and server before a confirmation.",
            "result",
            tally.guard_checks,
        )
        yield _counters(
            "push_failures",
            "Times that the metrics could not be pushed to an OpenTelemetry collector.",
            "reason",
            tally.push_failures,
        )


def _of_marks(marks: Marks) -> Iterator[Metric]:
    yield CounterMetricFamily(
        PREFIX + "mark_rows", "Rows that were marked as sent in the outbox table.", value=marks.marked
    )
    yield CounterMetricFamily(
        PREFIX + "mark_dropped",
        "Rows that are left to a search of the table, since too many waited, and those that can't be marked.",
        value=marks.dropped,
    )
    yield _counters("mark_failures", "Attempts to mark rows that failed.", "error", marks.failures)
    yield _gauge("mark_waiting", "Rows that wait to be marked, unconfirmed ones among them.", marks.waiting)


def slot_metrics(sample: Sample, forecast: Forecast | None) -> Iterator[Metric]:
    """What the last sample shows. A slot that isn't there is not active, and has no figures."""
    name, slot = sample.name, sample.slot
    publication_ok = sample.publication.problem is None
    yield _gauge("publication_ok", "Whether the publication hides no row of the table.", int(publication_ok))
    active = slot is not None and slot.active
    figures: dict[str, tuple[str, float | None]] = {
        "slot_active": ("Whether somebody streams from the slot.", int(active)),
        "slot_retained_wal_bytes": ("WAL on disk that is kept for the slot.", sample.retained),
        "slot_unconfirmed_wal_bytes": (
            "WAL behind the confirmed position: what is not delivered, or not ours.",
            sample.unconfirmed,
        ),
        "slot_safe_wal_bytes": (
            "WAL that may still be written before the slot can be lost; absent without a limit.",
            sample.safe,
        ),
        "slot_wal_limit_bytes": (
            "WAL that the slot may keep before it is lost; absent without a limit.",
            sample.limit,
        ),
        "slot_inactive_since_timestamp_seconds": (
            "Since when nobody streams from the slot; absent while somebody does.",
            None if active or slot is None else _inactive_since(sample, forecast),
        ),
        "slot_time_to_loss_seconds": (
            "Seconds until the slot is lost at the present rate of WAL; absent without a limit.",
            _time_to_loss(forecast),
        ),
        "slot_catalog_xmin_age": (
            "Transactions that began since the oldest whose catalogue rows are kept for the slot.",
            sample.catalog_xmin_age,
        ),
    }
    for metric, (help_text, value) in figures.items():
        if value is not None:
            yield _of_slot(GaugeMetricFamily, metric, help_text, name, value)
    if slot is not None and slot.wal_status is not None:
        family = GaugeMetricFamily(
            PREFIX + "slot_wal_status",
            "PostgreSQL's word on the slot's WAL: 1 for it, 0 for the others.",
            labels=("slot", "status"),
        )
        for status in WAL_STATUSES:
            family.add_metric((name, status), int(status == slot.wal_status))
        yield family
    if sample.spill is not None:
        yield _of_slot(
            CounterMetricFamily,
            "slot_spilled_bytes",
            "Bytes that decoding for the slot wrote to disk, by PostgreSQL's statistics.",
            name,
            sample.spill.bytes,
        )
    age = _oldest_transaction(sample)
    if age is not None:
        yield _gauge(
            "oldest_transaction_age_seconds",
            "Age of the oldest open transaction that has written; absent where the role may not see it.",
            age,
        )


def _inactive_since(sample: Sample, forecast: Forecast | None) -> float | None:
    at = sample.slot.inactive_since if sample.slot is not None else None
    if at is None and forecast is not None:
        at = forecast.inactive_at
    return at.timestamp() if at is not None else None


def _time_to_loss(forecast: Forecast | None) -> float | None:
    if forecast is None or forecast.basis is None:
        return None
    return float("inf") if forecast.loss is Outlook.NEVER else forecast.seconds_to_loss


def _oldest_transaction(sample: Sample) -> float | None:
    open_ones = [each for each in (sample.oldest, sample.oldest_prepared) if each is not None]
    if any(each.began is None for each in open_ones):
        return None
    ages = [(sample.at - each.began).total_seconds() for each in open_ones if each.began is not None]
    return max(0.0, *ages) if ages else 0.0


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, help_text, value=value)


def _of_slot(
    kind: type[GaugeMetricFamily | CounterMetricFamily], name: str, help_text: str, slot: str, value: float
) -> Metric:
    family = kind(PREFIX + name, help_text, labels=("slot",))
    family.add_metric((slot,), value)
    return family


def _gauges(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, help_text, labels=(label,))
    for word, value in values.items():
        family.add_metric((word,), value)
    return family


def _counters(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, help_text, labels=(label,))
    for word, count in counts.items():
        family.add_metric((word,), count)
    return family


def _histogram(name: str, help_text: str, histogram: Histogram) -> Metric:
    bounds = [*map(str, histogram.bounds), "+Inf"]
    below = accumulate(histogram.counts)
    return HistogramMetricFamily(
        PREFIX + name, help_text, buckets=list(zip(bounds, below, strict=True)), sum_value=histogram.sum
    )
