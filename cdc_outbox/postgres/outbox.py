"""The outbox table as the catalogue shows it.

The relay reads the table from the write-ahead log only; setting up needs to know what it is. Only ordinary
and partitioned, logged tables leave their rows in that log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import SetupError
from cdc_outbox.postgres.connection import Connection, execute

if TYPE_CHECKING:
    from cdc_outbox.event import TableName

_COLUMNS: Final[LiteralString] = """
select c.relkind::text, c.relpersistence::text, a.attname::text, a.atttypid::int8
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where n.nspname = %s and c.relname = %s
 order by a.attnum
"""

_KINDS: Final = {
    "v": "a view",
    "m": "a materialised view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "I": "an index",
    "c": "a composite type",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column's name and type."""

    name: str
    type_oid: int


async def columns(conn: Connection, table: TableName) -> tuple[Column, ...] | None:
    """The table's columns in order, None where there is no such table.

    Raises SetupError for what can't be an outbox: views, foreign tables, unlogged and temporary tables.
    """
    rows = await execute(conn, _COLUMNS, (table.schema, table.name))
    if not rows:
        return None
    kind, persistence = rows[0][:2]
    if kind not in ("r", "p"):
        raise SetupError(
            f"{table} is {_KINDS.get(kind, 'not a table')}: only a table's rows are in the write-ahead log",
            next="name the table behind it with --table SCHEMA.NAME",
        )
    if persistence == "t":
        raise SetupError(
            f"{table} is a temporary table, and those are not in the write-ahead log",
            next="name an ordinary table with --table SCHEMA.NAME",
        )
    if persistence == "u":
        raise SetupError(
            f"{table} is unlogged: its rows are not in the write-ahead log, and a crash empties it",
            next=f"alter table {table} set logged;",
        )
    return tuple(Column(name, oid) for _, _, name, oid in rows if name is not None)
