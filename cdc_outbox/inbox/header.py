"""The event's id, from the headers of a Kafka message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from cdc_outbox.errors import CallRefused

Value: TypeAlias = bytes | str | None
Headers: TypeAlias = Iterable[tuple[str, Value]] | Mapping[str, Value]
"""What `message.headers()` of confluent-kafka and `record.headers` of aiokafka and kafka-python are."""


def event_id(headers: Headers | None, name: str = "id") -> str:
    """The id by which an event that comes twice is known: the same in each copy of it.

    Raises CallRefused where there is no such header, and where it isn't UTF-8.
    """
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    found = next((value for header, value in pairs if header == name and value is not None), None)
    if found is None:
        raise CallRefused(
            f"the message has no header {name!r}, so that nobody can tell whether it comes again",
            next="name the header that has the id, event_id(headers, NAME), or take the id from the payload; what "
            "cdc-outbox sends always has it",
        )
    try:
        return found if isinstance(found, str) else found.decode()
    except UnicodeDecodeError:
        raise CallRefused(
            f"the message's header {name!r} is {found!r:.200}, which is no text in UTF-8",
            next="name the header that has the id, event_id(headers, NAME), or take the id from the payload",
        ) from None
