"""The parts of the tables in which no row was left behind: what is unsent there came by the slot, or will.

Only there may unmarked rows be looked for. The transaction of a row (`xmin`) says nothing of it, for any UPDATE gives
it a new one. A part is a table, or one partition of it. The witness row names those that are whole: `init` where no row
waited, `backfill` where it published all that waited, and a relay at its start where no row waits. An accepted gap, and
anything that happened to the publication or to the choice of tables, empties the list.

A part's name tells whether it is still what it was: the OIDs and the xmin of the rows in pg_inherits on the way down to
it, which are new where it was attached again; its file, which is new where it was unlogged for a time; and which of its
rows are sent.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table.compiler import selected

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.recognise import Shape

# What inherits from a table that isn't partitioned is another table.
_PARTS: Final[LiteralString] = """
with recursive family (relation, way) as (
    select c.oid, c.oid::text
      from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s
    union all
    select i.inhrelid, f.way || '/' || i.inhrelid || '@' || i.xmin
      from family f join pg_catalog.pg_inherits i on i.inhparent = f.relation
      join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
select f.way || ':' || c.relfilenode, f.relation::int8
  from family f join pg_catalog.pg_class c on c.oid = f.relation
 where c.relkind = 'r' and c.relpersistence = 'p'
"""

# A table that a version before this column made goes without it: then nothing is searched for.
_COLUMN: Final[LiteralString] = """
select from pg_catalog.pg_attribute where attrelid = pg_catalog.to_regclass('public.cdc_outbox_witness')
   and attname = 'whole' and not attisdropped
"""
_READ: Final[LiteralString] = "select whole from public.cdc_outbox_witness where slot = %s"
_WRITE: Final[LiteralString] = "update public.cdc_outbox_witness set whole = %s where slot = %s"

_WRITTEN_TO: Final[LiteralString] = """
select distinct relation::int8 from pg_catalog.pg_locks
 where locktype = 'relation' and relation::int8 = any(%s) and pid is distinct from pg_catalog.pg_backend_pid()
   and mode not in ('AccessShareLock', 'RowShareLock')
   and database = (select oid from pg_catalog.pg_database where datname = current_database())
"""


def selection(settings: OutboxSettings, table: TableName, shape: Shape) -> str:
    """Which rows of the table are sent, as a short text that is another one for other rows. Raises MappingError."""
    chosen = sorted((each.name, sorted(values)) for each, values in selected(settings, table, shape))
    return hashlib.sha256(repr(chosen).encode()).hexdigest()[:16]


async def parts(conn: Connection, table: TableName, selection: str) -> dict[str, int]:
    """The parts of the table, by their names, with their OIDs."""
    rows = await execute(conn, _PARTS, (table.schema, table.name))
    return {f"{name}:{selection}": int(oid) for name, oid in rows}


async def kept(conn: Connection) -> bool:
    """Whether the witness table can remember whole parts."""
    return bool(await execute(conn, _COLUMN))


async def known(conn: Connection, slot: str) -> frozenset[str] | None:
    """The names of the parts that are whole; None where nothing keeps them."""
    rows = await execute(conn, _READ, (slot,)) if await kept(conn) else []
    return frozenset(rows[0][0]) if rows else None


async def remember(conn: Connection, slot: str, names: Collection[str]) -> None:
    """Write that these parts are whole, and no others."""
    await execute(conn, _WRITE, (sorted(names), slot))


async def forget(conn: Connection, slot: str) -> None:
    """Remember that rows may be left behind anywhere."""
    if await kept(conn):
        await remember(conn, slot, ())


async def written_to(conn: Connection, oids: Sequence[int]) -> set[int]:
    """Those of the relations that a transaction may have written to which is open still."""
    return {int(oid) for (oid,) in await execute(conn, _WRITTEN_TO, (list(oids),))}
