"""The health of a slot and its delivery: one status, the checks behind it, and one next step.

`document` is what `health --json` prints; docs/reference/health.schema.json describes it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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
    step that would mend it, None where it is well. `counts`: it makes the whole unknown where it is so itself.
    """

    name: str
    status: Level
    value: float | str | None
    warning: float | str | None
    critical: float | str | None
    message: str
    next: str | None = None
    counts: bool = True


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


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the running relay says of itself, by its `/status` or within its process; None: not known.

    `oldest_unacknowledged_seconds` is 0 with nothing waiting. `state` is one of the relay's states, `reason` says in
    words why it is in it.
    """

    oldest_unacknowledged_seconds: float | None = None
    last_acknowledged_at: datetime | None = None
    state: str | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Health:
    """The answer for one slot. `summary` is the line for a pager, without slot and status.

    `sample` and `forecast` are None where the server could not be asked.
    """

    slot: str
    status: Level
    summary: str
    checks: tuple[Check, ...]
    next: str | None
    culprit: Culprit | None
    sample: Sample | None
    forecast: Forecast | None
    delivery: Delivery
    volume: int | None = None

    def document(self) -> dict[str, Any]:
        """As `health --json` prints it: plain values, times in ISO 8601 with Z."""
        raise NotImplementedError
