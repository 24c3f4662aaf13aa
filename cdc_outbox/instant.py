"""Moments as they are counted and as they are written: µs since 1970, and ISO 8601 in UTC with a `Z`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def iso(moment: datetime, precision: Literal["milliseconds", "microseconds"] = "milliseconds") -> str:
    """`2024-01-17T13:14:10.250Z`, of a moment with a time zone."""
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def iso_seconds(seconds: float) -> str:
    """The same of seconds since 1970."""
    return iso(datetime.fromtimestamp(seconds, UTC))


def iso_us(us: int) -> str:
    """The same of µs since 1970, to the microsecond."""
    return iso(_EPOCH + us * _MICROSECOND, "microseconds")


def since_epoch(moment: datetime) -> int:
    """µs since 1970 of a moment with a time zone."""
    return (moment - _EPOCH) // _MICROSECOND
