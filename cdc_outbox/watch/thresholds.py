"""From which value on a signal is a warning, or critical.

Settings `health.warning.<signal>` and `health.critical.<signal>`, flags `--warning SIGNAL=VALUE` and `--critical …`;
`off` takes a threshold away. `cdc_outbox.settings.signal` has the signals and how their values are spelled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdc_outbox.settings.signal import threshold

if TYPE_CHECKING:
    from cdc_outbox.settings import HealthSettings


@dataclass(frozen=True, slots=True)
class Threshold:
    """The values from which a signal is a warning and critical, in the signal's unit; None: never."""

    warning: float | str | None
    critical: float | str | None


DEFAULTS: Final = {
    "retained": ("50%", "75%"),
    "retained_bytes": ("1GiB", "5GiB"),
    "retained_volume": ("10%", "25%"),
    "time_to_loss": ("6h", "1h"),
    "wal_status": ("extended", "unreserved"),
    "inactive": ("1m", "10m"),
    "oldest_unacknowledged": ("30s", "5m"),
    "stalled": ("1m", "5m"),
    "catalog_xmin_age": ("100M", "500M"),
}
"""Warning and critical as one writes them."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of all signals.

    `retained` is a share of max_slot_wal_keep_size, `retained_volume` one of the volume; `retained_bytes` counts where
    neither is known. `time_to_loss` is reached from above, all others from below.
    """

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
    def of(cls, settings: HealthSettings | None = None) -> Thresholds:
        """The defaults, and over them what the settings say (they are checked when they are read)."""
        warning = settings.warning if settings is not None else {}
        critical = settings.critical if settings is not None else {}
        return cls(
            **{
                signal: Threshold(
                    threshold(signal, warning.get(signal, by_default[0])),
                    threshold(signal, critical.get(signal, by_default[1])),
                )
                for signal, by_default in DEFAULTS.items()
            }
        )
