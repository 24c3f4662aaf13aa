"""The parts of the tables of which is known which rows were left behind: what else is unsent there came by the slot, or
will.

Only there may unmarked rows be looked for. The transaction of a row (`xmin`) says nothing of it, for any UPDATE gives
it a new one. A part is a table, or one partition of it. The witness row names those that are whole, each with the keys
of the rows that were left behind in it, which are never taken for sent, whoever changes them and whatever they say by
then. They are written where it is decided what is sent: by `init` for all that waited, by `backfill` for what it
didn't publish, and by a relay for all that waits in a part which the row doesn't name. There are `LIMIT` of them at
most; parts with more aren't whole. An accepted gap, and anything that happened to the publication or to the choice of
tables, empties the list.

A part's name tells whether it is still what it was: the OIDs and the xmin of the rows in pg_inherits on the way down to
it, which are new where it was attached again; a witness that it was never unlogged; and which of its rows are sent,
which are marked, and what a row is known by.

That witness is the oldest row by which a publication names the part itself, for PostgreSQL refuses to make such a table
unlogged; else its TOAST table, which ALTER TABLE makes anew where it writes the rows again, as it does for SET UNLOGGED
and SET LOGGED, and which VACUUM FULL and CLUSTER keep; else its file. So a partition whose rows ALTER TABLE has written
again, for a new type say, is looked at like one that is new.

https://github.com/postgres/postgres/blob/master/src/backend/commands/tablecmds.c (ATPrepChangePersistence)
https://github.com/postgres/postgres/blob/master/src/backend/commands/cluster.c (swap_relation_files)
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeAlias

from psycopg import sql

from cdc_outbox import log
from cdc_outbox.postgres import markable
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.postgres.unsent import among, unsent
from cdc_outbox.table import compiler

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.markable import KeyColumn
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.recognise import Shape

_log = log.get(__name__)

LIMIT: Final = 10_000
"""Rows left behind whose keys are kept for a slot, at most."""

SETTLED: Final = 2.0
"""Seconds that transactions which are open are given to end."""

LOOK: Final = 0.1
"""Seconds between looks at them."""

_ATTACHED: Final = re.compile(r"@\d+")

_INTEGERS: Final = frozenset({"smallint", "integer", "bigint"})
"""Types of one of which a key may become another: its text stays, and the name of its part."""

Keys: TypeAlias = "list[list[str]]"
"""Keys of rows: for each row the texts of its key's columns."""

# What inherits from a table that isn't partitioned is another table.
_PARTS: Final[LiteralString] = """
with recursive family (relation, way) as (
    select c.oid, c.oid::text
      from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
     where n.nspname = %s and c.relname = %s
    union all
    select i.inhrelid, f.way || '/' || i.inhrelid || '@' || i.xmin
      from family f join pg_catalog.pg_inherits i on i.inhparent = f.relation
      join pg_catalog.pg_class c on c.oid = i.inhrelid and c.relispartition)
select f.way || ':' || coalesce('p' || (select min(r.oid) from pg_catalog.pg_publication_rel r where r.prrelid = c.oid),
                             't' || nullif(c.reltoastrelid, 0), 'f' || c.relfilenode),
       f.relation::int8
  from family f join pg_catalog.pg_class c on c.oid = f.relation
 where c.relkind = 'r' and c.relpersistence = 'p'
"""

# A table that another version has made goes without it, or has another kind of it: then nothing is searched for.
_COLUMN: Final[LiteralString] = """
select from pg_catalog.pg_attribute where attrelid = pg_catalog.to_regclass('public.cdc_outbox_witness')
   and attname = 'whole' and not attisdropped and atttypid = 'pg_catalog.jsonb'::pg_catalog.regtype
"""
_READ: Final[LiteralString] = "select whole from public.cdc_outbox_witness where slot = %s"
_CHANGE: Final[LiteralString] = """
update public.cdc_outbox_witness set whole = %s::jsonb where slot = %s and whole = %s::jsonb returning 1
"""
_FORGET: Final[LiteralString] = "update public.cdc_outbox_witness set whole = '{}' where slot = %s"

