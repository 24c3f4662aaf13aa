"""The publication: what it hides.

A publication that is missing, lacks the table or filters rows looks like an idle server: PostgreSQL skips
the rows in silence (18 even for a missing publication), and what was skipped is behind the slot and
nowhere else. So it is looked at before streaming starts and every second after, in one short query,
without any right on the tables. Whether it is still the one that we knew `publication_identity.py` tells.

https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

from cdc_outbox.errors import PublicationWrong, SetupError
from cdc_outbox.event import TableName, quote
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.outbox import TRACELESS, no_table, without_traces
from cdc_outbox.postgres.publication_identity import Identity, Member, Row
from cdc_outbox.postgres.remedy import accept_gap


@dataclass(frozen=True, slots=True)
class PublicationState:
    """One look at the publication.

    `problem` says all that it hides, None when it is as it should be; `next` is the remedy, as SQL.
    `identity` is None when the publication or a table is missing. `insert_lsn` is where the server's WAL
    ended at the look, None on a standby. `traceless`: what was hidden meanwhile can't be told from the identity
    afterwards, for a table or a partition is unlogged, or went by another name or schema. `tables` are those of the
    wanted tables that there are, by name.
    """

    name: str
    problem: str | None
    next: str
    identity: Identity | None
    insert_lsn: LSN | None
    traceless: bool = False
    tables: tuple[tuple[str, Member], ...] = ()

    def require(self) -> None:
        """Raise PublicationWrong if there is a problem."""
        if self.problem is not None:
            raise PublicationWrong(self.problem, next=self.next)


# `own`: the row is of the table itself or its schema; `above`: it is of a partition root of it, or that one's schema.
_MEMBERS: Final[LiteralString] = """
    select r.oid, r.xmin::text as xmin, r.prqual is not null as filtered, r.prattrs is not null as listed,
           r.prrelid = c.oid as own, r.prrelid <> c.oid as above
      from pg_publication_rel r
     where r.prpubid = p.oid
       and (r.prrelid = c.oid or r.prrelid in (select relid from pg_partition_ancestors(c.oid) as a (relid)))
    union all
    select s.oid, s.xmin::text, false, false, s.own, s.above
      from (select s.oid, s.xmin, s.pnnspid = c.relnamespace as own,
                   s.pnnspid in (select k.relnamespace from pg_partition_ancestors(c.oid) as a (relid)
                                   join pg_class k on k.oid = a.relid and k.oid <> c.oid) as above
              from pg_publication_namespace s where s.pnpubid = p.oid) s
     where s.own or s.above
"""

# Whether the table is published under its own name is told by the catalogue alone. pg_get_publication_tables() would
# tell it too, but locks each table of the publication for a moment (16 and later), and so waits for whoever has one
# of them to himself: VACUUM FULL, a migration.
LOOK: Final[LiteralString] = """
select p.oid, p.xmin::text, p.pubinsert, p.puballtables,
       c.oid, c.relnamespace, c.relkind::text, c.relpersistence::text, c.relispartition,
       pg_relation_is_publishable(c.oid)
       and case when not p.pubviaroot then c.relkind = 'r' and (p.puballtables or m.own or m.above)
                when p.puballtables then not c.relispartition
                else m.own and not m.above end,
       m.list, {traceless},
       case when pg_is_in_recovery() then null else pg_current_wal_insert_lsn()::text end
  from unnest(%(schemas)s::text[], %(names)s::text[]) with ordinality as wanted (schema, name, place)
  left join pg_publication p on p.pubname = %(publication)s
  left join pg_namespace n on n.nspname = wanted.schema
  left join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name
 cross join lateral (
       select coalesce(json_agg(json_build_array(m.oid::int8, m.xmin, m.filtered, m.listed)), '[]'::json),
              coalesce(bool_or(m.own), false), coalesce(bool_or(m.above), false)
         from ({members}) m) as m (list, own, above)
 order by wanted.place
""".replace("{members}", _MEMBERS).replace("{traceless}", TRACELESS)
"""One look, a row for each table in their order; `parameters` fills it, `read_look` reads it."""

# A partition's rows bear the name of its root, whether the publication names the partition as well or not.
_BESIDES: Final[LiteralString] = """
select n.nspname::text, c.relname::text
  from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
  join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace
 where p.pubname = %(publication)s
   and (n.nspname, c.relname) not in (select * from unnest(%(schemas)s::text[], %(names)s::text[]))
   and not (p.pubviaroot and exists (
       select from pg_partition_ancestors(c.oid) as a (relid) join pg_class k on k.oid = a.relid
         join pg_namespace m on m.oid = k.relnamespace
        where (m.nspname, k.relname) in (select * from unnest(%(schemas)s::text[], %(names)s::text[]))))
 order by 1, 2 limit 6
