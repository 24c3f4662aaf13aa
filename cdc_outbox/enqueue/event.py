"""What an application says of an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Required, TypedDict
from uuid import UUID


class Event(TypedDict, total=False):
    """The keyword arguments of `enqueue`; for `enqueue_many` each event is such a dict.

    Which of them are needed depends on the table's columns: the default table needs the first three. `payload` may
    be None, which is a tombstone, but has to be said.
    """

    aggregate_type: str
    """Picks the topic: `outbox.event.<aggregate_type>`."""
    aggregate_id: str | int | UUID
    """The key: events with the same one stay in order."""
    event_type: str
    payload: Required[object]
    """What orjson can write; or JSON that is written already, as `str` or `bytes`."""
    event_version: int | None
    headers: Mapping[str, object] | None
    """Further Kafka headers. What isn't text goes out as JSON, None not at all."""
    id: str | int | UUID
    """By default a new UUID, or what the table's own default makes of a column that is no UUID and no text."""
    topic: str | None
    """For a table with such a column."""
    extra: Mapping[str, object]
    """Values of other columns, by name; the library adapts them."""
