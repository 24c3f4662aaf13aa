"""Which rows of the table wait to be sent, as conditions in SQL.

The table's own marks say it (`table/sent.py`): a word, a time, or that the row is there at all. What isn't known to
mean sent is unsent, NULL and unknown words included: a row that comes twice can be told by its id, a lost one can't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import MappingError, MissingRight
from cdc_outbox.event import quote
from cdc_outbox.postgres import by_value, reading_right, table_rows, zoneless
from cdc_outbox.postgres.ago import ago
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.table import compiler
from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.values import BOOL, Field

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.recognise import Column
    from cdc_outbox.table.sent import Bookkeeping, Failed, Sent, Taken

COUNT_LIMIT: Final = 120.0
"""Seconds for counting rows: a sequential scan of a large table, while WAL waits behind the new slot."""

_LIMIT: Final[LiteralString] = "set statement_timeout = {}"

_TAKEN: Final[LiteralString] = """
select count(*), coalesce(string_agg(distinct {by}, ', '), '') from {table} where {taken} and {fresh}
"""


# Inserts take another lock, and foreign keys take this one on the table that they point to.
_LOCKED: Final[LiteralString] = """
select l.pid, coalesce(nullif(a.application_name, ''), 'no name')
  from pg_catalog.pg_locks l left join pg_catalog.pg_stat_activity a using (pid)
 where l.locktype = 'relation' and l.mode = 'RowShareLock' and l.granted and l.pid <> pg_catalog.pg_backend_pid()
   and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
   and l.relation = pg_catalog.to_regclass(%s)
 order by l.pid limit 1
"""


async def count_unsent(
    conn: Connection,
    table: TableName,
    columns: Collection[Column],
    settings: OutboxSettings,
    bookkeeping: Bookkeeping,
) -> int:
    """How many rows may not have been published yet, in a snapshot of its own.

    Rows that this relay leaves out by `outbox.only` or for their bus don't count. Raises MissingRight when the role may
    not read the table or row-level security would hide rows from it.
    """
    conditions = [sql.SQL("true"), *selected(Shape(columns), table, settings)]
    if bookkeeping.sent is not None:
        conditions.append(unsent(bookkeeping.sent))
    await see_whole(conn)
    counted = sql.SQL("select count(*) from {} where {}").format(
        await rows_of(conn, table), sql.SQL(" and ").join(conditions)
    )
    ((count,),) = await execute(conn, counted, within=COUNT_LIMIT + 5)
    return int(count)


async def see_whole(conn: Connection) -> None:
    """Let the session's statements take COUNT_LIMIT; a policy that would hide rows is an error from now on."""
    await execute(conn, reading_right.ALL_ROWS)
    await execute(conn, sql.SQL(_LIMIT).format(sql.Literal(int(COUNT_LIMIT * 1000))))


async def unsent_by_value(
    conn: Connection, table: TableName, shape: Shape, settings: OutboxSettings, bookkeeping: Bookkeeping
) -> str:
    """The rows that `count_unsent` counts by the value that tells of them, in words; empty where there is none."""
    told = by_value.telling(shape, compiler.ignored(settings, table, shape), bookkeeping)
    if told is None:
        return ""
    conditions = [
        *selected(shape, table, settings),
        *([unsent(bookkeeping.sent)] if bookkeeping.sent is not None else []),
    ]
    return (
        f"by {quote(told.name)}: "
        f"{await by_value.counted(conn, table, told, conditions, within=COUNT_LIMIT + 5)}"
    )


def unsent(sent: Sent) -> sql.Composable:
    """The row bears no mark that means sent."""
    column = sql.Identifier(sent.field.name)
    if sent.by == "time":
        return sql.SQL("{} is null").format(column)
    if sent.beside is None:
        return sql.SQL("not {}").format(says(sent.field, sent.words))
    return sql.SQL("(not {} or {})").format(says(sent.field, sent.words), _disputed(sent, sent.beside))


def disputed(book: Bookkeeping) -> sql.Composable | None:
    """The row's status has a word for sent and the time beside it is NULL; None where no time could object."""
    sent = book.sent
    return None if sent is None or sent.beside is None else _disputed(sent, sent.beside)


