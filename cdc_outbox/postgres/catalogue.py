"""The outbox table as the live catalogue has it: would its rows become messages?

Asked once, before the first row: a table without a key, or a column that never arrives, is then named at start and
not in the middle of the night. Rows of the past are another matter. Their columns come with the stream, and this
answer is never used for them.

Generated columns reach the stream only from PostgreSQL 18 on, and only stored ones where the publication asks for
them. https://www.postgresql.org/docs/current/logical-replication-gencols.html
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, LiteralString

import orjson
from psycopg import sql

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, MappingError
from cdc_outbox.event import quote
from cdc_outbox.postgres import slip
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.postgres.named_words import require_words
from cdc_outbox.postgres.outbox import BASE, type_of
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.table.mapping import NoKey

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.table.mapping import Mapping, Plan
    from cdc_outbox.table.values import Field

_log = log.get(__name__)

SAMPLE: Final = 100
"""Rows whose payloads are looked at for members that could be the key."""

_SHOWN: Final = 12
_NEVER_NULL: Final = "it is NOT NULL"
_LARGEST: Final = 65_536

_TABLE: Final[LiteralString] = """
select c.oid::int8, a.attname::text, a.atttypmod, a.attgenerated::text,
       coalesce((select to_jsonb(p) ->> 'pubgencols' from pg_catalog.pg_publication p where p.pubname = %s), 'n'),
       a.attnotnull, case when a.attgenerated = '' then pg_catalog.pg_get_expr(d.adbin, d.adrelid) end,
       b.oid::int8, b.namespace, b.name
  from pg_catalog.pg_class c
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_catalog.pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
 cross join lateral {base} b
 where n.nspname = %s and c.relname = %s
 order by a.attnum
""".replace("{base}", BASE)

_MAY_READ: Final[LiteralString] = """
select coalesce(pg_catalog.has_table_privilege(c.oid, 'select'), false)
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where n.nspname = %s and c.relname = %s
"""


class NoMark(MappingError):
    """The column that is taken for a row's mark says of each row that it was sent."""

    table: TableName


async def required(conn: Connection, mapping: Mapping, table: TableName, publication: str) -> Plan:
    """As `preview`; raises SetupError where there is no such table."""
    plan = await preview(conn, mapping, table, publication)
    if plan is None:
        raise await slip.no_table(conn, table, mapping.settings.tables)
    return plan


async def preview(conn: Connection, mapping: Mapping, table: TableName, publication: str) -> Plan | None:
    """The plan for rows that are written from now on; None where there is no such table.

    Raises MappingError where the table's columns can't become messages: NoKey with the members of a sample of
    payloads, if the role may read the table; for a column that is needed but never arrives; and for a word that is
    named and can't be.
    """
    rows = await execute(conn, _TABLE, (publication, table.schema, table.name))
    if not rows:
        return None
    columns, absent, filled = [], set(), {}
    for _, name, typmod, generated, published, not_null, default, *under in rows:
        columns.append(Column(str(name), type_of(*under), int(typmod), False))
        if not_null or (default is not None and not str(default).lower().startswith("null")):
            filled[str(name)] = _NEVER_NULL if not_null else f"it has the default {default}"
        if generated and not (generated == "s" and published == "s"):
            absent.add(str(name))
    oid = int(rows[0][0])
    if absent:
        _require_to_arrive(_relation(oid, table, columns), absent, mapping, publication)
    arriving = [column for column in columns if column.name not in absent]
    try:
        plan = mapping.plan(_relation(oid, table, arriving))
    except NoKey as error:
        raise await _with_members(conn, error, table) from None
    await require_words(conn, table, mapping.settings, plan.bookkeeping)
    _require_to_wait(plan, filled, mapping)
    return plan


def _require_to_wait(plan: Plan, filled: dict[str, str], mapping: Mapping) -> None:
    """Raise MappingError where a time that is taken for that of the sending is there from the insert on."""
    sent = plan.bookkeeping.sent
    if sent is None or sent.by != "time" or sent.field.name not in filled:
        return
    name, why = sent.field.name, filled[sent.field.name]
    named = "sent_at" in mapping.settings.columns
    if named and why != _NEVER_NULL:
        return
    otherwise = (
        "" if why == _NEVER_NULL else f"; or, if rows are inserted with NULL in it: --column sent_at={name}"
    )
    error = NoMark(
        f"column {quote(name)} of {plan.table} can't be the time that is NULL until a row was sent: {why}, so each row "
        "would be left out as sent already",
        next="name the right one: --column sent_at=NAME"
        if named
        else f"say what it is: --column created_at={name}, or --column timestamp={name}{otherwise}",
    )
    error.table = plan.table
    raise error


def _relation(oid: int, table: TableName, columns: list[Column]) -> Relation:
    return Relation(oid, table.schema, table.name, "d", tuple(columns))


def _require_to_arrive(whole: Relation, absent: set[str], mapping: Mapping, publication: str) -> None:
    """Raise MappingError if the mapping would use a column that no row in the stream has."""
    try:
        plan = mapping.plan(whole)
    except MappingError:
        return  # it is wrong without the question of what arrives
    for role, field in plan.needed.items():
        if field.name in absent:
            raise MappingError(
                f"column {quote(field.name)} of {plan.table}, which the {role} would come from, is generated, and "
                "generated columns don't arrive in the stream",
                next="name an ordinary column instead (--column, --key, --topic); or on PostgreSQL 18, where it is "
                f"a stored one: alter publication {quote(publication)} set (publish_generated_columns = stored);",
            )
    lost = sorted(field.name for field in plan.optional.values() if field.name in absent)
    if lost:
        _log.warning("generated columns don't arrive in the stream", table=str(plan.table), columns=lost)


async def _with_members(conn: Connection, error: NoKey, table: TableName) -> NoKey:
    """The same error, with what a key could be taken from."""
    members = await _members(conn, error.payload, table)
    if not members:
        return error
    likely = next((name for name in members if name.lower().endswith("id")), members[0])
    pointer = likely.replace("~", "~0").replace("/", "~1")
    more = ", …" if len(members) > _SHOWN else ""
    return NoKey(
        f"{error}; its payloads have the members {', '.join(members[:_SHOWN])}{more}",
        advice=f"name the key, as --key payload:/{pointer} or --key COLUMN, one of {', '.join(error.columns)}; "
        "or give up order with --key none",
        besides=error.besides,
    )


async def _members(conn: Connection, field: Field | None, table: TableName) -> list[str]:
    """Names of the texts and numbers in a sample of payloads, the most frequent first; none where it can't be read."""
    if field is None:
        return []
    query = sql.SQL(
        "select payload from (select {column}::text as payload from {table} limit {rows}) sample"
        " where octet_length(payload) <= {largest}"
    ).format(
        column=sql.Identifier(field.name),
        table=await rows_of(conn, table),
        rows=sql.Literal(SAMPLE),
        largest=sql.Literal(_LARGEST),
    )
    try:
        ((may_read,),) = await execute(conn, _MAY_READ, (table.schema, table.name))
        rows = await execute(conn, query) if may_read else []
    except CdcOutboxError:
        return []  # a sample is a courtesy; what is wrong is known without it
    found: Counter[str] = Counter()
    for (payload,) in rows:
        try:
            document = orjson.loads(payload)
        except ValueError:
            continue
        if isinstance(document, dict):
            found.update(
                name
                for name, value in document.items()
                if isinstance(value, str | int) and not isinstance(value, bool) and name.isprintable()
            )
    return [name for name, _ in found.most_common(_SHOWN + 1)]
