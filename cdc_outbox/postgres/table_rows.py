"""Rows of a table under one snapshot, as the stream would have brought them.

A row gives the same bytes whether it comes by the write-ahead log or by COPY: both use the type's output function, and
the session has the stream's settings (`connection.py`). A policy that would hide rows is an error.

The transaction is `repeatable read, read only`, so that the server itself refuses whatever a condition from outside
might try to change; and each statement goes by the extended protocol, which takes one statement alone.

The tables are locked before the snapshot is taken, for an ALTER TABLE that rewrites a table gives all rows its own
transaction's number: one that commits between a snapshot and the lock leaves an empty table to that snapshot. LOCK
TABLE takes none.

The lock is ACCESS SHARE until the transaction ends, which is in nobody's way but that of a statement that wants the
table to itself (ALTER TABLE, VACUUM FULL). `table_wanted.py` sees such a one wait, so that we can step aside.

https://www.postgresql.org/docs/current/sql-copy.html (the text format)
https://www.postgresql.org/docs/current/mvcc-caveats.html (statements that aren't safe for older snapshots)
https://www.postgresql.org/docs/current/sql-lock.html
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg import Error, OperationalError, sql
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable, SetupError, UsageError
from cdc_outbox.postgres import reading_right, refusal, sqlstate
from cdc_outbox.postgres.connection import (
    PUBLIC,
    Connection,
    connect_control,
    end_with_us,
    execute,
    in_bytes,
    in_short,
    place,
    sever,
)
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.postgres.readiness import ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from psycopg.pq.abc import PGresult

    from cdc_outbox.event import TableName, Values
    from cdc_outbox.settings import PostgresSettings

COUNT_LIMIT: Final = 3600.0
"""Seconds for counting rows, which reads the whole table once."""

LOCK_WAIT: Final = 5.0
"""Seconds for a session that has a table to itself to be done with it."""

_LOCK_AGAIN: Final = 0.1
"""Seconds between tries to lock the tables."""

CHUNK: Final = 128 * 1024
"""Bytes of rows that come together, about."""

# A reader that waits for a broker is slow on purpose: nothing of the server's may end it meanwhile.
_PATIENT: Final[LiteralString] = """
set statement_timeout = 0; set idle_in_transaction_session_timeout = 0; set row_security = off;
"""
_BEGIN: Final[LiteralString] = "begin transaction isolation level repeatable read, read only"
_LOCK: Final[LiteralString] = "lock table {} in access share mode nowait"
_ROLLBACK: Final[LiteralString] = "rollback"
_SNAPSHOT: Final[LiteralString] = "select pg_catalog.pg_current_snapshot()::text"
_EXPLAIN: Final[LiteralString] = """
explain (format json) select held, held from (select case when
{own}
then true end as held from {table}) as asked
"""
_ENCODING: Final[LiteralString] = "set client_encoding = 'SQL_ASCII'"

_OF_A_CONDITION: Final = frozenset({"22", "25", "P0"})
"""Classes of errors that a condition raises on a row: of its data, for it would write, of a function in it."""

# COPY escapes what it needs for itself, and the backslash; it never writes octal or hex escapes.
_ESCAPED: Final = (
    (rb"\t", b"\t"),
    (rb"\n", b"\n"),
    (rb"\r", b"\r"),
    (rb"\b", b"\b"),
    (rb"\f", b"\f"),
    (rb"\v", b"\v"),
)


class Chunk:
    """Some rows, one after the other. Iterating gives the Values of each, as often as one likes.

    `size` is in bytes, as they came. Values that weren't asked for are None.
    """

    __slots__ = ("_lines", "_read", "size")

    def __init__(self, lines: list[bytes], size: int, read: Callable[[bytes], Values]) -> None:
        self._lines = lines
        self._read = read
        self.size = size

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[Values]:
        return map(self._read, self._lines)


@asynccontextmanager
async def snapshot(
    settings: PostgresSettings,
    tables: Sequence[TableName],
    *,
    application_name: str,
    like: Connection | None = None,
    own: bool = False,
) -> AsyncIterator[Connection]:
    """A connection of the owner's, in a transaction whose snapshot is taken when the block begins.

    It sees the rows of `tables`, whose partitions are locked with them, and of no others for sure. `own`: whether a
    person's condition is read by it, which may name what is in `public`. Raises SetupError, MissingRight, UsageError or
    PostgresUnavailable.
    """
    conn = await connect_control(settings, application_name=application_name, admin=True, like=like)
    try:
        if conn.info.parameter_status("server_encoding") == "SQL_ASCII":
            await execute(conn, _ENCODING)  # so that bytes pass as they are
        await patient(conn)
        if own:
            await execute(conn, PUBLIC)
        await _lock(conn, tables)
        await execute(conn, _SNAPSHOT)
        yield conn
    finally:
        if conn.pgconn.transaction_status == TransactionStatus.ACTIVE:
            sever(conn)  # a COPY that nobody reads to its end
        await conn.close()


async def _lock(conn: Connection, tables: Sequence[TableName]) -> None:
    """Begin the transaction with locks on all tables.

    We wait for none of them with another in hand: a migration that takes two can't be the victim of a deadlock with us.
    Raises MissingRight; PostgresUnavailable when another session has one to itself for longer than LOCK_WAIT.
    """
    named = {table: await rows_of(conn, table) for table in tables}
    until = time.monotonic() + LOCK_WAIT
    while (taken := await _locked_by_another(conn, named)) is not None:
        if time.monotonic() >= until:
            raise PostgresUnavailable(
                f"another session has {taken} to itself, as a migration has, or waits for that",
                next="let it be done, then run this again; to see who it is: select pid, query from pg_stat_activity "
                "where pid in (select pid from pg_locks where mode = 'AccessExclusiveLock')",
            )
        await execute(conn, _ROLLBACK)
        await asyncio.sleep(_LOCK_AGAIN)


async def _locked_by_another(conn: Connection, tables: Mapping[TableName, sql.Composed]) -> TableName | None:
    """Begin, and lock the tables; the first one that can't be had at once, and then the transaction has failed."""
    await execute(conn, _BEGIN)
    for table, named in tables.items():
        try:
            await execute(conn, sql.SQL(_LOCK).format(named))
        except CdcOutboxError as error:
            if sqlstate.of(error) == "55P03":
                return table
            raise reading_right.named(error, table, conn.info.user) from error
    return None


