"""Writing a table's own marks: this row was sent.

Delivered rows are named by their key and found by its index. Rows that are marked already, and rows that somebody else
has locked, are passed over. The table is never waited for: a lock on it is an error after two seconds. By the time that
a mark has waited, its key may be another row's, one that isn't delivered: then the transaction that wrote the row has
to be proven too, as below.

Rows whose marks were lost (a crash, a table that was locked for too long) are found by a search of the whole table, a
few blocks at a time, in the parts of it of which is known which rows were left behind (`whole`). A row counts as
delivered there by the transaction that wrote it: it had ended before the position that is known to be delivered.

https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable, SetupError
from cdc_outbox.postgres import sqlstate, whole
from cdc_outbox.postgres.acknowledged import Acknowledged, Proof, is_recent, newest
from cdc_outbox.postgres.catalogue import required
from cdc_outbox.postgres.connection import (
    PUBLIC,
    TRIGGERS_SEE_PUBLIC,
    Connection,
    beside_parameters,
    connect_control,
    execute,
)
from cdc_outbox.postgres.family import FAMILY
from cdc_outbox.postgres.markable import examine
from cdc_outbox.postgres.unsent import says, unsent
from cdc_outbox.postgres.whole import Whole
from cdc_outbox.table.compiler import selected

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.markable import Markable, Written
    from cdc_outbox.postgres.whole import Keys, Rows
    from cdc_outbox.settings import OutboxSettings, PostgresSettings
    from cdc_outbox.table.mapping import Mapping, Plan

_log = log.get(__name__)

BATCH: Final = 1000
"""Rows in a statement, at most."""

BLOCKS: Final = 128
"""Blocks of the table that a statement of the search looks at."""

PLACES: Final = 2048
"""Places for rows that a block is counted with: no block of any size has more.

https://github.com/postgres/postgres/blob/master/src/include/access/htup_details.h (MaxHeapTuplesPerPage)
"""

WIDTH: Final = BLOCKS * PLACES
"""Places in these blocks."""

# What planner statistics say of a table that lives by the minute is seldom true: a key is always looked up.
_SESSION: Final[LiteralString] = """
set row_security = off; set lock_timeout = '2s'; set statement_timeout = '8s';
set enable_seqscan = off; set enable_hashjoin = off; set enable_mergejoin = off;
"""

_BY_KEY: Final[LiteralString] = """
with free as (
    select {key} from {table} as t
     where {trigger} and {named} and {unmarked} and {below} for no key update of t skip locked),
marked as (
    update {table} as t set {written} from free where {same} and {unmarked} returning 1)
select count(*) from marked
""".replace("{trigger}", TRIGGERS_SEE_PUBLIC)

_BELOW: Final[LiteralString] = "pg_catalog.age(t.xmin) > pg_catalog.age(%s::pg_catalog.xid)"

_LEFT: Final[LiteralString] = """
select count(*) filter (where {unmarked}), count(*) from {table} as t where {named}
"""

# A snapshot's xmax is behind the last transaction that has ended; the age of a number counts to the next one.
_NEXT: Final[LiteralString] = """
select oldest::text::int8 + pg_catalog.age(oldest::text::xid8::xid)
  from pg_catalog.pg_snapshot_xmin(pg_catalog.pg_current_snapshot()) as oldest
"""

_BY_PLACE: Final[LiteralString] = """
with free as (
    select {key} from {table} as t
     where {trigger} and t.ctid >= {first}::tid and t.ctid < {last}::tid and {unmarked} and {sent}
     limit {batch} for no key update of t skip locked),
marked as (
    update {table} as t set {written} from free where {same} and {unmarked} returning 1)
select (select count(*) from marked), (select count(*) from free)
""".replace("{trigger}", TRIGGERS_SEE_PUBLIC)

_BLOCKS: Final[LiteralString] = """
{family}
select coalesce(max(pg_catalog.pg_relation_size(relation)
                    / pg_catalog.current_setting('block_size')::int8), 0)::int8 from family
""".replace("{family}", FAMILY)

_OF_ROWS: Final = frozenset({"09", "22", "23", "27", "38", "39", "44", "P0"})
"""Classes of SQLSTATE that tell of data, constraints and triggers."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """Which rows were delivered: of transactions below `horizon`, 64 bits, but for those that were left behind."""

    horizon: int
    whole: Whole


@dataclass(frozen=True, slots=True)
class Outcome:
    """How many rows were marked, and left since somebody has them locked.

    `unseen`: some were not found: deleted, or not visible before transactions below this one have ended.
    """

    marked: int
    locked: int = 0
    unseen: int | None = None


async def next_transaction(conn: Connection) -> int:
    """The number that no transaction has yet, as 64 bits."""
    ((number,),) = await execute(conn, _NEXT)
    return int(number)


async def connect(settings: PostgresSettings, *, application_name: str, like: Connection) -> Connection:
    """A connection for marks alone, to the server of `like`. Raises as `connect_control` does."""
    if like.closed:
        raise PostgresUnavailable(
            "the control connection is away", next="nothing to do: the relay reconnects by itself"
        )
    conn = await connect_control(settings, application_name=application_name, like=like)
    try:
        await execute(conn, _SESSION)
    except BaseException:
        await conn.close()
        raise
    return conn


async def marking(
    conn: Connection, mapping: Mapping, settings: OutboxSettings, table: TableName, publication: str
) -> Marking:
    """How rows of the table are marked. Raises SetupError, MissingRight and MappingError where they can't be."""
    return await planned(conn, await required(conn, mapping, table, publication), settings)