_WRITERS: Final[LiteralString] = """
select distinct relation::int8, virtualtransaction from pg_catalog.pg_locks
 where locktype = 'relation' and relation::int8 = any(%s) and pid is distinct from pg_catalog.pg_backend_pid()
   and mode not in ('AccessShareLock', 'RowShareLock')
   and database = (select oid from pg_catalog.pg_database where datname = current_database())
"""

_LEFT: Final[LiteralString] = """
select tableoid::int8, {key} from {table} where tableoid = any({parts}::pg_catalog.oid[]) and {left} limit {limit}
"""
_HOLDING: Final[LiteralString] = """
select distinct tableoid::int8 from {table} where tableoid = any({parts}::pg_catalog.oid[]) and {left}
"""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a table that are sent: what holds for them (`ours`), and for those without a mark (`unmarked`).

    `key`: the columns that tell one from all others, if there are such; `digest`: a short text that is another one for
    other rows. The conditions name columns without the table.
    """

    table: TableName
    ours: tuple[sql.Composable, ...]
    unmarked: sql.Composable | None
    key: tuple[KeyColumn, ...]
    digest: str

    @property
    def waits(self) -> tuple[sql.Composable, ...]:
        """What holds for rows that may be unsent."""
        return (*self.ours, *([self.unmarked] if self.unmarked is not None else []))

    def apart(self, left: Sequence[Sequence[str]]) -> sql.SQL:
        """What holds for rows, called `t`, that have none of these keys, in one piece: it may be long."""
        columns = [sql.Identifier("t", column.name) for column in self.key]
        arrays = [
            sql.SQL("{}::{}[]").format(sql.Literal(list(values)), sql.SQL(column.type))
            for values, column in zip(zip(*left, strict=True), self.key, strict=True)
        ]
        if len(columns) == 1:
            condition = sql.SQL("{} <> all({})").format(*columns, *arrays)
        else:
            condition = sql.SQL("({}) not in (select * from unnest({}))").format(
                sql.SQL(", ").join(columns), sql.SQL(", ").join(arrays)
            )
        return sql.SQL(condition.as_string())


@dataclass(frozen=True, slots=True)
class Whole:
    """The parts that are whole, by their OIDs, and what holds for rows that weren't left behind, called `t`."""

    parts: frozenset[int]
    apart: Mapping[TableName, sql.SQL] = field(default_factory=dict)


async def rows(conn: Connection, settings: OutboxSettings, table: TableName, shape: Shape) -> Rows:
    """The rows of the table that are sent, by the columns of `shape`. Raises MappingError."""
    chosen = compiler.selected(settings, table, shape)
    sent = compiler.bookkeeping(settings, table, shape).sent
    key = await markable.identity(conn, table)
    told: list[object] = [sorted((each.name, sorted(values)) for each, values in chosen)]
    told += [([each.name for each in sent.fields], sent.by, sorted(sent.words)) if sent is not None else None]
    told += [[(column.name, "" if column.type in _INTEGERS else column.type) for column in key]]
    return Rows(
        table,
        tuple(among(chosen)),
        unsent(sent) if sent is not None else None,
        key,
        hashlib.sha256(repr(told).encode()).hexdigest()[:16],
    )


async def parts(conn: Connection, of: Rows) -> dict[str, int]:
    """The parts of the table, by their names, with their OIDs."""
    found = await execute(conn, _PARTS, (of.table.schema, of.table.name))
    return {f"{name}:{of.digest}": int(oid) for name, oid in found}


def place(name: str) -> str:
    """What of a part's name stays whatever becomes of it: the OIDs down to it."""
    return _ATTACHED.sub("", name.partition(":")[0])


