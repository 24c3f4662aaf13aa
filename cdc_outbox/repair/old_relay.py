"""Whether the old relay is at rest: while it has rows in hand, it would send and mark them beside us."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.errors import SlotBusy
from cdc_outbox.postgres import unsent, zoneless

if TYPE_CHECKING:
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.table.mapping import Plan


async def require_at_rest(conn: Connection, plan: Plan, *, stale: float, anyway: str) -> None:
    """Raise SlotBusy where a worker has locked rows of the plan's table, or took some less than `stale` seconds ago.

    `anyway`: the command that publishes them all the same.
    """
    table = plan.table
    worker = await unsent.locked_by(conn, table)
    if worker is not None:
        raise SlotBusy(
            f"the old relay is still at work: {worker} has locked rows of {table}, as FOR UPDATE does",
            next=f"stop it and run this again; if it is none: {anyway}",
        )
    taken = plan.bookkeeping.taken
    if taken is None:
        return
    count, workers = await unsent.in_hand(conn, table, taken, plan.shape, stale=stale)
    if count:
        by = f" by {workers}" if workers else ""
        since = f", by {zoneless.doubt(taken.since)}" if taken.since is not None else ""
        raise SlotBusy(
            f"the old relay is still at work: {count} {'row' if count == 1 else 'rows'} of {table} "
            f"{'was' if count == 1 else 'were'} taken{by} less than {stale:g} s ago{since}",
            next=f"stop it and run this again; if it is stopped for sure, have them published: {anyway}",
        )
