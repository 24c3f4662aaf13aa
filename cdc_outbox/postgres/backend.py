"""A server process: its number, and when it began, for numbers are used again.

When a process of another role began is hidden from who has no `pg_read_all_stats`; of the own role it is always seen.
https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-ACTIVITY-VIEW
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.postgres.connection import decoded, execute

if TYPE_CHECKING:
    from cdc_outbox.postgres.connection import Connection


@dataclass(frozen=True, slots=True)
class Backend:
    """One process of the server. `began` is in seconds since the epoch, as text; None where it is hidden."""

    pid: int
    began: str | None


_OWN: Final[LiteralString] = """
select a.pid::text, extract(epoch from a.backend_start)::text
  from pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid()) as a
"""
# Who ends lets the slot go first, and is forgotten then.
_HOLDER: Final[LiteralString] = """
select s.active_pid, extract(epoch from a.backend_start)::text
  from pg_catalog.pg_replication_slots s
  cross join lateral pg_catalog.pg_stat_get_activity(s.active_pid) as a
 where s.slot_name = %s and s.active
"""


async def own(conn: Connection) -> Backend:
    """The process of a connection, which may be a replication connection."""
    ((pid, began),) = await execute(conn, _OWN, stage="identify")
    return Backend(int(pid), None if began is None else decoded(began))


async def holder(conn: Connection, slot: str) -> Backend | None:
    """Who has the slot; None where nobody has it, or there is none."""
    rows = await execute(conn, _HOLDER, (slot,))
    return Backend(int(rows[0][0]), rows[0][1]) if rows else None
