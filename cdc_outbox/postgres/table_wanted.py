"""Who waits to have a table to itself while we read it, and stepping aside for him.

A reader is in nobody's way but that of a statement that wants the table to itself (ALTER TABLE, VACUUM FULL). Such a
one waits, and whoever comes after it waits behind it, the application's inserts too. So whoever reads a table for
longer than a moment is `watched`, and ends when the same session has been seen twice: one that gives up by itself, as
migrations with a lock_timeout do, is no reason to.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, LiteralString

from cdc_outbox.ended import ended
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.statement import shape

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
    from typing import TypeVar

    Answer = TypeVar("Answer")

LOOK: Final = 2.0
"""Seconds between looks at who waits."""

LOOK_AGAIN: Final = 0.5
"""Seconds that whoever waits is given to give up by himself."""

# Which locks are waited for everybody may see; what a session does, only who is a member of its role.
_WAITING: Final[LiteralString] = """
select w.pid, coalesce(nullif(a.application_name, ''), 'no name'),
       case when a.query not like '<insufficient%%' then left(a.query, 200) else '' end
  from (select distinct l.pid from pg_catalog.pg_locks l where not l.granted) w
  left join pg_catalog.pg_stat_activity a on a.pid = w.pid
 where pg_catalog.pg_blocking_pids(w.pid) @> array[%s::int]
 order by w.pid limit 1
"""


class TableWanted(CdcOutboxError):
    """Another session waits to have the table to itself, and the application's inserts wait behind it."""


async def waits_for(conn: Connection, pid: int) -> str | None:
    """A session that waits for a lock of the session `pid`, in words; None where there is none.

    `conn` is another connection than that of the session.
    """
    found = await execute(conn, _WAITING, (pid,))
    if not found:
        return None
    waiting, application, query = found[0]
    doing = f": {shape(str(query))}" if query else ""
    return f"pid {waiting} ({application}){doing}"


@asynccontextmanager
async def watched(
    conn: Connection,
    reader: Callable[[], int | None],
    *,
    next: Callable[[], str],  # noqa: A002 - an error's own word
    also: Callable[[], Awaitable[None]] | None = None,
) -> AsyncIterator[asyncio.Task[None]]:
    """Look after the session `reader` on another connection, while the block runs.

    The task ends with an error only: TableWanted, with `next` as its remedy, or what `also`, which looks at something
    else each time, has raised. `reader` is the process id of the session, or None while it has no table. A look that is
    under way at the end is waited for, since one that is cancelled cuts its connection.
    """
    over = asyncio.Event()
    looking = asyncio.create_task(_look_after(conn, reader, next, also, over), name="look")
    try:
        yield looking
    finally:
        over.set()
        await asyncio.wait({looking})
        if not looking.cancelled():
            looking.exception()  # was seen, or is of no interest any more


async def unless(looking: asyncio.Task[None], work: Coroutine[Any, Any, Answer]) -> Answer:
    """Do the work; raise what `watched` has found, if that comes first, and then the work is cancelled."""
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({working, looking}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()
        return await working
    finally:
        await ended(working)


async def _look_after(
    conn: Connection,
    reader: Callable[[], int | None],
    remedy: Callable[[], str],
    also: Callable[[], Awaitable[None]] | None,
    over: asyncio.Event,
) -> None:
    wanted: str | None = None
    while not over.is_set():
        if also is not None:
            await also()
        pid = reader()
        waits = await waits_for(conn, pid) if pid is not None else None
        if waits is not None and waits == wanted:
            raise TableWanted(
                f"{waits} waits to have the table to itself, and inserts wait behind it", next=remedy()
            )
        wanted = waits
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), LOOK if wanted is None else LOOK_AGAIN)
