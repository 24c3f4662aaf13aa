"""A transaction whose beginning and end are statements with the deadline of any other.

Psycopg's own waits without one, also for a server that is frozen.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, LiteralString

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres.connection import execute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from psycopg import sql

    from cdc_outbox.postgres.connection import Connection


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
