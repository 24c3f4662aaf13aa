"""The outbox table: does it stand in the publication as a whole, do its columns make messages, do its rows?

Rows are looked at where the role may read the table, which the relay doesn't need.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError, PoisonEvent, SetupError
from cdc_outbox.event import TableName, quote
from cdc_outbox.postgres import cleanup_grants, heirs, marking, newest_rows, outbox, publication, slip
from cdc_outbox.postgres.catalogue import preview
from cdc_outbox.postgres.connection import execute
from cdc_outbox.postgres.expired import grants
from cdc_outbox.postgres.family import FAMILY
from cdc_outbox.postgres.table_locked import TableLocked
from cdc_outbox.repair.cleanup import aged, old
from cdc_outbox.table.compiler import NO_TYPE
from cdc_outbox.table.doubt import remedy
from cdc_outbox.table.mapping import Mapping
from cdc_outbox.table.recognise import plain

if TYPE_CHECKING:
    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.event import Encoded
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.publication import PassedOver
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan

_PUBLISHED: Final[LiteralString] = """
select p.pubupdate or p.pubdelete or p.pubtruncate, p.puballtables
  from pg_catalog.pg_publication p where p.pubname = %s
"""

_UNLISTED: Final[LiteralString] = """
select a.attname::text
  from pg_catalog.pg_publication p join pg_catalog.pg_publication_rel r on r.prpubid = p.oid
  join pg_catalog.pg_class c on c.oid = r.prrelid join pg_catalog.pg_namespace n on n.oid = c.relnamespace
  join pg_catalog.pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
 where p.pubname = %s and n.nspname = %s and c.relname = %s and a.attnum <> all(r.prattrs)
 order by a.attnum
"""

# At every level. A partition key makes each of its columns depend on its table, those within expressions too.
_PARTITIONED_BY: Final[LiteralString] = """
{family}
select distinct a.attname::text
  from family f join pg_catalog.pg_class p on p.oid = f.relation and p.relkind = 'p'
  join pg_catalog.pg_depend d on d.classid = 'pg_catalog.pg_class'::regclass and d.objid = p.oid
   and d.refclassid = d.classid and d.refobjid = p.oid and d.refobjsubid = 0 and d.deptype = 'i'
  join pg_catalog.pg_attribute a on a.attrelid = p.oid and a.attnum = d.objsubid
 order by 1
