"""Who holds us up: the open transactions that are waited for, named as far as our role may see.

https://www.postgresql.org/docs/current/functions-info.html (pg_blocking_pids)
https://www.postgresql.org/docs/current/monitoring-stats.html#MONITORING-PG-STAT-ACTIVITY-VIEW
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString

from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.statement import shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

LOOK: Final = 0.2
"""Seconds between looks at who holds something up."""

# A role without pg_read_all_stats sees neither start nor query of other sessions.
_BLOCKERS: Final[LiteralString] = """
select a.pid, a.usename::text, a.application_name, a.datname::text,
       extract(epoch from clock_timestamp() - a.xact_start)::float8,
       case when a.query not like '<insufficient%%' then a.query end, null
  from pg_catalog.pg_stat_activity a
 where a.pid = any(pg_catalog.pg_blocking_pids(%(pid)s))
union all
select null, x.owner::text, null, x.database::text,
       extract(epoch from clock_timestamp() - x.prepared)::float8, null, x.gid
  from pg_catalog.pg_prepared_xacts x
  join pg_catalog.pg_locks l on l.pid = %(pid)s and not l.granted and l.transactionid = x.transaction
"""

# Not from a snapshot: its list ends before the last transaction that has ended. Whoever is idle hasn't begun to commit.
# A prepared transaction that is being committed looks like any other.
_UNENDED: Final[LiteralString] = """
select a.backend_xid::text::int8, a.pid, a.usename::text, a.application_name, a.datname::text,
       extract(epoch from clock_timestamp() - a.xact_start)::float8,
       case when a.query not like '<insufficient%' then a.query end, null,
       coalesce(a.wait_event = 'SyncRep', false)
  from pg_catalog.pg_stat_activity a
 where a.backend_xid is not null and coalesce(a.datname, current_database()) = current_database()
   and coalesce(a.state, '') not in ('idle in transaction', 'idle in transaction (aborted)')
union all
select x.transaction::text::int8, null, x.owner::text, null, x.database::text,
       extract(epoch from clock_timestamp() - x.prepared)::float8, null, x.gid, false
  from pg_catalog.pg_prepared_xacts x where x.database = current_database()
"""


@dataclass(frozen=True, slots=True)
class Blocker:
    """An open transaction that is waited for.

    `pid` is None for a prepared transaction, which has a `gid` instead. `age` (seconds) and `query` are None
    where the role may not see them. `standby`: it is committed, and waits for a synchronous standby.
    """

    pid: int | None
    user: str | None
    application: str | None
    database: str | None
    age: float | None
    query: str | None
    gid: str | None
    standby: bool = False

    def __str__(self) -> str:
        parts = [f"user {self.user or 'unknown'}", f"database {self.database or 'unknown'}"]
        if self.application:
            parts.append(f"application {self.application}")
        if self.age is not None:
            parts.append(f"open for {_age(self.age)}")
        if self.standby:
            parts.append("committed, waits for a synchronous standby")
        if self.query:
            parts.append(f"query: {_short(self.query)}")
        who = f"pid {self.pid}" if self.pid is not None else f"prepared transaction '{self.gid}'"
        return f"{who} ({', '.join(parts)})"


async def blockers(conn: Connection, pid: int) -> tuple[Blocker, ...]:
    """The transactions that the session `pid` waits for now, as far as the role of `conn` may see."""
    return tuple(Blocker(*row) for row in await execute(conn, _BLOCKERS, {"pid": pid}))


async def held_up(
    work: asyncio.Future[Any],
    look: Callable[[], Awaitable[tuple[Blocker, ...]]],
    told: Callable[[Sequence[Blocker]], None] | None,
) -> tuple[Blocker, ...]:
    """Wait for the end of `work`, whatever that is; who held it up at last. `told` hears of them when they change.

    Raises what `look` raises, and then the work goes on.
    """
    seen: tuple[Blocker, ...] = ()
    while not (await asyncio.wait({work}, timeout=LOOK))[0]:
        now = await look()
        if now and told is not None and set(map(_which, now)) != set(map(_which, seen)):
            told(now)
        seen = now or seen
    return seen


def in_words(blockers: Sequence[Blocker]) -> str:
    """All of them, for the end of a sentence; there are some."""
    return "; ".join(map(str, blockers)) or "of sessions that this role can't see"


async def unended(conn: Connection) -> dict[int, Blocker]:
    """The transactions of this database that have a number and may have begun to commit, by number.

    The commit of such a one may be in the write-ahead log already, though no snapshot sees it yet. Left out is who is
    seen to be idle in his transaction: his commit is yet to come.
    """
    return {int(xid): Blocker(*named) for xid, *named in await execute(conn, _UNENDED)}


def _which(blocker: Blocker) -> tuple[int | None, str | None]:
    return blocker.pid, blocker.gid


def _short(query: str) -> str:
    line = shape(query)
    return line if len(line) <= 120 else line[:119] + "…"


def _age(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
