"""The order in which the rows of a table were written, as far as the table tells.

By the column that a sequence fills, for that is the order in which the application wrote; else by the time of creation
and the id; else a person says it. A sequence with a cache gives each session a block of numbers, which say in which
order one session wrote, and not which of two was first: then the time comes first. So it does where the application may
hand out the numbers by itself, for then it often takes them in blocks, as Hibernate does: no sequence fills the column,
or one that counts in larger steps. Rows that are written at the same time have no order of their own in any of these.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import SetupError, UsageError
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.remedy import again
from cdc_outbox.table.values import INTEGERS

if TYPE_CHECKING:
    from cdc_outbox.table.mapping import Plan
    from cdc_outbox.table.values import Field

_NUMBERED: Final[LiteralString] = """
select a.attname::text, f.filled, coalesce(s.cache, 1), coalesce(s.step, 1)
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_catalog.pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
  left join pg_catalog.pg_index i on i.indrelid = c.oid and i.indisprimary
  cross join lateral (
       select a.attidentity <> '' or coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid) like 'nextval(%%', false)
              as filled) f
  left join lateral (
       select max(q.seqcache) as cache, max(q.seqincrement) filter (where q.seqincrement <> 1) as step
         from pg_catalog.pg_sequence q
        where q.seqrelid in (
              select p.objid from pg_catalog.pg_depend p
               where p.classid = 'pg_catalog.pg_class'::regclass and p.refclassid = p.classid
                 and p.refobjid = c.oid and p.refobjsubid = a.attnum
               union all
              select p.refobjid from pg_catalog.pg_depend p
               where p.classid = 'pg_catalog.pg_attrdef'::regclass and p.objid = d.oid
                 and p.refclassid = 'pg_catalog.pg_class'::regclass)) s on true
 where n.nspname = %s and c.relname = %s and a.atttypid::int8 = any(%s)
   and (f.filled or (i.indnatts = 1 and i.indkey[0] = a.attnum))
 order by f.filled desc, coalesce(a.attnum = any(i.indkey), false) desc, a.attnum
 limit 1
"""

_NAME: Final = re.compile(
    r'\s*(?:"((?:[^"\x00]|"")+)"|([^\s",]+))(?:\s+(asc|desc))?\s*(?:,|\Z)', re.IGNORECASE
)


async def written_order(conn: Connection, plan: Plan, order_by: str | None) -> tuple[sql.Composable, str]:
    """The order in which the rows were written, as it stands behind ORDER BY, and in words.

    `order_by`: columns that a person names. Raises UsageError or SetupError for names that can't be, SetupError where
    nothing says the order.
    """
    table, identity = plan.table, plan.layout.id
    if order_by is not None:
        named = [*_named(plan, order_by)]
        if all(field != identity for field, _ in named):
            named.append((identity, ""))
        return _ordering(named)
    found = await execute(conn, _NUMBERED, (table.schema, table.name, sorted(INTEGERS)))
    numbered = plan.shape.find(str(found[0][0])) if found else None
    doubt = _doubt(numbered, *found[0][1:]) if numbered is not None else None
    if numbered is not None and doubt is None:
        return _ordering([(numbered, "")])
    created = plan.optional.get("created_at")
    if created is not None:
        return _ordering([(created, ""), (numbered or identity, "")])
    if numbered is not None:
        raise SetupError(
            f"nothing says in which order the rows of {table} were written: {doubt}, and there is no time of creation",
            next="name the columns to order by, that one if its numbers rise with time: "
            f"--order-by {quote(numbered.name)}",
        )
    raise SetupError(
        f"nothing says in which order the rows of {table} were written: it has neither a column that a sequence fills "
        "nor a time of creation",
        next=f"name the columns to order by: {again(('--order-by', quote(identity.name)))}",
    )


def _doubt(numbered: Field, filled: bool, cache: int, step: int) -> str | None:
    """Why the numbers may not rise with time, in words; None where they do."""
    column = quote(numbered.name)
    if not filled:
        return f"the numbers in {column} are the application's own"
    if cache > 1:
        return f"the sequence of {column} gives each session a block of {cache} numbers (CACHE {cache})"
    if step != 1:
        return (
            f"the sequence of {column} counts in steps of {step} (INCREMENT {step}), as for blocks of numbers"
        )
    return None


def _named(plan: Plan, text: str) -> list[tuple[Field, str]]:
    """The columns of `--order-by`, each with its direction."""
    named = []
    at = 0
    while at < len(text):
        found = _NAME.match(text, at)
        if found is None:
            raise UsageError(
                f"--order-by {text!r} is not a list of columns",
                next="name columns, as in --order-by created_at,id",
            )
        quoted, plain, direction = found.groups()
        name = quoted.replace('""', '"') if quoted is not None else plain
        field = plan.shape.find(name)
        if field is None:
            raise SetupError(
                f"table {plan.table} has no column {name!r}, which --order-by names",
                next=f"name one of {', '.join(plan.shape.names)}",
            )
        named.append((field, (direction or "").lower()))
        at = found.end()
    if not named:
        raise UsageError("--order-by is empty", next="name columns, as in --order-by created_at,id")
    return named


def _ordering(named: list[tuple[Field, str]]) -> tuple[sql.Composable, str]:
    order = sql.SQL(", ").join(
        sql.SQL("{} desc" if direction == "desc" else "{}").format(sql.Identifier(field.name))
        for field, direction in named
    )
    words = ", ".join(
        f"{quote(field.name)}{' desc' if direction == 'desc' else ''}" for field, direction in named
    )
    return order, words
