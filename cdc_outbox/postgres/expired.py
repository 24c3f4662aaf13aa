"""Rows of an outbox table that are old enough to go: counted and deleted a few at a time, in short statements.

No index is needed and none is asked for. Each relation that holds rows, the table or its partitions, is walked once by
ranges of its blocks (`Piece`), so that every statement reads a few megabytes, and what was deleted before isn't met
again, dead, by each batch. ONLY, for what inherits from it without being a partition is another table, with rows at
the same places. Each batch is a transaction of its own. It passes over rows that somebody has locked, and judges anew
a row that somebody has changed.

Only a condition of `acknowledged` says which rows may go, and it stands in the very statement that deletes. Rows that
the settings leave out, for another bus for one, may be somebody else's to send: they go only where the table itself
says that they were sent (`ours`), or a person says that they may.

A DELETE sends nothing to Kafka: the publication has inserts only.

https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString, TypeVar

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError, MissingRight, SetupError
from cdc_outbox.event import TableName, quote
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres.ago import ago
from cdc_outbox.postgres.connection import TRIGGERS_SEE_PUBLIC, Connection, execute
from cdc_outbox.postgres.family import FAMILY
from cdc_outbox.postgres.patience import patiently
from cdc_outbox.postgres.unsent import selected, unsent
from cdc_outbox.table.values import INTEGERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.mapping import Plan
    from cdc_outbox.table.values import Field

Answer = TypeVar("Answer")

BLOCKS: Final = 512
"""Blocks of a piece: 4 MiB with the usual block size."""

SHOWN: Final = 5
"""Ids of rows that stay which are told."""

_RELATIONS: Final[LiteralString] = """
{family}
select n.nspname::text, c.relname::text,
       coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::int8
  from family f join pg_catalog.pg_class c on c.oid = f.relation
  join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind = 'r' order by 1, 2
""".replace("{family}", FAMILY)

_COUNT: Final[LiteralString] = """
select count(*) filter (where {delivered} and {ours}), count(*) filter (where not ({delivered})),
       count(*) filter (where {delivered} and not ({ours})) from only {relation} as r
 where {piece} and {old}
"""

_OLDEST: Final[LiteralString] = """
select {id}::text, {time}::text from only {relation} as r
 where {piece} and {old} and not ({delivered}) order by {order} limit {shown}
"""

_DELETE: Final[LiteralString] = """
with gone as (
    delete from only {relation} where ctid = any (array(
        select r.ctid from only {relation} as r
         where {trigger} and {piece} and {old} and {delivered} and {ours} limit {most} for update skip locked))
     returning 1)
select count(*) from gone
""".replace("{trigger}", TRIGGERS_SEE_PUBLIC)


@dataclass(frozen=True, slots=True)
class Piece:
    """Blocks of a relation, from the first up to before the last; None: to its end."""

    relation: TableName
    first: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Kept:
    """A row that is old and not acknowledged: its id and its time, as text."""

    id: str | None
    time: str | None


@dataclass(frozen=True, slots=True)
class Count:
    """Old rows: `delivered` ones, which may go; `undelivered` ones, the oldest of them by name; and those left out."""

    delivered: int = 0
    undelivered: int = 0
    left_out: int = 0
    oldest: tuple[Kept, ...] = ()

    def __add__(self, other: Count) -> Count:
        oldest = sorted((*self.oldest, *other.oldest), key=lambda kept: kept.time or "")[:SHOWN]
        return Count(
            self.delivered + other.delivered,
            self.undelivered + other.undelivered,
            self.left_out + other.left_out,
            tuple(oldest),
        )


async def moment(conn: Connection, age: float) -> str:
    """The server's time `age` seconds ago, as a timestamptz in text."""
    ((before,),) = await execute(conn, sql.SQL("select {}::text").format(ago(age)))
    return str(before)


def older(time: Field | None, before: str) -> sql.Composable:
    """The condition that a row, called r, is from before a moment; without a time every row is.

    A time without a zone is taken as UTC, an integer as seconds or milliseconds since 1970.
    """
    if time is None:
        return sql.SQL("true")
    column = sql.SQL("r.{}").format(sql.Identifier(time.name))
    limit = sql.SQL("{}::timestamptz").format(sql.Literal(before))
    if time.type_oid in INTEGERS:
        return sql.SQL(
            "(case when pg_catalog.abs({0}::int8) < 100000000000 then {0}::int8 else {0}::int8 / 1000 end)"
            " < extract(epoch from {1})"
        ).format(column, limit)
    return sql.SQL("{} < {}").format(column, limit)


