"""The outbox table as the catalogue shows it.

The relay reads the table from the write-ahead log only; setting up needs to know what it is. Only ordinary
and partitioned, logged tables leave their rows in that log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import SetupError
from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import FAMILY_OF_ROW
from cdc_outbox.table.values import FIRST_USER_TYPE, base

if TYPE_CHECKING:
    from collections.abc import Sequence

BASE: Final[LiteralString] = """
(with recursive under (oid) as (
     select a.atttypid
     union all
     select t.typbasetype from under u join pg_catalog.pg_type t on t.oid = u.oid where t.typtype = 'd')
 select t.oid, s.nspname::text as namespace, t.typname::text as name
   from under u join pg_catalog.pg_type t on t.oid = u.oid join pg_catalog.pg_namespace s on s.oid = t.typnamespace
  where t.typtype <> 'd')
"""
"""The type of the column `a.atttypid`, and of a domain the one that it is made of, as the stream names it too."""

TRACELESS: Final[LiteralString] = """
({family}
 select coalesce(json_agg(json_build_array(t.schema, t.name, t.kind)), '[]'::json)
   from (select s.nspname::text, k.relname::text, k.relkind::text
           from family f join pg_catalog.pg_class k on k.oid = f.relation
           join pg_catalog.pg_namespace s on s.oid = k.relnamespace
          where k.relkind = 'f' or (k.relkind = 'r' and k.relpersistence <> 'p')
          order by 1, 2 limit 6) as t (schema, name, kind))
""".replace("{family}", FAMILY_OF_ROW)
"""The partitions of `c`, a row of pg_class, whose rows are not in the write-ahead log; the first few."""

_COLUMNS: Final[LiteralString] = """
select c.relkind::text, c.relpersistence::text, {traceless}, a.attname::text, b.oid::int8, b.namespace, b.name
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  left join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join lateral {base} b on true
 where n.nspname = %s and c.relname = %s
 order by a.attnum
""".replace("{base}", BASE).replace("{traceless}", TRACELESS)

_PRIMARY_KEY: Final[LiteralString] = """
select a.attname::text
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_index i on i.indrelid = c.oid and i.indisprimary
 cross join lateral pg_catalog.unnest(i.indkey) with ordinality as k (attnum, place)
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum = k.attnum
 where n.nspname = %s and c.relname = %s
 order by k.place
"""

_INDEXED: Final[LiteralString] = """
select exists (select from pg_catalog.pg_index i
                 join pg_catalog.pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
                where i.indrelid = c.oid and a.attname = %s and i.indisvalid and i.indpred is null)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s
"""

KEYLESS: Final = "no primary key: a stream needs none, but marking rows as sent, backfill and replay may"
"""What is to be known of a table without one."""

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


def type_of(oid: object, namespace: object, name: object) -> int:
    """A column's type from what BASE says of it."""
    number = int(str(oid))
    return number if number < FIRST_USER_TYPE else base(number, str(namespace), str(name))


async def columns(conn: Connection, table: TableName) -> tuple[Column, ...] | None:
    """The table's columns in order, None where there is no such table.

    A domain's type is the one that it is made of. Raises SetupError for what can't be an outbox: views, foreign tables,
    unlogged and temporary tables, and tables with such a partition.
    """
    rows = await execute(conn, _COLUMNS, (table.schema, table.name))
    if not rows:
        return None
    kind, persistence, traceless = rows[0][:3]
    for problem, remedy in no_table(table, kind).items():
        raise SetupError(problem, next=remedy)
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
    for problem, remedy in without_traces(table, traceless).items():
        raise SetupError(problem, next=remedy)
    return tuple(Column(name, type_of(*under)) for _, _, _, name, *under in rows if name is not None)


def no_table(table: TableName, kind: str) -> dict[str, str]:
    """What is wrong with a relation of this kind (pg_class.relkind), and the next step; empty for a table."""
    if kind in ("r", "p"):
        return {}
    problem = f"{table} is {_KINDS.get(kind, 'not a table')}: only a table's rows are in the write-ahead log"
    return {problem: "name the table behind it with --table SCHEMA.NAME"}


def without_traces(table: TableName, found: Sequence[Sequence[str]]) -> dict[str, str]:
    """What is wrong with partitions that TRACELESS has found, with the SQL that mends it; empty if there are none."""
    if not found:
        return {}
    kinds = {TableName(schema, name): kind == "f" for schema, name, kind in found}
    words = ", ".join(f"{each} ({'foreign' if foreign else 'unlogged'})" for each, foreign in kinds.items())
    remedies = (
        f"alter table {table} detach partition {each};" if foreign else f"alter table {each} set logged;"
        for each, foreign in kinds.items()
    )
    return {f"partitions of {table} leave no rows in the write-ahead log: {words}": " ".join(remedies)}


async def indexed(conn: Connection, table: TableName, column: str) -> bool | None:
    """Whether a row is found by this column without reading the whole table; None where there is no such table."""
    rows = await execute(conn, _INDEXED, (column, table.schema, table.name))
    return bool(rows[0][0]) if rows else None


async def primary_key(conn: Connection, table: TableName) -> tuple[str, ...]:
    """The columns of the table's primary key in its order; none where it has no such key, or isn't there."""
    rows = await execute(conn, _PRIMARY_KEY, (table.schema, table.name))
    return tuple(str(name) for (name,) in rows)