async def patient(conn: Connection) -> None:
    """Let statements on the table take their time, as long as somebody waits for them; a policy that would hide rows is
    an error from now on.
    """
    await execute(conn, _PATIENT)
    await end_with_us(conn)


async def rows(
    conn: Connection,
    table: TableName,
    columns: Sequence[str],
    *,
    wanted: frozenset[int] | None = None,
    where: sql.Composable | None = None,
    order: sql.Composable | None,
) -> AsyncIterator[Chunk]:
    """The rows of `table`, in chunks; each row has a value for each of `columns`, in their order.

    `wanted`: the places of the columns whose values are needed, None for all. `where` and `order` are what stands
    behind WHERE and ORDER BY; the first is put in brackets, and without an order rows come as they lie. `conn` comes
    from `snapshot`, and is busy until the last chunk was taken. Raises what `sqlstate.py` has for the server's words;
    PostgresUnavailable.
    """
    places = [at for at in range(len(columns)) if wanted is None or at in wanted]
    query = sql.SQL("copy (select {columns} from {table}{where}{order}) to stdout").format(
        columns=sql.SQL(", ").join(sql.Identifier(columns[at]) for at in places),
        table=await rows_of(conn, table),
        where=sql.SQL("") if where is None else sql.SQL(" where ") + bracketed(where),
        order=sql.SQL("") if order is None else sql.SQL(" order by ") + order,
    )
    encoding = conn.info.encoding
    result = await _result(conn, lambda: conn.pgconn.send_query_params(in_bytes(query, conn), None))
    if result.status != ExecStatus.COPY_OUT:
        raise _unreadable(table, result, encoding, conn.info.user)
    read = reader(len(columns), places)
    frame = conn.pgconn.get_copy_data
    lines: list[bytes] = []
    size = 0
    while True:
        try:
            length, view = frame(1)
        except OperationalError as error:
            raise PostgresUnavailable(
                f"PostgreSQL at {place(conn)} sent what can't be read: {error}", next=refusal.NETWORK
            ) from error
        if length > 0:
            lines.append(bytes(view))
            size += length
            if size >= CHUNK:
                yield Chunk(lines, size, read)
                lines, size = [], 0
        elif length == 0:
            await _received(conn)
        else:
            break
    result = await _result(conn)
    if result.status != ExecStatus.COMMAND_OK:
        raise _unreadable(table, result, encoding, conn.info.user)
    if lines:
        yield Chunk(lines, size, read)


