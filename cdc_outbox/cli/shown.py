"""How a time is shown to a person and to a machine."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time(us: int) -> str:
    """A time in µs since 1970, in UTC."""
    moment = EPOCH + timedelta(microseconds=us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
