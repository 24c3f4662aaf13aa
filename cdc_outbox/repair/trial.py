"""What would become of a row, found out without sending it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_outbox.errors import PoisonEvent

if TYPE_CHECKING:
    from cdc_outbox.event import Encoded
    from cdc_outbox.kafka.placement import Obstacle, Placement
    from cdc_outbox.postgres.streamed_rows import Row


@dataclass(frozen=True, slots=True)
class Trial:
    """One row: the `event` that it would be, or why it is none (`left_out` by a rule, or `poison`).

    `partition` is None where Kafka wasn't reached or lacks the topic; `obstacle` is what would keep the event from
    being delivered as things are.
    """

    row: Row
    event: Encoded | None = None
    left_out: str | None = None
    poison: PoisonEvent | None = None
    partition: int | None = None
    obstacle: Obstacle | None = None


async def attempt(row: Row, placement: Placement) -> Trial:
    """Map the row, and look where it would go."""
    try:
        event = row.plan.encode(row.values, row.lsn, row.seq, row.commit_us)
    except PoisonEvent as poison:
        return Trial(row, poison=poison)
    if isinstance(event, str):
        return Trial(row, left_out=event)
    partition = await placement.of(event, row.lsn, row.seq)
    return Trial(row, event, partition=partition, obstacle=await placement.obstacle(event))
