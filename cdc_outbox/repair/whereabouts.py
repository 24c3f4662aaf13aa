"""What is known of an event: how far it has come, where it stands, what it says."""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import CdcOutboxError, PoisonEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import Encoded, TableName, Values
    from cdc_outbox.kafka.placement import Obstacle
    from cdc_outbox.lsn import LSN
    from cdc_outbox.postgres.rows_by_id import Stored
    from cdc_outbox.table.mapping import Plan

ROWS: Final = 200_000
SEARCH: Final = 20.0
"""Rows and seconds of a search in the slot, and at Kafka."""

AFTER_ALL: Final = "to send it after all"


class Delivery(enum.Enum):
    """How far an event has come.

    UNCONFIRMED: a relay is at work on it. LEFT_OUT: a person has said that it isn't to be sent. PASSED: the slot has
    nothing of it any more.
    """

    DELIVERED = "delivered"
    WAITING = "waiting"
    UNCONFIRMED = "unconfirmed"
    LEFT_OUT = "left out"
    PASSED = "passed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class InSlot:
    """Where the event stands in what the slot has to give, and how many rows come before it."""

    lsn: LSN
    seq: int
    commit_us: int
    before: int


@dataclass(frozen=True, slots=True)
class Event:
    """What is known of one row.

    `row` is None for one that is only in the slot. `message` is what becomes of it, None where `left_out` names the
    rule, or `poison` the reason. `obstacle`: what else keeps it from being sent. `partition` is None where it isn't
    known. `offset`: where it is in the topic, None where it wasn't found or not looked for.
    """

    table: TableName
    row: Stored | None
    texts: dict[str, str | None]
    created_us: int | None
    delivery: Delivery
    said: str
    next: str = ""
    sent_elsewhere: bool = False
    """The table says of it that it was sent, and that wasn't this relay."""
    in_slot: InSlot | None = None
    message: Encoded | None = None
    left_out: str | None = None
    poison: PoisonEvent | None = None
    obstacle: Obstacle | None = None
    partition: int | None = None
    offset: int | None = None
    searched: str | None = None
    """What the search in the topic has shown; None where there was none."""


def told_by_row(
    plan: Plan, values: Values, row: Stored | None, delivery: Delivery, said: str, remedy: str = ""
) -> Event:
    """What the row says by itself."""
    created = plan.created_us(values, 0) or None
    event = Event(plan.table, row, plan.raw(values), created, delivery, said, remedy)
    try:
        message = plan.encode(values, 0, 0, created or time.time_ns() // 1000)
    except PoisonEvent as poison:
        return replace(event, poison=poison)
    if isinstance(message, str):
        return replace(event, left_out=message)
    return replace(event, message=message)


class Unknown(CdcOutboxError):
    """No event with this id is in the tables, nor in a slot that nobody reads from."""

    @classmethod
    def of(cls, event_id: str, tables: Sequence[TableName]) -> Unknown:
        """The error for an id that was looked for in these tables."""
        return cls(
            f"no event with the id {event_id!r} is in {', '.join(map(str, tables))}: it was deleted or rolled back, or"
            " isn't committed yet",
            next="if it is another table's or database's, name that with --table or --dsn",
        )
