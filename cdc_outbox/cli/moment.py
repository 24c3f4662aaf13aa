"""The moments of `--since` and `--until`: a time, or how long it is ago."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cdc_outbox.errors import UsageError
from cdc_outbox.settings.units import parse_duration

if TYPE_CHECKING:
    from cdc_outbox.postgres.chosen import Ago

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def window_options(function: Decorated) -> Decorated:
    """Add `--since` and `--until`, which come as texts for `moment`."""
    until = click.option("--until", metavar="TIME", help="Only rows written before then.")
    since = click.option(
        "--since",
        metavar="TIME",
        help="Only rows written from then on: 2024-01-17T13:00:00Z, or 2h for two hours ago. UTC, without an offset.",
    )
    return since(until(function))


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