"""

_EXISTS: Final[LiteralString] = "select from pg_publication where pubname = %s"
_NAME: Final[LiteralString] = "select pubname::text from pg_publication where oid = %s::int8::oid"
_UNDER_ANOTHER_NAME: Final[LiteralString] = """
select pubname::text from pg_publication where oid = %s::int8::oid and xmin::text = %s and pubname <> %s
"""
_OF_TABLES: Final[LiteralString] = """
select p.pubname::text from pg_publication p
 where p.pubinsert and p.pubname <> %(publication)s
   and (select bool_and(p.puballtables or exists (
               select from pg_publication_rel r join pg_class c on c.oid = r.prrelid
                 join pg_namespace n on n.oid = c.relnamespace
                where r.prpubid = p.oid and n.nspname = wanted.schema and c.relname = wanted.name))
          from unnest(%(schemas)s::text[], %(names)s::text[]) as wanted (schema, name))
 order by p.puballtables, 1 limit 5
"""


async def exists(conn: Connection, publication: str) -> bool:
    """Whether there is a publication of that name."""
    return bool(await execute(conn, _EXISTS, (publication,)))


async def name_of(conn: Connection, oid: int, *, within: float | None = None) -> str | None:
    """What the publication with this OID is called now; None where it isn't there any more."""
    rows = await execute(conn, _NAME, (oid,), within=within)
    return str(rows[0][0]) if rows else None


async def other_name(conn: Connection, known: Row, name: str) -> str | None:
    """What the known publication is called, where it stands unaltered and `name` isn't it; else None."""
    rows = await execute(conn, _UNDER_ANOTHER_NAME, (known.oid, known.xmin, name))
    return str(rows[0][0]) if rows else None


async def others_of(conn: Connection, publication: str, tables: Sequence[TableName]) -> list[str]:
    """Other publications that have the inserts of all these tables, the first few."""
    rows = await execute(conn, _OF_TABLES, parameters(publication, tables))
    return [str(name) for (name,) in rows]


async def look(
    conn: Connection, publication: str, tables: Sequence[TableName], *, within: float | None = None
) -> PublicationState:
    """Look at the publication and at the place of each table in it, in one query.

    Raises what `execute` raises.
    """
    rows = await execute(conn, LOOK, parameters(publication, tables), within=within)
    return read_look(publication, tables, rows)


_FED: Final[LiteralString] = """
select exists (select from pg_replication_slots
                where plugin = 'pgoutput' and database = current_database() and not temporary
                  and slot_name <> %s and slot_name <> %s)
"""


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Tables that the publication names and the relay isn't told of: it would pass over their rows.

    `fed`: another slot of the database may feed them, or some of them.
    """

    publication: str
    tables: tuple[TableName, ...]
    fed: bool

    def __str__(self) -> str:
        return f"publication {quote(self.publication)} also has {', '.join(map(str, self.tables))}"

    @property
    def dropping(self) -> str:
        """SQL that takes them out of the publication."""
        return f"alter publication {quote(self.publication)} drop table {', '.join(map(str, self.tables))};"

    def refusal(self, slot: str, ours: Sequence[TableName], command: str = "start") -> SetupError:
        """Why nobody may confirm what this slot feeds while these tables are in the publication."""
        every = " ".join(f"--table {shlex.quote(str(table))}" for table in (*ours, *self.tables))
        return SetupError(
            f"{self}: a relay of {', '.join(map(str, ours))} alone would pass over rows of those for good, and there "
            "is no other slot that could feed them",
            next=f"cdc-outbox {command} --slot {slot} {every}; or, where their rows need no delivery: {self.dropping}",
        )


async def passed_over(
    conn: Connection,
    publication: str,
    tables: Sequence[TableName],
    slot: str,
    *,
    within: float | None = None,
) -> PassedOver | None:
    """The publication's other tables, if it names any. Raises what `execute` raises."""
    others = await besides(conn, publication, tables, within=within)
    if not others:
        return None
    ((fed,),) = await execute(conn, _FED, (slot, f"{slot}_pending"), within=within)
    return PassedOver(publication, tuple(others), bool(fed))


async def besides(
    conn: Connection, publication: str, tables: Sequence[TableName], *, within: float | None = None
) -> list[TableName]:
    """Other tables that the publication names, the first few. Raises what `execute` raises."""
    rows = await execute(conn, _BESIDES, parameters(publication, tables), within=within)
    return [TableName(str(schema), str(name)) for schema, name in rows]


def parameters(publication: str, tables: Sequence[TableName]) -> dict[str, object]:
    """What `LOOK` and `besides` want to know."""
    return {
        "publication": publication,
        "schemas": [table.schema for table in tables],
        "names": [table.name for table in tables],
    }