""".replace("{family}", FAMILY)

_STATES: Final = frozenset(
    {"status", "state", "sent", "published", "processed", "sentat", "publishedat", "processedat"}
)
"""Names of columns that a mark writes; each name `plain`."""


@dataclass(slots=True)
class Outbox:
    """What Kafka's side has to know of the tables.

    `fixed`: topics that all rows of a table go to; `messages`: what a few rows would become; `keyless`: whether
    events have no key by intention; `mapping`: each table's in words; `whole`: whether all tables are there.
    """

    fixed: set[str] = field(default_factory=set)
    messages: list[Encoded] = field(default_factory=list)
    keyless: bool = False
    mapping: dict[str, str] = field(default_factory=dict)
    whole: bool = True

    @classmethod
    def guessed(cls, settings: Settings) -> Outbox:
        """Without the catalogue, or a mapping: a topic that the settings name for all rows is known all the same."""
        topic = settings.outbox.topic
        return cls(fixed={topic} if topic is not None and "{" not in topic else set())


async def examine(
    conn: Connection, settings: Settings, findings: Findings, role: str, *, within: float
) -> Outbox:
    """Look at each table and its rows. Raises what `execute` raises when the server is gone."""
    found = Outbox.guessed(settings)
    mapping = Mapping(settings.outbox, settings.postgres.slot)
    for table in settings.outbox.tables:
        try:
            plan = await _plan(conn, settings, findings, mapping, table, within)
            if plan is None:
                found.whole = False
                continue
            _take(found, plan)
            await _partitioning(conn, findings, plan, within)
            if settings.outbox.mark == "update":
                await _marks(conn, settings, findings, plan)
            if settings.cleanup.older_than is not None:
                await _cleanup(conn, settings, findings, plan, role, settings.cleanup.older_than)
            await _rows(conn, findings, plan, found, role, within)
        except CdcOutboxError as error:
            findings.refuse("mapping", error)
            if conn.closed:
                raise
    return found


async def _plan(
    conn: Connection,
    settings: Settings,
    findings: Findings,
    mapping: Mapping,
    table: TableName,
    within: float,
) -> Plan | None:
    """The table's plan; None where there is no table to plan for, which is said."""
    try:
        columns = await outbox.columns(conn, table)
    except CdcOutboxError as error:
        findings.refuse("table", error)
        if conn.closed:
            raise
        return None
    if columns is None:
        absent = await slip.no_table(
            conn,
            table,
            settings.outbox.tables,
            otherwise=f"cdc-outbox init --create-table --table {table}\nor name your table with --table SCHEMA.NAME",
        )
        findings.fail("table", str(absent), absent.next)
        return None
    keyless = "" if await outbox.primary_key(conn, table) else f"; {outbox.KEYLESS}"
    findings.ok("table", f"{table}, {len(columns)} columns{keyless}")
    if inheriting := await heirs.unnamed(conn, table, settings.outbox.tables):
        findings.warn("inheritance", heirs.told(table, inheriting), heirs.remedy(inheriting))
    plan = await preview(conn, mapping, table, settings.postgres.publication)
    if plan is None:
        return None
    hidden = await _hidden(conn, plan, settings.postgres.publication, within)
    if hidden:
        findings.fail(
            "mapping",
            f"{table}: {_in_short(plan)}; the publication's column list keeps back {', '.join(hidden)}",
            publication.whole(settings.postgres.publication, table),
        )
    else:
        typeless = NO_TYPE in plan.summary
        findings.ok(
            "mapping",
            f"{table}: {_in_short(plan)}"
            + (f"; {NO_TYPE}, for no column is recognised as type" if typeless else ""),
            "if the table has one, name it: --column type=NAME" if typeless else None,
        )
    return plan


async def _hidden(conn: Connection, plan: Plan, name: str, within: float) -> list[str]:
    """The columns that the mapping takes and the publication's column list leaves out."""
    table = plan.table
    rows = await execute(conn, _UNLISTED, (name, table.schema, table.name), within=within)
    used = {field.name for field in (*plan.needed.values(), *plan.optional.values())}
    return [str(column) for (column,) in rows if column in used]


def _in_short(plan: Plan) -> str:
    """Where the parts that matter most come from, and by which rule."""
    roles = ("key", "topic", "payload", "id", "type", "headers")
    found = {role: plan.summary[role] for role in roles if role in plan.summary}
    rules = {rule for _, rule in found.values()}
    if len(rules) == 1:
        return (
            ", ".join(f"{role} from {source}" for role, (source, _) in found.items())
            + f", all {rules.pop().replace('profile', 'by profile')}"
        )
    return ", ".join(f"{role} from {source} ({rule})" for role, (source, rule) in found.items())


def _take(found: Outbox, plan: Plan) -> None:
    fixed = plan.layout.topics.fixed
    if fixed is not None:
        found.fixed.add(fixed)
    found.keyless = found.keyless or plan.layout.key is None
    found.mapping[str(plan.table)] = plan.describe()


async def _partitioning(conn: Connection, findings: Findings, plan: Plan, within: float) -> None:
    """Warn of a table whose rows move to another partition when they are marked as sent."""
    table = plan.table
    by = [
        str(name)
        for (name,) in await execute(conn, _PARTITIONED_BY, (table.schema, table.name), within=within)
    ]
    sent = plan.bookkeeping.sent
    moving = [name for name in by if plain(name) in _STATES or (sent is not None and name == sent.field.name)]
    if moving:
        findings.warn(
            "partitioning",
            f"{table} is partitioned by {', '.join(moving)}: an UPDATE that moves a row to another partition arrives"
            " as an INSERT and is sent again",
            "partition the table by its time of insertion, or stop updating that column",
        )