def _disputed(sent: Sent, beside: Field) -> sql.Composable:
    return sql.SQL("({} and {} is null)").format(
        says(sent.field, sent.words - sent.alone), sql.Identifier(beside.name)
    )


def is_unknown(book: Bookkeeping) -> sql.Composable | None:
    """The row's status holds a word that has no meaning; None where there are no words by which rows are sent."""
    sent, failed, taken = book.sent, book.failed, book.taken
    if sent is None or sent.by == "time":
        return None
    known = set(sent.words | sent.waiting)
    known |= failed.retried | failed.given_up if failed is not None else frozenset()
    known |= taken.words if taken is not None else frozenset()
    column = sql.Identifier(sent.field.name)
    return sql.SQL("{} is not null and not {}").format(column, says(sent.field, known))


def has_failed(failed: Failed) -> sql.Composable:
    """The old relay has failed to send the row, whether it tries again or not."""
    return says(failed.field, failed.retried | failed.given_up)


def given_up(failed: Failed) -> sql.Composable:
    """The old relay has failed to send the row, and doesn't try again."""
    return says(failed.field, failed.given_up)


async def locked_by(conn: Connection, table: TableName) -> str | None:
    """A session that has rows of the table locked, as SELECT … FOR UPDATE does, in words; None where there is none."""
    try:
        found = await execute(conn, _LOCKED, (str(table),))
    except MissingRight as error:  # a name in a schema that the role may not use
        raise reading_right.named(error, table, conn.info.user) from error
    return f"pid {found[0][0]} ({found[0][1]})" if found else None


async def in_hand(
    conn: Connection, table: TableName, taken: Taken, shape: Shape, *, stale: float
) -> tuple[int, str]:
    """How many rows a worker of the old relay took less than `stale` seconds ago, and which workers.

    Without a column with the time of that it is none: nobody can tell. Of a time without a zone the latest moment that
    it may mean counts. Raises MissingRight, PostgresUnavailable.
    """
    if taken.since is None:
        return 0, ""
    by = shape.find("locked_by")
    query = sql.SQL(_TAKEN).format(
        by=sql.SQL("null") if by is None else sql.SQL("{}::text").format(sql.Identifier(by.name)),
        table=await rows_of(conn, table),
        taken=says(taken.field, taken.words),
        fresh=sql.SQL("{} > {}").format(zoneless.latest(taken.since), ago(stale)),
    )
    ((count, workers),) = await execute(conn, query, within=table_rows.COUNT_LIMIT)
    return int(count), str(workers)


def says(field: Field, words: Collection[str]) -> sql.Composable:
    """The column holds one of these words, as `sent.folded` has them; NULL is none of them."""
    return sql.SQL("coalesce(lower({}) = any({}), false)").format(_text(field), sql.Literal(sorted(words)))


def selected(shape: Shape, table: TableName, settings: OutboxSettings) -> list[sql.Composable]:
    """The columns that decide whether a row is ours, with the values that make it so; none for an unfit table."""
    try:
        found = compiler.selected(settings, table, shape)
    except MappingError:
        return []  # it is named as unfit; until it is mended each row is in doubt
    return among(found)


def among(selected: Iterable[tuple[Field, Collection[str]]]) -> list[sql.Composable]:
    """Each of these columns has one of its values."""
    return [
        sql.SQL("{} = any({})").format(_text(field), sql.Literal(_spelled(field, accepted)))
        for field, accepted in selected
    ]


def _text(field: Field) -> sql.Composed:
    """The column's text, compared byte by byte as the stream does it, whatever the collation of column or database."""
    return sql.SQL('({}::text collate "C")').format(sql.Identifier(field.name))


def _spelled(field: Field, accepted: Collection[str]) -> list[str]:
    """Values as a cast to text gives them: a boolean's are words, not the letters of its output."""
    if field.type_oid != BOOL:
        return list(accepted)
    return [{"t": "true", "f": "false"}.get(value.lower(), value.lower()) for value in accepted]