async def planned(conn: Connection, plan: Plan, settings: OutboxSettings) -> Marking:
    """How rows of the plan's table are marked. Raises SetupError and MissingRight where they can't be."""
    deciding = [each.name for each, _ in selected(settings, plan.table, plan.shape)]
    how = await examine(conn, plan, deciding=deciding)
    return Marking(how, await whole.rows(conn, settings, plan.table, plan.shape))


async def whole_parts(conn: Connection, slot: str, markings: Sequence[Marking]) -> Whole | None:
    """The parts of which is known which rows were left behind, now that the slot streams; None where nothing keeps it.

    Parts that weren't known to be whole are looked at: where nobody is writing, all that will wait comes by the slot,
    and what waits now is left behind, unless the stream brings it.
    """
    known = await whole.known(conn, slot)
    if known is None:
        return None
    now: dict[str, Keys] = {}
    oids: set[int] = set()
    apart: dict[TableName, sql.SQL] = {}
    for each in markings:
        there = await whole.parts(conn, each.rows)
        found = {name: known[name] for name in there if name in known}
        others = {name: oid for name, oid in there.items() if name not in known}
        if others:
            room = whole.LIMIT - sum(len(keys) for keys in (*known.values(), *now.values()))
            new = await _looked_at(conn, each, others, max(room, 0))
            _tell_of_changed(each, known, new)
            found |= new
        now |= found
        oids |= {there[name] for name in found}
        if left := [key for keys in found.values() for key in keys]:
            apart[each.how.table] = each.rows.apart(left)
    if now.keys() != known.keys() and not await whole.remember(conn, slot, known, now):
        return await whole_parts(conn, slot, markings)  # something happened to the publication meanwhile
    return Whole(frozenset(oids), apart)


async def _looked_at(conn: Connection, each: Marking, others: dict[str, int], room: int) -> dict[str, Keys]:
    """Those of these parts of a table that are whole from now on; none if that takes too long."""
    busy = await whole.written_to(conn, [*others.values()])
    quiet = {name: oid for name, oid in others.items() if oid not in busy}
    try:
        return await whole.left_behind(conn, each.rows, quiet, room=room)
    except SetupError:
        raise
    except CdcOutboxError:
        if conn.closed:
            raise
        return {}


def _tell_of_changed(each: Marking, known: Iterable[str], new: dict[str, Keys]) -> None:
    """Say of how many rows isn't known any more whether they were sent, since their part isn't what it was."""
    places = set(map(whole.place, known))
    unmarked = sum(len(keys) for name, keys in new.items() if whole.place(name) in places)
    if unmarked:
        _log.warning(
            "rows stay unmarked in a table that isn't what it was",
            table=str(each.how.table),
            rows=unmarked,
            why="it has another key, or other rows of it are sent, or a partition was attached again, or written "
            "again by ALTER TABLE: what was sent without a mark can't be told there from what was left out; should "
            "you go back to a polling relay, it sends that again",
            next="mark those that were sent by what you know of them; cdc-outbox find ID says where one is",
        )


def concerns_rows(error: BaseException) -> bool:
    """Whether it is a row that can't be marked, and would not be later: by a constraint, a trigger, its bytes."""
    return isinstance(error, ValueError) or sqlstate.of(error)[:2] in _OF_ROWS


