"""Whose a step is: a relay's role owns nothing, so what only an owner may do names the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.postgres import publication as publications
from cdc_outbox.postgres.connection import execute
from cdc_outbox.postgres.remedy import by_owner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.connection import Connection

_OTHERS: Final[LiteralString] = """
select pg_catalog.string_agg(distinct pg_catalog.pg_get_userbyid(o.owner)::text, ' and ')
  from (select pubowner from pg_catalog.pg_publication where pubname = %(publication)s
        union all
        select c.relowner from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema, name)
          join pg_catalog.pg_namespace n on n.nspname = wanted.schema
          join pg_catalog.pg_class c on c.relnamespace = n.oid and c.relname = wanted.name) as o (owner)
 where not pg_catalog.pg_has_role(o.owner, 'usage')
"""


async def by_whom(
    conn: Connection,
    step: str,
    publication: str,
    tables: Sequence[TableName],
    *,
    within: float | None = None,
) -> str:
    """The step as the role of `conn` can do it: with the owner's connection, or as SQL for the owner, by name."""
    wanted = publications.parameters(publication, tables)
    ((others,),) = await execute(conn, _OTHERS, wanted, within=within)
    if others is None:
        return step
    return f"as {others}: {step}" if step.startswith(("alter ", "begin;", "create ")) else by_owner(step)
