"""Some of the newest rows of the table, as the stream would have brought them.

A look at real rows tells what no catalogue does: where they would go, how large they are, and whether they could be
sent at all. It is bounded: a few of the table's last pages, a number of rows, and bytes as they are stored; the
largest row is taken in any case, unless it is larger than all the rest may be.

The newest rows are those in the last pages, where the table isn't partitioned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import MissingRight
from cdc_outbox.postgres import reading_right, table_locked
from cdc_outbox.postgres.column_text import text_of
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import TableName, Values

ROWS: Final = 200
PAGES: Final = 256
STORED: Final = 4 * 1024 * 1024
LARGEST: Final = 16 * 1024 * 1024

_FROM: Final[LiteralString] = """
select case when c.relkind = 'p' then null
            else greatest(0, pg_catalog.pg_relation_size(c.oid) / current_setting('block_size')::int8 - %s) end,
       pg_catalog.has_table_privilege(c.oid, 'select') and pg_catalog.has_schema_privilege(n.oid, 'usage')
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s
"""

_SAMPLE: Final[LiteralString] = """
select {texts} from (
    select s.*, row_number() over (order by stored desc) as place,
           sum(stored) over (order by stored rows unbounded preceding) as total
      from (select {columns}, coalesce(pg_catalog.pg_column_size({payload}), 0) as stored
              from {table} {newest} limit {rows}) s
) r where total <= {most} or (place = 1 and stored <= {largest})
"""


async def sample(
    conn: Connection, table: TableName, columns: Sequence[str], payload: str, *, within: float
) -> list[Values] | None:
    """Rows with the values of these columns; None where the role may not read all of the table.

    `payload` is the column that makes a row large. Raises TableLocked, and what `execute` raises.
    """
    await execute(conn, table_locked.AT_ONCE, within=within)
    with table_locked.giving_up():
        return await _newest(conn, table, columns, payload, within)


async def _newest(
    conn: Connection, table: TableName, columns: Sequence[str], payload: str, within: float
) -> list[Values] | None:
    found = await execute(conn, _FROM, (PAGES, table.schema, table.name), within=within)
    if not found or not found[0][1]:
        return None
    first_page = found[0][0]
    newest: sql.Composable = sql.SQL("")
    if first_page is not None:
        newest = sql.SQL("where ctid >= {}::tid").format(sql.Literal(f"({int(first_page)},0)"))
    aliases = [f"c{at}" for at in range(len(columns))]
    named = [
        sql.SQL("{} as {}").format(sql.Identifier(column), sql.Identifier(alias))
        for column, alias in zip(columns, aliases, strict=True)
    ]
    query = sql.SQL(_SAMPLE).format(
        texts=sql.SQL(", ").join(text_of(sql.Identifier(alias)) for alias in aliases),
        columns=sql.SQL(", ").join(named),
        payload=sql.Identifier(payload),
        table=await rows_of(conn, table),
        newest=newest,
        rows=sql.Literal(ROWS),
        most=sql.Literal(STORED),
        largest=sql.Literal(LARGEST),
    )
    await execute(conn, reading_right.ALL_ROWS, within=within)
    try:
        rows = await execute(conn, query, (), within=within)
    except (MissingRight, UnicodeDecodeError):  # the second in a SQL_ASCII database
        return None
    return [[None if value is None else str(value).encode() for value in row] for row in rows]