class Marking:
    """The statements for one table."""

    def __init__(self, how: Markable, rows: Rows) -> None:
        self.how = how
        self.rows = rows
        key = [sql.Identifier("t", column.name) for column in how.key]
        free = [sql.Identifier(f"key_{at}") for at in range(len(key))]
        self._parts: dict[str, sql.Composable] = {
            "table": _table(how),
            "key": sql.SQL(", ").join(
                sql.SQL("{} as {}").format(one, name) for one, name in zip(key, free, strict=True)
            ),
            "same": sql.SQL(" and ").join(
                sql.SQL("{} = free.{}").format(one, name) for one, name in zip(key, free, strict=True)
            ),
            "written": sql.SQL(", ").join(map(_assigned, how.written)),
            "unmarked": unsent(how.sent),
        }
        named = _named(how)
        self._by_key, self._by_key_below = (
            _in_one_piece(sql.SQL(_BY_KEY).format(named=named, below=sql.SQL(below), **self._parts))
            for below in ("true", _BELOW)
        )
        self._left = _in_one_piece(sql.SQL(_LEFT).format(named=named, **self._parts))
        self._own_type = any("." in column.type for column in (*how.key, *rows.key))

    async def mark(
        self, conn: Connection, keys: Sequence[str], count: int, below: int | None = None
    ) -> Outcome:
        """Mark the rows with these `count` keys, an array literal for each column of the key.

        `below`: only those that a transaction below it wrote, 64 bits; the others count as locked.
        """
        await self._within_reach(conn)
        if below is None:
            ((marked,),) = await execute(conn, self._by_key, keys)
        else:
            ((marked,),) = await execute(conn, self._by_key_below, (*keys, str(below % 2**32)))
        if marked == count:
            return Outcome(count)
        ((left, found),) = await execute(conn, self._left, keys)
        if found >= count:
            return Outcome(int(marked), int(left))
        return Outcome(int(marked), int(left), await next_transaction(conn))

    async def blocks(self, conn: Connection) -> int:
        """How many blocks the search has to look at: those of the largest partition."""
        ((count,),) = await execute(conn, _BLOCKS, (self.how.table.schema, self.how.table.name))
        return int(count)

    async def search(
        self, conn: Connection, place: int, delivered: Delivered, width: int = WIDTH
    ) -> tuple[int, bool]:
        """Mark what was delivered among the rows at `width` places from `place` on, up to `BATCH` rows.

        Places are counted through all blocks. Returns how many were marked, and whether there may be more at these.
        """
        await self._within_reach(conn)
        now = await newest(conn)
        query = sql.SQL(_BY_PLACE).format(
            first=sql.Literal(tid(place)),
            last=sql.Literal(tid(place + width)),
            batch=sql.Literal(BATCH),
            sent=sql.SQL(" and ").join(self._found(delivered, now)),
            **self._parts,
        )
        ((marked, free),) = await execute(conn, query)
        return int(marked), int(free) == BATCH and int(marked) > 0

    async def _within_reach(self, conn: Connection) -> None:
        """A type that isn't PostgreSQL's own has operators that aren't either."""
        if self._own_type:
            await execute(conn, PUBLIC)

    def _found(self, delivered: Delivered, now: int) -> list[sql.Composable]:
        """A row that we would have sent, and that wasn't left behind, of a transaction ended at the horizon.

        Rows that the old relay gave up aren't taken for ours. Numbers are told apart only for 2^31 transactions: what
        is much older than that is taken as foreign.
        """
        how = self.how
        found = [*self.rows.ours]
        if how.status is not None:
            found.append(sql.SQL("not {}").format(says(how.status, how.given_up)))
        proven = Proof("", delivered.horizon if is_recent(delivered.horizon, now) else None)
        before = Acknowledged(self.how.table, (proven,)).condition(sql.Identifier("t"))
        parts = sql.SQL("t.tableoid = any({}::pg_catalog.oid[])").format(whole.oids(delivered.whole.parts))
        apart = delivered.whole.apart.get(how.table)
        return [*found, before, parts, *([apart] if apart is not None else [])]


def _table(how: Markable) -> sql.Composed:
    """The table with its partitions: what inherits from it otherwise is another table, which may have its keys."""
    table = sql.Identifier(how.table.schema, how.table.name)
    return sql.SQL("{}" if how.partitioned else "only {}").format(table)


def tid(place: int) -> str:
    """The place as PostgreSQL writes it: its block, and its number in that."""
    return "({},{})".format(*divmod(place, PLACES))


def _in_one_piece(statement: sql.Composed) -> sql.SQL:
    """A statement for parameters: putting it together each time costs as much as what is done with it."""
    return sql.SQL(beside_parameters(statement).as_string())


def _named(how: Markable) -> sql.Composed:
    """The rows with the keys of the parameters, an array for each column of the key."""
    types = [column.type.replace("%", "%%") for column in how.key]
    arrays = [sql.SQL("%s::{}[]").format(sql.SQL(type_)) for type_ in types]
    names = [sql.Identifier("t", column.name) for column in how.key]
    if len(names) == 1:
        return sql.SQL("{} = any({})").format(names[0], arrays[0])
    return sql.SQL("({}) in (select * from unnest({}))").format(
        sql.SQL(", ").join(names), sql.SQL(", ").join(arrays)
    )


def _assigned(each: Written) -> sql.Composed:
    column = sql.Identifier(each.name)
    if each.word is not None:
        return sql.SQL("{} = {}").format(column, sql.Literal(each.word))
    return sql.SQL("{0} = coalesce(t.{0}, now() + make_interval(secs => {1}))").format(
        column, sql.Literal(each.seconds)
    )
