"""Transactions: our own, whose beginning and end are statements with the deadline of any other, and others' ends.

Psycopg's own wait without one, also for a server that is frozen.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres.connection import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import sql

    from cdc_outbox.postgres.connection import Connection

# The stream has the lower half of an xid. One that isn't behind the snapshot's end is of a transaction that still runs.
_RUNS: Final[LiteralString] = """
select case when behind between 1 and 2147483647
            then coalesce(pg_catalog.pg_xact_status((next - behind)::text::xid8) = 'in progress', false)
            else true end
  from (select pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::int8) as s (next),
       lateral (select (next - %s) & 4294967295) as b (behind)
"""


@asynccontextmanager
async def transaction(
    conn: Connection, *, begin: LiteralString | sql.Composed = "begin", end: LiteralString = "commit"
) -> AsyncIterator[None]:
    """Around statements of a connection in autocommit: `begin` before them, `end` after them.

    Where the block raises it is rolled back, if the connection still stands. Raises what `execute` raises.
    """
    await execute(conn, begin)
    try:
        yield
    except BaseException:
        if not conn.closed:
            with suppress(CdcOutboxError):
                await execute(conn, "rollback")
        raise
    await execute(conn, end)


async def runs(conn: Connection, xid: int) -> bool:
    """Whether a transaction is yet to end for whoever looks: its commit may be on disk, and what it did not be seen.

    `xid`: as a Begin of the stream has it. https://www.postgresql.org/docs/current/functions-info.html
    """
    ((running,),) = await execute(conn, _RUNS, (xid,))
    return bool(running)
