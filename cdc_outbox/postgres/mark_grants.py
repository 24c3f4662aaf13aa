"""The rights that marking needs, as SQL that knows a table by its name alone.

`--print-sql` asks no server, so the statements find the table's columns by themselves, by the names that columns with
such a meaning have; `init` runs the same statements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import ddl
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table import profiles, sent
from cdc_outbox.table.recognise import NAMES, bare, plain
from cdc_outbox.table.values import TEXT, TIMESTAMPTZ, Field, field

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.settings import OutboxSettings, Settings
    from cdc_outbox.table.profiles import Profile

_GRANTED: Final[LiteralString] = """
select coalesce(bool_and(pg_catalog.has_column_privilege(r.oid, a.attrelid, a.attnum, 'select')
                         and (replace(lower(a.attname), '_', '') <> all(%(written)s)
                              or pg_catalog.has_column_privilege(r.oid, a.attrelid, a.attnum, 'update'))), false)
  from pg_catalog.pg_roles r, pg_catalog.pg_attribute a
 where r.rolname = %(role)s and a.attrelid = %(table)s::regclass and not a.attisdropped
   and (a.attname in ('ctid', 'tableoid', 'xmin') or replace(lower(a.attname), '_', '') = any(%(written)s || %(read)s)
        or exists (select from pg_catalog.pg_index i where i.indrelid = a.attrelid and i.indisunique
                      and i.indpred is null and a.attnum = any(i.indkey)))
"""


def statements(settings: Settings, role: str) -> sql.Composed:
    """What to grant a role that marks rows of the tables; nothing where rows aren't marked."""
    parts = [_of_table(settings.outbox, table, role) for table in settings.outbox.tables]
    return sql.SQL("\n").join(parts if settings.outbox.mark == "update" else [])


def _of_table(settings: OutboxSettings, table: TableName, role: str) -> sql.Composed:
    written, read = _names(settings, table)
    return sql.SQL(ddl.read("marks")).format(
        role_name=sql.Literal(role),
        table_name=sql.Literal(str(table)),
        written=sql.Literal("{" + ",".join(written) + "}"),
        read=sql.Literal("{" + ",".join(read) + "}"),
    )


async def granted(conn: Connection, settings: Settings, role: str) -> bool:
    """Whether the role has all of that."""
    if settings.outbox.mark != "update":
        return True
    for table in settings.outbox.tables:
        written, read = _names(settings.outbox, table)
        asked = {"role": role, "table": str(table), "written": written, "read": read}
        ((has,),) = await execute(conn, _GRANTED, asked)
        if not has:
            return False
    return True


def _names(settings: OutboxSettings, table: TableName) -> tuple[list[str], list[str]]:
    """Columns that a mark writes, and those that decide whether a row is sent; each name `plain`."""
    profile = _profile(settings, table)
    book = sent.usual(_any) if profile is None else profile.bookkeeping(_any)
    bus = settings.columns.get("bus")
    deciding = (
        (bus,) if bus is not None else NAMES["bus"] if profile is None else profile.columns.get("bus", ())
    )
    status, time = settings.status.column, settings.columns.get("sent_at")
    named = [name.strip() for each in (status, time) if each is not None for name in each.split(",")]
    return (
        sorted({plain(bare(name)) for name in (*(mark.field.name for mark in book.marks), *named)}),
        sorted({plain(bare(name)) for name in (*deciding, *settings.only)}),
    )


def _profile(settings: OutboxSettings, table: TableName) -> Profile | None:
    """The library whose table this is, as far as a name tells it."""
    if settings.profile != profiles.AUTO:
        return profiles.BY_NAME.get(settings.profile)
    name = plain(table.name)
    return next((each for each in profiles.PROFILES if name in each.tables), None)


def _any(name: str) -> Field:
    """A column of that name, as if the table had it."""
    return field(name, 0, TEXT if name == "status" else TIMESTAMPTZ)