async def _marks(conn: Connection, settings: Settings, findings: Findings, plan: Plan) -> None:
    """Can rows be marked as sent, and what runs besides when they are?"""
    try:
        how = (await marking.planned(conn, plan, settings.outbox)).how
    except SetupError as error:
        findings.refuse("marks", error)
        return
    if how.triggers:
        findings.warn(
            "marks",
            f"{plan.table}: {how}; the triggers {', '.join(how.triggers)} run for each row that is marked",
            "see that they may run once more for each event, or leave marking out: --mark none",
        )
    elif how.behind is not None:
        findings.warn(
            "marks",
            f"{plan.table}: {how}; the column {quote(how.behind.name)} looks like a status and stays as it is: an old "
            "relay that goes by it would send all rows again",
            f"name its words under [outbox.status], or with {remedy(how.behind)}",
        )
    else:
        findings.ok("marks", f"{plan.table}: {how}")


async def _cleanup(
    conn: Connection, settings: Settings, findings: Findings, plan: Plan, role: str, age: float
) -> None:
    """Can the relay remove old rows by itself? Whatever is in the way of that, it delivers all the same."""
    table, postgres = plan.table, settings.postgres
    try:
        by = aged(plan, age)
    except SetupError as error:
        findings.warn("cleanup", str(error), error.next)
        return
    by_owner = postgres.admin_dsn not in ("", postgres.dsn)
    if not by_owner and not await cleanup_grants.may(conn, table, role):
        findings.warn(
            "cleanup",
            f"{role} may not remove rows of {table}, so those that are {old(age)} stay",
            f"as its owner: {grants(table, plan.layout.id.name, role)} or name an owner's connection in"
            " postgres.admin_dsn",
        )
        return
    told = f", by {quote(by.name)}" if by is not None else ""
    findings.ok("cleanup", f"{table}: rows that are {old(age)} go once they are acknowledged{told}")


async def _rows(
    conn: Connection, findings: Findings, plan: Plan, found: Outbox, role: str, within: float
) -> None:
    table = plan.table
    try:
        sample = await newest_rows.sample(
            conn, table, plan.shape.names, plan.layout.payload.name, within=within
        )
    except TableLocked:
        findings.ok("rows", f"not looked at: another session has {table} to itself just now")
        return
    if sample is None:
        findings.ok(
            "rows",
            f"not looked at: {role} may not read {table}, and the relay need not",
            f"grant select on {table} to {quote(role)};",
        )
        return
    if not sample:
        findings.ok("rows", f"{table} is empty")
        return
    left_out: Counter[str] = Counter()
    unfit: list[PoisonEvent] = []
    sent = 0
    for seq, values in enumerate(sample):
        try:
            message = plan.encode(values, 0, seq, time.time_ns() // 1000)
        except PoisonEvent as poison:
            unfit.append(poison)
        else:
            if isinstance(message, str):
                left_out[message] += 1
            else:
                found.messages.append(message)
                sent += 1
    looked = f"{len(sample)} of the newest rows of {table}"
    others = "".join(f", {count} left out by {reason}" for reason, count in left_out.items())
    if unfit:
        first = unfit[0]
        why = str(first).partition("can't be published: ")[2] or str(first)
        findings.warn(
            "rows",
            f"{looked}: {len(unfit)} can't be published, the first ({first.event_id or 'without an id'}) because {why}",
            first.next,
        )
    else:
        findings.ok("rows", f"{looked}: {sent} would be sent{others}")


async def published_besides(
    conn: Connection, settings: Settings, passed_over: PassedOver | None, *, within: float
) -> dict[str, str]:
    """What the publication carries beyond the inserts on our tables, each with its remedy."""
    name = settings.postgres.publication
    rows = await execute(conn, _PUBLISHED, (name,), within=within)
    if not rows:
        return {}
    more_than_inserts, everything = rows[0]
    quoted = quote(name)
    found = {}
    if everything:
        found[
            f"{name} is for all tables: every change of the database is sent to the relay, which passes over it"
        ] = "cdc-outbox init --publication ANOTHER --slot ANOTHER"
    if passed_over is not None:
        found[
            f"{passed_over}: rows of those are passed over, and no other relay gets them from this slot"
        ] = passed_over.dropping
    if more_than_inserts and not everything:
        found[
            f"{name} publishes more than inserts: updates and deletes are sent to the relay, which passes over them"
        ] = f"alter publication {quoted} set (publish = 'insert');"
    return found
