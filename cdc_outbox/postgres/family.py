"""A table with its partitions, at every level, as the start of a query.

Without pg_partition_tree(), which locks each partition for a moment, and so waits for whoever empties or rebuilds an
old one. What merely inherits from a table that isn't partitioned is another table, and none of the family: the stream
has its rows under its own name, so who reads the table reads `only` that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.postgres.connection import execute

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.connection import Connection

_NAMED: Final[LiteralString] = """
with recursive named (relation) as (
    select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s),
"""

_FAMILY: Final[LiteralString] = """
family (relation) as (
    {root} union all
    select i.inhrelid from family f join pg_catalog.pg_inherits i on i.inhparent = f.relation
      join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
"""

FAMILY: Final[LiteralString] = _NAMED + _FAMILY.replace("{root}", "select relation from named")
"""Binds `named` and `family`, each with the column `relation` (oid). Its parameters are schema and name."""

FAMILY_OF_OID: Final[LiteralString] = "with recursive" + _FAMILY.replace("{root}", "select %s::oid")
"""Binds `family`. Its parameter is the table's OID."""

FAMILY_OF_ROW: Final[LiteralString] = "with recursive" + _FAMILY.replace(
    "{root}", "select c.oid where c.relkind = 'p'"
)
"""Binds `family` in a subquery, for a row `c` of pg_class around it; empty for a table that isn't partitioned."""

_PARTITIONED: Final[LiteralString] = """
select from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s and c.relkind = 'p'
"""


async def rows_of(conn: Connection, table: TableName) -> sql.Composed:
    """The table as it stands behind FROM: with the rows that the stream would have under its name, and no others."""
    partitioned = await execute(conn, _PARTITIONED, (table.schema, table.name))
    name = sql.Identifier(table.schema, table.name)
    return sql.SQL("{}" if partitioned else "only {}").format(name)
