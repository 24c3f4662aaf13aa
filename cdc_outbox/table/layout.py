"""What a row offers to an encoder: each part of the event, and how to read it from the row.

The mapping fills one layout per relation. An encoder (`raw` is the default envelope) is a pure function
that compiles a layout into another pure function, from a row to topic, partition, key, value, timestamp and
headers. A further envelope would be a further module with such a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from cdc_outbox.event import Encoded, TableName, Values
from cdc_outbox.table.members import Append
from cdc_outbox.table.topic import Topics
from cdc_outbox.table.values import Field

Source: TypeAlias = Literal["backfill", "replay"]
"""What sends rows from the table instead of from the stream: the value of the header `cdc.source`."""

Encode: TypeAlias = Callable[[Values, int, int, int], Encoded]
"""From a row, the final LSN of its transaction, its place there and the commit time in µs since 1970, to
the message. Raises Unfit, and nothing else."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of an event, for all rows of one relation."""

    table: TableName
    slot: str
    id: Field
    payload: Field
    topics: Topics
    key: Field | Callable[[Values], bytes | None] | None
    """A column, or a function of the row where the key is made from more; None: no key is sent."""
    key_described: str
    type: Field | None = None
    version: Field | None = None
    timestamp: Field | None = None
    partition: Field | None = None
    placed: tuple[tuple[str, Field], ...] = ()
    """Header names with their columns, in the order of the configuration."""
    members: tuple[Field, Append] | None = None
    static: tuple[tuple[str, bytes], ...] = ()
    provenance: bool = False
    source: Source | None = None
    """Set where rows come from the table: they have no place in a stream, and so no provenance headers."""
    roles: dict[str, Field] = field(default_factory=dict)
