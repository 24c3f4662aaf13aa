"""The statement that notes an event as applied, and what it takes. Pure."""

from __future__ import annotations

from typing import Final, LiteralString

from cdc_outbox.errors import CallRefused

# Without a conflict target it needs the right to insert, and no right to read.
_INSERT: Final = (
    "insert into public.cdc_outbox_inbox (consumer, event_id) values ({}, {}) on conflict do nothing"
)


def insert(consumer: LiteralString, event_id: LiteralString) -> LiteralString:
    """The INSERT with the library's two parameters; it writes one row the first time, and none afterwards."""
    return _INSERT.format(consumer, event_id)


def values(consumer: str, event_id: object) -> tuple[str, str]:
    """Both as text. Raises CallRefused for what would note something else than was meant."""
    if not consumer:
        raise CallRefused(
            "the consumer has no name", next='name it: consumer="billing", one name for all instances'
        )
    if event_id is None or event_id == "" or isinstance(event_id, bytes):
        raise CallRefused(
            f"the event's id is {event_id!r}, and should be text",
            next="take it from the message: event_id(message.headers())",
        )
    return consumer, str(event_id)
