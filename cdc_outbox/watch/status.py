"""The document of `/status`: all that is known of a running relay, in plain values, without a secret in it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import cdc_outbox
from cdc_outbox import faults
from cdc_outbox.instant import iso_seconds
from cdc_outbox.log import plain
from cdc_outbox.tally import by_topic
from cdc_outbox.watch.history import STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.mark import Marks
    from cdc_outbox.state import Status
    from cdc_outbox.watch.health import Health
    from cdc_outbox.watch.history import History, Point

SCHEMA_VERSION: Final = 1


def document(
    status: Status, health: Health | None, history: History, redact: Callable[[str], str]
) -> dict[str, Any]:
    """What `/status` says. Positions and times are text, times in ISO 8601 with Z; what isn't known is null."""
    events, size = status.inflight
    tally = status.tally
    latest = history.points[-1].figures if history.points else None
    said = plain(
        {
            "schema_version": SCHEMA_VERSION,
            "state": status.state.value,
            "reason": status.reason,
            "since": iso_seconds(status.since),
            "version": cdc_outbox.__version__,
            "slot": status.slot,
            "system_identifier": status.system_identifier,
            "health": health.document() if health is not None else None,
            "lsn": {
                "received": str(status.received),
                "confirmable": str(status.confirmable),
                "confirmed": str(status.confirmed),
            },
            "inflight": {"events": events, "bytes": size},
            "events": {
                "received": status.events_received,
                "published": tally.published.total(),
                "skipped": dict(status.events_skipped),
            },
            "topics": by_topic(tally.published),
            "marks": _marks(status.marks),
            "errors": [
                {"at": iso_seconds(each.at), "error": each.error, "next": each.next} for each in status.errors
            ],
            "mapping": status.mapping(),
            "faults": faults.points(),
            "delivery": {
                "oldest_unacknowledged_seconds": _rounded(status.oldest_known),
                "last_acknowledged_at": _known(tally.last_acknowledged),
                "confirmable_since": _known(status.confirmable_since),
            },
            "throughput": {"events_per_second": round(latest.events_per_second, 3) if latest else None},
            "latency": {
                "p50_seconds": latest.p50 if latest else None,
                "p99_seconds": latest.p99 if latest else None,
            },
        },
        redact,
    )
    assert isinstance(said, dict)  # noqa: S101 - as it went in
    return said | {
        "history": {"step_seconds": round(STEP), "points": [_point(each) for each in history.points]}
    }


def _marks(marks: Marks | None) -> dict[str, Any] | None:
    if marks is None:
        return None
    return {
        "marked": marks.marked,
        "waiting": marks.waiting,
        "dropped": marks.dropped,
        "failures": marks.failures.total(),
        "failing": marks.failing,
        "searching": marks.search_wanted,
    }


def _known(seconds: float | None) -> str | None:
    return None if seconds is None else iso_seconds(seconds)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _point(point: Point) -> dict[str, Any]:
    figures = point.figures
    return {
        "at": iso_seconds(point.at),
        "unconfirmed_bytes": point.unconfirmed,
        "retained_bytes": point.retained,
        "events_per_second": round(figures.events_per_second, 3),
        "p50_seconds": figures.p50,
        "p99_seconds": figures.p99,
    }
