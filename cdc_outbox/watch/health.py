"""The health of a slot and its delivery: one status, the checks behind it, and one next step.

`document` is what `health --json` prints; docs/reference/health.schema.json describes it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.instant import iso

if TYPE_CHECKING:
    from cdc_outbox.postgres.witness import Incident
    from cdc_outbox.watch.forecast import Forecast
    from cdc_outbox.watch.sample import Sample

SCHEMA_VERSION: Final = 1


class Level(enum.Enum):
    """How bad it is, in the words and with the exit codes of the monitoring plug-ins."""

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"
    UNKNOWN = "unknown"

    @property
    def exit_code(self) -> int:
        """0 ok, 1 warning, 2 critical, 3 unknown: https://www.monitoring-plugins.org/doc/guidelines.html"""
        return (Level.OK, Level.WARNING, Level.CRITICAL, Level.UNKNOWN).index(self)

    @property
    def gravity(self) -> int:
        """The larger, the worse: critical, warning, unknown, ok."""
        return (Level.OK, Level.UNKNOWN, Level.WARNING, Level.CRITICAL).index(self)


def worst(levels: Sequence[Level]) -> Level:
    """The gravest of some levels; ok where there are none."""
    return max(levels, key=lambda level: level.gravity, default=Level.OK)


@dataclass(frozen=True, slots=True)
class Check:
    """One signal against its thresholds.

    `name` is the signal's, as in `--warning SIGNAL=VALUE`. `value`, `warning` and `critical` are in the signal's own
    unit (seconds, bytes, a share of 1, a count, or a word), None where unknown or without a threshold. `next` is the
    step that would mend it. `counts`: where it is unknown, so is the whole, unless that is worse.
    """

    name: str
    status: Level
    value: float | str | None
    warning: float | str | None
    critical: float | str | None
    message: str
    next: str | None = None
    counts: bool = False

    def document(self) -> dict[str, Any]:
        value = _round(self.value) if isinstance(self.value, float) else self.value
        return {
            "name": self.name,
            "status": self.status.value,
            "value": value,
            "warning": self.warning,
            "critical": self.critical,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Culprit:
    """Who holds WAL back besides the relay: an open transaction, a prepared one, or another slot.

    `kind` is `transaction`, `prepared_transaction` or `slot`. `held_bytes` is what is kept for it.
    """

    kind: str
    pid: int | None
    gid: str | None
    slot: str | None
    user: str | None
    application: str | None
    database: str | None
    age_seconds: float | None
    query_start: datetime | None
    held_bytes: int
    message: str
    next: str

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "pid": self.pid,
            "gid": self.gid,
            "slot": self.slot,
            "user": self.user,
            "application": self.application,
            "database": self.database,
            "age_seconds": _round(self.age_seconds),
            "query_start": _time(self.query_start),
            "held_bytes": self.held_bytes,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the running relay says of itself, by its `/status` or within its process; None: not known.

    `oldest_unacknowledged_seconds` is 0 with nothing waiting. `state` is one of the relay's states, `reason` says in
    words why it is in it. `trouble` is its last error, if something waits, and `next` the step for that, or for the
    reason where it is stuck. `refusal` is why it tells us nothing, though it answers.
    """

    oldest_unacknowledged_seconds: float | None = None
    last_acknowledged_at: datetime | None = None
    state: str | None = None
    reason: str | None = None
    trouble: str | None = None
    next: str | None = None
    refusal: str | None = None

    @property
    def stuck(self) -> bool:
        """Whether the relay says that it delivers nothing for now."""
        return self.state in ("held", "blocked")


@dataclass(frozen=True, slots=True)
class Health:
    """The answer for one slot. `summary` is the line for a pager, without slot and status.

    `sample` and `forecast` are None where the server could not be asked. `inactive_seconds`: since when nobody reads
    from the slot, None while somebody does and where it isn't known. `incidents` stand in the witness row.
    `foreign_publication`: it isn't known through which one the slot is read, perhaps by another tool. `advice` is what
    would be better some other way, though nothing is wrong. `volume`: bytes of the volume that holds pg_wal.
    """

    slot: str
    status: Level
    summary: str
    checks: tuple[Check, ...]
    next: str | None
    culprit: Culprit | None
    sample: Sample | None
    forecast: Forecast | None
    delivery: Delivery = field(default_factory=Delivery)
    inactive_seconds: float | None = None
    incidents: tuple[Incident, ...] = ()
    foreign_publication: bool = False
    advice: str | None = None
    volume: int | None = None

    def document(self) -> dict[str, Any]:
        """As `health --json` prints it: plain values, times in ISO 8601 with Z. What isn't known is null."""
        return {
            "schema_version": SCHEMA_VERSION,
            "status": self.status.value,
            "summary": self.summary,
            "at": None if self.sample is None else _time(self.sample.at),
            "slot": _slot(self.slot, self.sample, self.inactive_seconds),
            "limits": _limits(self.sample, self.volume),
            "rate": _rate(self.forecast),
            "forecast": _forecast(self.forecast),
            "publication": _publication(self),
            "delivery": {
                "oldest_unacknowledged_seconds": _round(self.delivery.oldest_unacknowledged_seconds),
                "last_acknowledged_at": _time(self.delivery.last_acknowledged_at),
                "state": self.delivery.state,
                "reason": self.delivery.reason,
            },
            "incidents": [incident.as_json() for incident in self.incidents],
            "culprit": None if self.culprit is None else self.culprit.document(),
            "checks": [check.document() for check in self.checks],
            "next": self.next,
            "advice": self.advice,
        }


def several(healths: Sequence[Health]) -> dict[str, Any]:
    """The document of several slots; its status is the gravest of theirs."""
    return {
        "schema_version": SCHEMA_VERSION,
        "status": worst([health.status for health in healths]).value,
        "slots": [health.document() for health in healths],
    }


def _slot(name: str, sample: Sample | None, inactive_seconds: float | None) -> dict[str, Any]:
    slot = None if sample is None else sample.kept
    if sample is None or slot is None:
        empty = dict.fromkeys(_SLOT_KEYS)
        return empty | {"name": name, "exists": None if sample is None else False}
    return {
        "name": name,
        "exists": sample.slot is not None,
        "pending": sample.slot is None,
        "active": slot.active,
        "active_pid": slot.active_pid,
        "plugin": slot.plugin,
        "database": slot.database,
        "wal_status": slot.wal_status,
        "restart_lsn": _text(slot.restart_lsn),
        "confirmed_flush_lsn": _text(slot.confirmed_flush_lsn),
        "retained_bytes": sample.retained,
        "unconfirmed_bytes": sample.unconfirmed,
        "safe_wal_bytes": sample.safe,
        "inactive_since": None if slot.active else _time(slot.inactive_since),
        "inactive_seconds": _round(inactive_seconds),
        "invalidation_reason": slot.invalidation_reason,
        "failover": slot.failover,
        "synced": slot.synced,
        "catalog_xmin_age": sample.catalog_xmin_age,
        "spilled_bytes": None if sample.spill is None else sample.spill.bytes,
        "holder": None
        if sample.holder is None
        else {
            "pid": sample.holder.pid,
            "user": sample.holder.user,
            "application": sample.holder.application,
            "since": _time(sample.holder.since),
        },
    }


_SLOT_KEYS: Final = (
    "name",
    "exists",
    "pending",
    "active",
    "active_pid",
    "plugin",
    "database",
    "wal_status",
    "restart_lsn",
    "confirmed_flush_lsn",
    "retained_bytes",
    "unconfirmed_bytes",
    "safe_wal_bytes",
    "inactive_since",
    "inactive_seconds",
    "invalidation_reason",
    "failover",
    "synced",
    "catalog_xmin_age",
    "spilled_bytes",
    "holder",
)


def _limits(sample: Sample | None, volume: int | None) -> dict[str, Any]:
    return {
        "max_slot_wal_keep_bytes": None if sample is None else sample.limits.slot_keep,
        "wal_volume_bytes": volume,
        "wal_directory_bytes": None if sample is None else sample.wal_bytes,
    }


def _rate(forecast: Forecast | None) -> dict[str, Any]:
    rates = None if forecast is None else forecast.rates
    return {
        "wal_bytes_per_second": None if rates is None else _round(rates.wal),
        "confirmed_bytes_per_second": None if rates is None else _round(rates.confirmed_fast),
    }


def _forecast(forecast: Forecast | None) -> dict[str, Any]:
    if forecast is None:
        return {
            "loss": "unknown",
            "seconds_to_loss": None,
            "caught_up": "unknown",
            "seconds_to_caught_up": None,
            "basis": None,
        }
    return {
        "loss": forecast.loss.value,
        "seconds_to_loss": _round(forecast.seconds_to_loss),
        "caught_up": forecast.caught_up.value,
        "seconds_to_caught_up": _round(forecast.seconds_to_caught_up),
        "basis": None if forecast.basis is None else forecast.basis.value,
    }


def _publication(health: Health) -> dict[str, Any]:
    sample = health.sample
    if sample is None:
        return {"name": None, "ok": None, "problem": None}
    state = sample.publication
    if health.foreign_publication:
        return {"name": None, "ok": None, "problem": None}
    return {"name": state.name, "ok": state.problem is None, "problem": state.problem}


def _text(value: object | None) -> str | None:
    return None if value is None else str(value)


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _time(at: datetime | None) -> str | None:
    return None if at is None else iso(at)
