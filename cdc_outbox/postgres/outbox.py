"""The outbox table as the catalogue shows it, and how many of its rows may be unsent.

The relay reads the table from the write-ahead log only; setting up needs to know what it is. Only ordinary
and partitioned, logged tables leave their rows in that log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import SetupError
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table.recognise import SENT_WORDS, Shape
from cdc_outbox.table.values import BOOL, Field

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import OutboxSettings

COUNT_LIMIT: Final = 120.0
"""Seconds for counting rows: a sequential scan of a large table, while WAL waits behind the new slot."""

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


async def count_unsent(
    conn: Connection, table: TableName, columns: Collection[Column], settings: OutboxSettings
) -> int:
    """How many rows may not have been published yet, in a snapshot of its own.

    By the table's own status or "sent" time where it has one; else every row is in doubt. Rows that this
    relay leaves out by `outbox.only` or for their bus don't count.

    Raises MissingRight when the role may not read the table or row-level security would hide rows from it.
    """
    shape = Shape(columns)
    conditions: list[sql.Composable] = [sql.SQL("true")]
    sent = shape.sent()
    if sent is not None and sent.by == "time":
        conditions.append(sql.SQL("{} is null").format(sql.Identifier(sent.field.name)))
    elif sent is not None:
        conditions.append(
            sql.SQL("coalesce(lower({}::text) <> all({}), true)").format(
                sql.Identifier(sent.field.name), sql.Literal(sorted(SENT_WORDS))
            )
        )
    for field, accepted in _selected(shape, settings):
        conditions.append(
            sql.SQL("{}::text = any({})").format(sql.Identifier(field.name), sql.Literal(accepted))
        )
    # With row_security off, a policy that would hide rows is an error instead.
    await execute(conn, "set row_security = off")
    await execute(conn, sql.SQL("set statement_timeout = {}").format(sql.Literal(int(COUNT_LIMIT * 1000))))
    counted = sql.SQL("select count(*) from {} where {}").format(
        sql.Identifier(table.schema, table.name), sql.SQL(" and ").join(conditions)
    )
    ((count,),) = await execute(conn, counted, within=COUNT_LIMIT + 5)
    return int(count)


def _selected(shape: Shape, settings: OutboxSettings) -> list[tuple[Field, list[str]]]:
    """The columns that decide whether a row is ours, with the values that make it so."""
    selected = {}
    name = settings.columns.get("bus")
    bus = shape.find(name) if name is not None else shape.recognise("bus")
    if bus is not None:
        selected[bus.name] = (bus, ["kafka"])
    for column, accepted in settings.only.items():
        field = shape.find(column)
        if field is not None:
            selected[field.name] = (field, _spelled(field, accepted))
    return list(selected.values())


def _spelled(field: Field, accepted: Collection[str]) -> list[str]:
    """Values as a cast to text gives them: a boolean's are words, not the letters of its output."""
    if field.type_oid != BOOL:
        return list(accepted)
    return [{"t": "true", "f": "false"}.get(value.lower(), value.lower()) for value in accepted]