def read_look(
    publication: str, tables: Sequence[TableName], rows: Sequence[Sequence[Any]]
) -> PublicationState:
    """What the rows of `LOOK` say."""
    problems: dict[str, str] = {}
    found: list[tuple[str, Member]] = []
    for table, row in zip(tables, rows, strict=True):
        (
            oid,
            _,
            inserts,
            everything,
            relation,
            schema,
            kind,
            persistence,
            partition,
            listed,
            member_rows,
            traceless,
            _,
        ) = row
        problems |= _problems(
            publication,
            table,
            tables,
            exists=oid is not None,
            inserts=bool(inserts),
            everything=bool(everything),
            kind=kind,
            unlogged=persistence != "p",
            listed=bool(listed),
            filtered=any(member[2] for member in member_rows),
            columns=any(member[3] for member in member_rows),
            member=bool(member_rows),
            partition=bool(partition),
        )
        problems |= without_traces(table, traceless)
        if relation is not None:
            identified = frozenset(Row(int(member[0]), str(member[1])) for member in member_rows)
            found.append((str(table), Member(int(relation), int(schema), identified)))
    oid, xmin, *_, lsn = rows[0]
    complete = oid is not None and len(found) == len(tables)
    # What takes more than SQL comes before all the rest: a table or the publication itself isn't there.
    first = next((each for each in problems.items() if not each[1].endswith(";")), None)
    if first is not None:
        problems = dict([first])
    return PublicationState(
        name=publication,
        problem="; ".join(problems) or None,
        next=" ".join(dict.fromkeys(problems.values())),
        identity=Identity(Row(int(oid), str(xmin)), tuple(found)) if complete else None,
        insert_lsn=LSN.parse(lsn) if lsn is not None else None,
        traceless=any(row[7] != "p" or row[11] for row in rows),
        tables=tuple(found),
    )


def _problems(
    publication: str,
    table: TableName,
    tables: Sequence[TableName],
    *,
    exists: bool,
    inserts: bool,
    everything: bool,
    kind: str | None,
    unlogged: bool,
    listed: bool,
    filtered: bool,
    columns: bool,
    member: bool,
    partition: bool,
) -> dict[str, str]:
    """All that is wrong with one table's place in the publication, each with the SQL that mends it."""
    name = quote(publication)
    if kind is None:
        return {
            f"table {table} does not exist": f"create it, or name the outbox table with --table (now: {table})"
        }
    if problems := no_table(table, kind):
        return problems
    if unlogged:
        problems[f"table {table} is unlogged or temporary, and such tables are not replicated"] = (
            f"alter table {table} set logged;"
        )
    if not exists:
        return problems or {absent(publication): missing(publication, tables)}
    if not inserts:
        problems[f"publication {name} does not publish inserts"] = (
            f"alter publication {name} set (publish = 'insert');"
        )
    if filtered:
        problems[f"publication {name} has a row filter on {table}, which hides rows"] = whole(
            publication, table
        )
    if columns:
        problems[f"publication {name} has a column list on {table}, which hides columns"] = whole(
            publication, table
        )
    if listed or unlogged:
        return problems
    if kind == "p" and (member or everything):
        problems[f"publication {name} publishes the partitions of {table} under their own names"] = (
            f"alter publication {name} set (publish_via_partition_root = true);"
        )
    elif partition and (member or everything):
        problems[f"publication {name} publishes {table} under the name of its partition root"] = (
            f"name the partition root with --table instead (now: {table})"
        )
    else:
        problems[f"publication {name} lacks table {table}"] = f"alter publication {name} add table {table};"
    return problems


def absent(publication: str) -> str:
    """The problem of a publication that there isn't."""
    return f"publication {quote(publication)} does not exist"


def whole(publication: str, table: TableName) -> str:
    """SQL that takes row filter and column list off a table of the publication."""
    name = quote(publication)
    return (
        f"begin; alter publication {name} drop table {table};"
        f" alter publication {name} add table {table}; commit;"
    )


def missing(publication: str, tables: Sequence[TableName], slot: str | None = None) -> str:
    """The next step where the publication is gone and the slot isn't: what loses the least.

    All that was written before is still behind the slot, and is delivered. Rows of the time between are skipped; up
    to 17 the server stops at the first change of that time, and only then delivery has to begin anew.
    """
    create = (
        f"create publication {quote(publication)} for table {', '.join(map(str, tables))}"
        " with (publish = 'insert', publish_via_partition_root = true);"
    )
    return f"{create} then {accept_gap(slot)}, which delivers what came before; rows that came meanwhile are skipped"