async def left_behind(
    conn: Connection,
    of: Rows,
    parts: Mapping[str, int],
    *besides: sql.Composable,
    room: int = LIMIT,
    within: float | None = None,
) -> dict[str, Keys]:
    """The keys of rows that may be unsent, by the name of their part; `besides` holds for them too.

    Where there are more of them than `room`, or rows have no key, only parts without such rows are returned. Raises
    what `execute` raises; it has `within` seconds for a statement.
    """
    if not parts:
        return {}
    told = {
        "table": sql.Identifier(of.table.schema, of.table.name),
        "parts": oids(parts.values()),
        "left": sql.SQL(" and ").join([sql.SQL("true"), *of.waits, *besides]),
    }
    if of.key:
        key = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(each.name)) for each in of.key)
        query = sql.SQL(_LEFT).format(key=key, limit=sql.Literal(room + 1), **told)
        keys = _sorted(await execute(conn, query, within=within), parts.values())
        if keys is not None and sum(map(len, keys.values())) <= room:
            return {name: keys[oid] for name, oid in parts.items()}
        _log.warning(
            "more rows are left behind than are remembered",
            table=str(of.table),
            remembered=room,
            why="what was sent without a mark can't be told from them: should you go back to a polling relay, it "
            "sends that again",
        )
    holding = {int(oid) for (oid,) in await execute(conn, sql.SQL(_HOLDING).format(**told), within=within)}
    return {name: [] for name, oid in parts.items() if oid not in holding}


def _sorted(found: Iterable[Sequence[Any]], parts: Collection[int]) -> dict[int, Keys] | None:
    """Keys by their part; None for bytes that are no text."""
    keys: dict[int, Keys] = {oid: [] for oid in parts}
    try:
        for oid, *key in found:
            keys[int(oid)].append([each.decode() if isinstance(each, bytes) else str(each) for each in key])
    except UnicodeDecodeError:
        return None
    return keys


async def kept(conn: Connection) -> bool:
    """Whether the witness table can remember whole parts."""
    return bool(await execute(conn, _COLUMN))


async def known(conn: Connection, slot: str) -> dict[str, Keys] | None:
    """The names of the parts that are whole, with the keys left behind in each; None where nothing keeps them."""
    found = await execute(conn, _READ, (slot,)) if await kept(conn) else []
    return {str(name): keys for name, keys in found[0][0].items()} if found else None


async def remember(conn: Connection, slot: str, before: Mapping[str, Keys], now: Mapping[str, Keys]) -> bool:
    """Write that these parts are whole, and no others; False where it isn't as it was before any more."""
    return bool(await execute(conn, _CHANGE, (written(now), slot, written(before))))


async def forget(conn: Connection, slot: str) -> None:
    """Remember that rows may be left behind anywhere."""
    if await kept(conn):
        await execute(conn, _FORGET, (slot,))


def written(parts: Mapping[str, Keys]) -> str:
    """The parts as the witness row has them, as JSON."""
    return json.dumps(parts)


async def is_left_behind(
    relay: Connection, conn: Connection, slot: str, of: Rows, event_column: str, event_id: str
) -> bool:
    """Whether the row with this id was left behind for good when the slot was made: nothing has sent it since.

    Only while it has no mark that says otherwise, and as far as the keys are kept. `relay` reads the witness, `conn`
    the table.
    """
    names = await parts(conn, of)
    left = [key for name, keys in (await known(relay, slot) or {}).items() if name in names for key in keys]
    if not left or not of.key:
        return False
    query = sql.SQL(
        "select from {table} as t where {id} = {event} and {waits} and not ({apart}) limit 1"
    ).format(
        table=await rows_of(conn, of.table),
        id=sql.Identifier("t", event_column),
        event=sql.Literal(event_id),
        waits=sql.SQL(" and ").join([sql.SQL("true"), *of.waits]),
        apart=of.apart(left),
    )
    return bool(await execute(conn, query, within=65))


async def written_to(conn: Connection, relations: Sequence[int]) -> set[int]:
    """Those of the relations that a transaction may have written to which doesn't end in a moment, SETTLED seconds."""
    now = asyncio.get_running_loop().time
    deadline = now() + SETTLED
    writers = await _writers(conn, relations)
    while writers and now() < deadline:
        await asyncio.sleep(LOOK)
        writers &= await _writers(conn, relations)
    return {relation for relation, _ in writers}


async def _writers(conn: Connection, relations: Sequence[int]) -> set[tuple[int, str]]:
    found = await execute(conn, _WRITERS, (list(relations),))
    return {(int(relation), str(transaction)) for relation, transaction in found}


def oids(relations: Iterable[int]) -> sql.Literal:
    """An array of OIDs, without its type."""
    return sql.Literal("{" + ",".join(map(str, sorted(relations))) + "}")
