"""From which value on a signal is a warning, or critical.

Settings `health.warning.<signal>` and `health.critical.<signal>`, flags `--warning SIGNAL=VALUE` and `--critical …`;
`off` takes a threshold away. `cdc_outbox.settings.signal` has the signals and how their values are spelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_outbox.settings import HealthSettings


@dataclass(frozen=True, slots=True)
class Threshold:
    """The values from which a signal is a warning and critical, in the signal's unit; None: never."""

    warning: float | str | None
    critical: float | str | None


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of all signals."""

    retained: Threshold
    retained_bytes: Threshold
    retained_volume: Threshold
    time_to_loss: Threshold
    wal_status: Threshold
    inactive: Threshold
    oldest_unacknowledged: Threshold
    stalled: Threshold
    catalog_xmin_age: Threshold

    @classmethod
    def of(cls, settings: HealthSettings) -> Thresholds:
        """The defaults, and over them what the settings say (they are checked when they are read)."""
        raise NotImplementedError