async def count(
    conn: Connection, table: TableName, where: sql.Composable | None, *, within: float = COUNT_LIMIT
) -> int:
    """How many rows of `table` fulfil a condition, as the connection sees them.

    Raises SetupError where the condition fails on a row; MissingRight; PostgresUnavailable after `within` seconds, and
    then the connection is gone.
    """
    query = sql.SQL("select count(*) from {}").format(await rows_of(conn, table))
    if where is not None:
        query += sql.SQL(" where ") + bracketed(where)
    try:
        ((found,),) = await execute(conn, query, within=within)
    except CdcOutboxError as error:
        if sqlstate.of(error)[:2] in _OF_A_CONDITION:
            raise _fails(table, str(error)) from error
        raise reading_right.named(error, table, conn.info.user) from error
    return int(found)


def bracketed(condition: sql.Composable) -> sql.Composed:
    """A condition in brackets of its own, whatever it ends with: a comment ends with its line."""
    return sql.SQL("(\n") + condition + sql.SQL("\n)")


async def condition(conn: Connection, table: TableName, text: str, *, flag: str) -> sql.Composable:
    """A condition that a person wrote, once the server has found it to be one on the columns of `table`.

    It may name what is in `public`, and so may all statements of the session from now on. It is parsed and not run,
    behind WHERE, where it will stand. Between WHEN and THEN it can't close a bracket that it hasn't opened, so that it
    stays one condition between brackets too. Raises UsageError where it isn't SQL, SetupError where it names what isn't
    there; both with the server's words and `flag`.
    """
    own: sql.Composable = sql.SQL(text)
    query = sql.SQL("select from {} where case when\n{}\nthen true end").format(
        sql.Identifier(table.schema, table.name), own
    )
    pgconn, encoding = conn.pgconn, conn.info.encoding
    await execute(conn, PUBLIC)
    try:
        text_of = query.as_bytes(conn)
        if b"\0" in text_of:
            raise UsageError(f"{flag} holds a zero byte", next=f"write a condition in SQL with {flag}")
        result = await _result(conn, lambda: pgconn.send_prepare(b"", text_of))
        if result.status == ExecStatus.COMMAND_OK:
            result = await _result(conn, lambda: pgconn.send_describe_prepared(b""))
    except UnicodeEncodeError:
        raise UsageError(
            f"{flag} holds characters that the server's encoding lacks", next=f"write {flag} without them"
        ) from None
    remedy = f"mend {flag}: a condition on the columns of {table}, as after WHERE: {flag} \"created_at > now() - '1d'\""
    if result.status == ExecStatus.COMMAND_OK:
        if result.nparams:
            raise UsageError(f"{flag} holds a parameter, such as $1, and nothing fills it in", next=remedy)
        return own
    failure = sqlstate.from_result(result, stage="control", encoding=encoding)
    words = _of_the_condition(_words(str(failure)), text)
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    if state == "42601":
        raise UsageError(f"{flag} is not a condition in SQL: {words}", next=remedy)
    if state != "42501" and state[:2] in ("42", "22", "0A"):
        raise SetupError(f"{flag} can't be used on {table}: {words}", next=remedy)
    raise reading_right.named(failure, table, conn.info.user)


