"""Tables that inherit from an outbox table and are no partitions of it: other tables, whose rows nobody here delivers.

Whoever reads the outbox sees their rows too, and so does a polling relay. The stream has them under their own names,
and only where the publication names them; so has whoever reads a table here (`family.rows_of`). An outbox that is
divided by inheritance, as was done before PostgreSQL had partitions, lacks what is written to a part that nobody has
named.

https://www.postgresql.org/docs/current/ddl-inherit.html
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox import log
from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import Connection, execute

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_log = log.get(__name__)

_HEIRS: Final[LiteralString] = """
with recursive heirs (relation) as (
    select i.inhrelid
      from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
      join pg_catalog.pg_inherits i on i.inhparent = c.oid
     where n.nspname = %s and c.relname = %s and c.relkind = 'r'
    union
    select i.inhrelid from heirs h join pg_catalog.pg_inherits i on i.inhparent = h.relation)
select n.nspname::text, c.relname::text
  from heirs h join pg_catalog.pg_class c on c.oid = h.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 order by 1, 2
"""

_SHOWN: Final = 5


async def unnamed(conn: Connection, table: TableName, named: Collection[TableName]) -> list[TableName]:
    """The heirs of the table that aren't among those that are `named`."""
    found = [
        TableName(str(schema), str(name))
        for schema, name in await execute(conn, _HEIRS, (table.schema, table.name))
    ]
    return [heir for heir in found if heir not in named]


async def tell(conn: Connection, table: TableName, named: Collection[TableName]) -> None:
    """Log that nobody delivers the rows of those, where there are any."""
    if found := await unnamed(conn, table, named):
        _log.warning("noticed", what=f"{told(table, found)}; {remedy(found)}")


def told(table: TableName, heirs: Sequence[TableName]) -> str:
    """That nobody delivers their rows, in words."""
    more = ", …" if len(heirs) > _SHOWN else ""
    are = (
        f"inherits from {table} and is another table"
        if len(heirs) == 1
        else f"inherit from {table} and are others"
    )
    return f"{', '.join(map(str, heirs[:_SHOWN]))}{more} {are}: what is inserted there is not sent"


def remedy(heirs: Sequence[TableName]) -> str:
    """How they are delivered, or told apart."""
    flags = " ".join(f"--table {shlex.quote(str(heir))}" for heir in heirs[:_SHOWN])
    return f"where their rows are events, name them too: {flags}; partitions of one table need no names"
