"""Bytes, durations and times as the watch says them to a person: `3.1 GiB`, `14m`, `10:02:11Z`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(number: float) -> str:
    """Bytes in the largest binary unit of which there is at least a third; whole bytes below that of a KiB."""
    amount, unit = float(number), "B"
    for larger in _UNITS:
        if amount < 1024 / 3:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def rate(bytes_per_second: float) -> str:
    """A rate, as sizes are said."""
    return f"{size(bytes_per_second)}/s"


def duration(seconds: float) -> str:
    """Seconds in one unit, or in two from an hour on: `45s`, `14m`, `2h 5m`, `3d 4h`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    large, small, names = (whole // 3600, whole % 3600 // 60, "hm")
    if whole >= 86_400:
        large, small, names = (whole // 86_400, whole % 86_400 // 3600, "dh")
    if large > 99 and names == "dh":
        return f"{large}d"
    return f"{large}{names[0]} {small}{names[1]}" if small else f"{large}{names[0]}"


def share(part: float) -> str:
    """A share of 1 as a whole percentage."""
    return f"{part * 100:.0f} %"


def moment(at: datetime, now: datetime) -> str:
    """A time of day in UTC, with the date where that isn't today's."""
    at, now = at.astimezone(UTC), now.astimezone(UTC)
    return f"{at:%H:%M:%S}Z" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}Z"


def count(number: float) -> str:
    """A large number with a unit of thousands: `120 M`."""
    for factor, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= factor:
            return f"{number / factor:.0f} {unit}"
    return f"{number:.0f}"
