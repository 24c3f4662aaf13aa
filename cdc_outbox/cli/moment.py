"""The moments of `--since` and `--until`: a time, or how long it is ago."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc_outbox.errors import UsageError
from cdc_outbox.settings.units import parse_duration

if TYPE_CHECKING:
    from cdc_outbox.postgres.chosen import Ago


def moment(flag: str, text: str | None) -> datetime | Ago | None:
    """A time, in UTC where it has no offset, or a duration before now. Raises UsageError."""
    from cdc_outbox.postgres.chosen import Ago

    if text is None:
        return None
    try:
        return Ago(parse_duration(text))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{flag} {text!r} is neither a time nor a duration",
            next=f"write {flag} 2024-01-17T13:00:00Z, or {flag} 2h for two hours ago",
        ) from None
