"""The next step that several errors share, worded once."""

from __future__ import annotations


def recover(slot: str | None = None) -> str:
    """How delivery begins anew when the slot can't be used any more; `slot` where its name is at hand."""
    named = f" --slot {slot}" if slot else ""
    return f"recover: cdc-outbox drop{named}, then cdc-outbox init --no-backfill{named}"


def accept_gap(slot: str | None = None) -> str:
    """How delivery goes on past rows that the server skipped; all that it didn't skip is still behind the slot."""
    named = f" --slot {slot}" if slot else ""
    return f"cdc-outbox start{named} --accept-gap"