def ours(plan: Plan, settings: OutboxSettings) -> sql.Composable:
    """The condition that a row is ours to send, or bears the table's own mark that it was sent. Never null."""
    conditions = selected(plan.shape, plan.table, settings)
    if not conditions:
        return sql.SQL("true")
    mine = sql.SQL("coalesce({}, false)").format(sql.SQL(" and ").join(conditions))
    sent = plan.bookkeeping.sent
    return mine if sent is None else sql.SQL("({} or not ({}))").format(mine, unsent(sent))


class Expired:
    """The old rows of one table. `time`: the column that says how old, None for rows of any age.

    `ours`: the condition that a row may go besides, None for every one.
    """

    def __init__(
        self,
        conn: Connection,
        acknowledged: Acknowledged,
        *,
        id_column: Field,
        time: Field | None,
        before: str,
        ours: sql.Composable | None = None,
    ) -> None:
        self._conn = conn
        self.acknowledged = acknowledged
        self._id = sql.SQL("r.{}").format(sql.Identifier(id_column.name))
        self._id_name = id_column.name
        self._time = sql.SQL("r.{}").format(sql.Identifier(time.name)) if time is not None else None
        self._old = older(time, before)
        self._delivered = acknowledged.condition(sql.Identifier("r"))
        self._ours = ours or sql.SQL("true")

    async def pieces(self) -> Sequence[Piece]:
        """The whole table as it is now, in pieces."""
        table = self.acknowledged.table
        rows = await self._patiently(
            lambda: execute(self._conn, _RELATIONS, (table.schema, table.name)), table
        )
        pieces = []
        for schema, name, blocks in rows:
            relation = TableName(str(schema), str(name))
            starts = range(0, int(blocks), BLOCKS)
            pieces += [Piece(relation, first, first + BLOCKS) for first in starts[:-1]]
            pieces += [Piece(relation, first, None) for first in starts[-1:]]
        return pieces

    async def count(self, piece: Piece) -> Count:
        """The old rows of the piece as they are now."""
        ((delivered, undelivered, left_out),) = await self._run(_COUNT, piece)
        oldest = await self._run(_OLDEST, piece) if undelivered else []
        return Count(
            int(delivered),
            int(undelivered),
            int(left_out),
            tuple(Kept(None if id_ is None else str(id_), time) for id_, time in oldest),
        )

    async def delete(self, piece: Piece, most: int) -> int:
        """Delete up to so many old rows of the piece that were delivered, in a transaction of its own; how many went.

        Raises MissingRight, SetupError where the table forbids it, PostgresUnavailable.
        """
        ((count,),) = await self._run(_DELETE, piece, most)
        return int(count)

    async def _run(self, query: LiteralString, piece: Piece, most: int = 0) -> list[tuple[Any, ...]]:
        where = sql.SQL("r.ctid >= {}::tid").format(sql.Literal(f"({piece.first},0)"))
        if piece.end is not None:
            where += sql.SQL(" and r.ctid < {}::tid").format(sql.Literal(f"({piece.end},0)"))
        statement = sql.SQL(query).format(
            relation=sql.Identifier(piece.relation.schema, piece.relation.name),
            piece=where,
            old=self._old,
            delivered=self._delivered,
            ours=self._ours,
            id=self._id,
            time=self._time or sql.SQL("null"),
            order=self._time or self._id,
            shown=sql.Literal(SHOWN),
            most=sql.Literal(most),
        )
        return await self._patiently(lambda: execute(self._conn, statement), piece.relation)

    async def _patiently(self, ask: Callable[[], Awaitable[Answer]], relation: TableName) -> Answer:
        """Ask, and ask again while another session's lock is in the way; each time it waits for `lock_timeout`."""
        try:
            return await patiently(lambda _: ask())
        except CdcOutboxError as error:
            raise self._explained(error, sqlstate.of(error), relation) from error

    def _explained(self, error: CdcOutboxError, state: str, relation: TableName) -> CdcOutboxError:
        if isinstance(error, MissingRight):
            return MissingRight(
                f"the role {quote(self._conn.info.user)} may not remove rows of {relation}: {error}",
                next=f"as its owner: {grants(relation, self._id_name, self._conn.info.user)} or name an owner's"
                " connection with --admin-dsn",
            )
        if state == "55000":
            return SetupError(
                f"rows of {relation} can't be deleted while a publication publishes its deletes: {error}",
                next="publish inserts only: alter publication … set (publish = 'insert');",
            )
        if state == "23503":
            return SetupError(
                f"rows of {relation} can't be deleted while rows of another table refer to them: {error}",
                next="drop that foreign key, or let it delete with them: on delete cascade",
            )
        return error


def grants(relation: TableName, id_column: str, role: str) -> str:
    """SQL that lets a role remove rows: reading and deleting, and one column to lock them by."""
    return f"grant select, delete, update ({quote(id_column)}) on {relation} to {quote(role)};"
