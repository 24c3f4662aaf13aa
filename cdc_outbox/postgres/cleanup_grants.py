"""The rights that the relay needs to remove old rows by itself, where that is configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import ddl
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import FAMILY

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

_GRANTED: Final[LiteralString] = """
{family}
select coalesce(bool_and(pg_catalog.has_schema_privilege(r.oid, c.relnamespace, 'usage')
                         and pg_catalog.has_table_privilege(r.oid, c.oid, 'select')
                         and pg_catalog.has_table_privilege(r.oid, c.oid, 'delete')
                         and pg_catalog.has_any_column_privilege(r.oid, c.oid, 'update')), false)
  from family f join pg_catalog.pg_class c on c.oid = f.relation, pg_catalog.pg_roles r where r.rolname = %s
""".replace("{family}", FAMILY)


def statements(settings: Settings, role: str) -> sql.Composed:
    """What to grant a role that removes rows of the tables; nothing where rows are kept."""
    tables = settings.outbox.tables if settings.cleanup.older_than is not None else ()
    return sql.SQL("\n").join(
        sql.SQL(ddl.read("cleanup")).format(role_name=sql.Literal(role), table_name=sql.Literal(str(table)))
        for table in tables
    )


async def granted(conn: Connection, settings: Settings, role: str) -> bool:
    """Whether the role has all of that."""
    if settings.cleanup.older_than is None:
        return True
    for table in settings.outbox.tables:
        if not await may(conn, table, role):
            return False
    return True


async def may(conn: Connection, table: TableName, role: str) -> bool:
    """Whether the role may remove rows of the table and of all its partitions."""
    ((has,),) = await execute(conn, _GRANTED, (table.schema, table.name, role))
    return bool(has)