async def is_volatile(conn: Connection, table: TableName, own: sql.Composable) -> bool:
    """Whether a condition from `condition` may say something else of a row each time that it is asked.

    The planner says it: it makes a subquery part of the query around it, unless a column of it is volatile.
    https://www.postgresql.org/docs/current/xfunc-volatility.html
    """
    query = sql.SQL(_EXPLAIN).format(own=own, table=sql.Identifier(table.schema, table.name))
    ((plans,),) = await execute(conn, query)
    return any(_has_node(plan["Plan"], "Subquery Scan") for plan in plans)


def _has_node(plan: dict[str, Any], kind: str) -> bool:
    return plan["Node Type"] == kind or any(_has_node(each, kind) for each in plan.get("Plans", ()))


def _of_the_condition(words: str, text: str) -> str:
    """The server's words without the SQL of ours that it quotes from behind a person's condition."""
    words = words.replace(' then true end"', '"')
    if 'at or near "then"' in words and "then" not in text.lower():
        return words.replace('at or near "then"', "at its end")
    return words


def reader(count: int, places: Sequence[int]) -> Callable[[bytes], Values]:
    """A function from a line of COPY's text format to a row of `count` values, of which those at `places` came."""
    if len(places) == count:

        def whole(line: bytes) -> Values:
            return [part if b"\\" not in part else _plain(part) for part in line[:-1].split(b"\t")]

        return whole

    blank: Values = [None] * count

    def partly(line: bytes) -> Values:
        values = blank.copy()
        for at, part in zip(places, line[:-1].split(b"\t"), strict=True):
            values[at] = part if b"\\" not in part else _plain(part)
        return values

    return partly


def _plain(part: bytes) -> bytes | None:
    """What a value with backslashes stands for."""
    if part == rb"\N":
        return None
    pieces = part.split(rb"\\")
    for at, piece in enumerate(pieces):
        if b"\\" in piece:
            for escaped, byte in _ESCAPED:
                piece = piece.replace(escaped, byte)  # noqa: PLW2901 - it is what becomes of the piece
            pieces[at] = piece
    return b"\\".join(pieces)


def _unreadable(table: TableName, result: PGresult, encoding: str, role: str) -> CdcOutboxError:
    """Why the rows couldn't be read to their end."""
    failure = sqlstate.from_result(result, stage="control", encoding=encoding)
    state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    if state[:2] in _OF_A_CONDITION:
        return _fails(table, str(failure))
    return reading_right.named(failure, table, role)


def _fails(table: TableName, failure: str) -> SetupError:
    return SetupError(
        f"the rows of {table} can't be chosen: {_words(failure)}",
        next="mend the condition: it must hold for each row of the table without an error, and may not write",
    )


def _words(failure: str) -> str:
    """The server's own words in one of our errors."""
    return failure.partition(": ")[2] or failure


async def _result(conn: Connection, send: Callable[[], None] | None = None) -> PGresult:
    """The answer to what `send` sends, or to what is under way; all of it, unless a copy begins."""
    pgconn = conn.pgconn
    answer: PGresult | None = None
    try:
        if send is not None:
            send()
        while pgconn.flush():
            await ready(conn.pgconn, write=True)
        while True:
            while pgconn.is_busy():
                await _received(conn)
            result = pgconn.get_result()
            if result is None:
                break
            answer = answer or result
            if result.status == ExecStatus.COPY_OUT:
                break
    except Error as error:
        raise _gone(conn, error) from error
    if answer is None:
        raise _gone(conn, OperationalError("no answer"))
    return answer


async def _received(conn: Connection) -> None:
    """Wait for more from the server."""
    try:
        await ready(conn.pgconn, write=False)
        conn.pgconn.consume_input()
    except OperationalError as error:
        raise _gone(conn, error) from error


def _gone(conn: Connection, error: Exception) -> PostgresUnavailable:
    return PostgresUnavailable(
        f"the connection to PostgreSQL that read the table was lost: {in_short(error)}", next=refusal.NETWORK
    )
