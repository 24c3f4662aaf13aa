"""Rows that are asked for by their id: whether an index finds them, and the text of what they hold.

Statements with these are run with parameters, so that `%%` is a per cent sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.postgres.connection import Connection, execute

if TYPE_CHECKING:
    from cdc_outbox.event import TableName

_INDEXED: Final[LiteralString] = """
select exists (select from pg_catalog.pg_index i
                 join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                where i.indrelid = c.oid and a.attname = %s and i.indisvalid and i.indpred is null)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s
"""

# `format` gives the text that the type's output function gives, which is what the stream has.
_TEXT: Final[LiteralString] = (
    "case when {0} is not distinct from null then null else pg_catalog.format('%%s', {0}) end"
)


# In the encoding in which the stream has it, so that both sides can be compared without fetching it.
_DIGEST: Final[LiteralString] = (
    "case when {0} is not distinct from null then null else pg_catalog.encode(pg_catalog.sha256("
    "pg_catalog.convert_to(pg_catalog.format('%%s', {0}), pg_catalog.pg_client_encoding())), 'hex') end"
)


async def indexed(conn: Connection, table: TableName, column: str) -> bool | None:
    """Whether a row is found by this column without reading the whole table; None where there is no such table."""
    rows = await execute(conn, _INDEXED, (column, table.schema, table.name))
    return bool(rows[0][0]) if rows else None


def digest_of(column: sql.Identifier) -> sql.Composed:
    """The SHA-256 of that text, in hex; NULL where there is none."""
    return sql.SQL(_DIGEST).format(column)


def text_of(column: sql.Identifier) -> sql.Composed:
    """The column's value as text, NULL where it has none."""
    return sql.SQL(_TEXT).format(column)
