"""`enqueue` for psycopg 3.

    from cdc_outbox.enqueue.psycopg import enqueue

    with connection.transaction():
        ...
        event_id = enqueue(connection, aggregate_type="order", aggregate_id=42, event_type="Placed", payload={})

A connection or a cursor; with an asynchronous one, `await enqueue(...)`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from contextlib import nullcontext
from typing import Any, Final, TypeAlias, Unpack, overload

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from cdc_outbox.enqueue.event import Event
from cdc_outbox.enqueue.table import OutboxTable, Row, alike
from cdc_outbox.errors import OutsideTransaction

__all__ = ["Event", "Outbox", "enqueue", "enqueue_many"]

Sync: TypeAlias = Connection[Any] | Cursor[Any]
Async: TypeAlias = AsyncConnection[Any] | AsyncCursor[Any]


class Outbox(OutboxTable):
    """An outbox table that is written with psycopg."""

    @overload
    def enqueue(self, conn: Sync, *, allow_autocommit: bool = False, **event: Unpack[Event]) -> str: ...
    @overload
    def enqueue(
        self, conn: Async, *, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> Awaitable[str]: ...
    def enqueue(
        self, conn: Sync | Async, *, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> str | Awaitable[str]:
        """Write an event in the connection's transaction; its id, as Kafka's header `id` will have it.

        See `Event` for the arguments. Raises OutsideTransaction, unless `allow_autocommit`: then the row is a
        transaction of its own. Raises EventUnfit and EventTooLarge before anything is sent.
        """
        connection = connection_of(conn) if allow_autocommit else in_transaction(conn)
        row = self.row(event)
        if isinstance(connection, AsyncConnection):
            return self._write_async(connection, row, allow_autocommit=allow_autocommit)
        return self._write(connection, row)

    @overload
    def enqueue_many(
        self, conn: Sync, events: Iterable[Event], *, allow_autocommit: bool = False
    ) -> list[str]: ...
    @overload
    def enqueue_many(
        self, conn: Async, events: Iterable[Event], *, allow_autocommit: bool = False
    ) -> Awaitable[list[str]]: ...
    def enqueue_many(
        self, conn: Sync | Async, events: Iterable[Event], *, allow_autocommit: bool = False
    ) -> list[str] | Awaitable[list[str]]:
        """Write events in their order, in few round trips; their ids. Nothing is written unless each of them can be.

        With `allow_autocommit` they are one transaction.
        """
        connection = connection_of(conn) if allow_autocommit else in_transaction(conn)
        rows = self.rows(events)
        if isinstance(connection, AsyncConnection):
            return self._write_many_async(connection, rows, allow_autocommit=allow_autocommit)
        return self._write_many(connection, rows, allow_autocommit=allow_autocommit)

    def _write(self, connection: Connection[Any], row: Row) -> str:
        with self.written(), Cursor(connection, row_factory=tuple_row) as cursor:
            cursor.execute(self._query(connection, row), row.values)
            return row.id if row.id is not None else _id(cursor.fetchone())

    async def _write_async(
        self, connection: AsyncConnection[Any], row: Row, *, allow_autocommit: bool
    ) -> str:
        if not allow_autocommit:
            await require_transaction(connection)
        with self.written():
            async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
                await cursor.execute(self._query(connection, row), row.values)
                return row.id if row.id is not None else _id(await cursor.fetchone())

    def _write_many(
        self, connection: Connection[Any], rows: list[Row], *, allow_autocommit: bool
    ) -> list[str]:
        ids: list[str] = []
        with (
            self.written(),
            connection.transaction() if allow_autocommit and connection.autocommit else nullcontext(),
            Cursor(connection, row_factory=tuple_row) as cursor,
        ):
            for run in alike(rows):
                made = run[0].id is None
                values = [row.values for row in run]
                cursor.executemany(self._query(connection, run[0]), values, returning=made)
                for row in run:
                    ids.append(row.id if row.id is not None else _id(cursor.fetchone()))
                    cursor.nextset()
        return ids

    async def _write_many_async(
        self, connection: AsyncConnection[Any], rows: list[Row], *, allow_autocommit: bool
    ) -> list[str]:
        if not allow_autocommit:
            await require_transaction(connection)
        ids: list[str] = []
        with self.written():
            async with (
                connection.transaction() if allow_autocommit and connection.autocommit else nullcontext(),
                AsyncCursor(connection, row_factory=tuple_row) as cursor,
            ):
                for run in alike(rows):
                    made = run[0].id is None
                    values = [row.values for row in run]
                    await cursor.executemany(self._query(connection, run[0]), values, returning=made)
                    for row in run:
                        ids.append(row.id if row.id is not None else _id(await cursor.fetchone()))
                        cursor.nextset()
        return ids

    def _query(self, connection: Connection[Any] | AsyncConnection[Any], row: Row) -> bytes:
        """The statement in the connection's encoding; in SQL_ASCII, as psycopg sends values, in UTF-8."""
        encoding = connection.info.encoding
        return self.statement(row).encode("utf-8" if encoding == "ascii" else encoding)


def connection_of(conn: Sync | Async) -> Connection[Any] | AsyncConnection[Any]:
    """The connection that a cursor belongs to; a connection itself. Raises TypeError for anything else."""
    if isinstance(conn, Cursor | AsyncCursor):
        conn = conn.connection
    if not isinstance(conn, Connection | AsyncConnection):
        raise TypeError(f"a connection or cursor of psycopg is needed, not {type(conn).__name__}")
    return conn


def in_transaction(conn: Sync | Async) -> Connection[Any] | AsyncConnection[Any]:
    """The connection, if what it does next belongs to a transaction that goes on. Raises OutsideTransaction.

    In a pipeline only the server knows, once it has come to the end of what is queued: a COMMIT may be among it. That
    is waited for; of an asynchronous connection it is for `require_transaction` to find out, just before it writes.
    """
    connection = connection_of(conn)
    if connection.info.pipeline_status == PipelineStatus.OFF:
        _require_transaction(connection)
    elif isinstance(connection, Connection):
        with connection.pipeline():
            pass  # a nested pipeline ends with a sync
        _require_transaction(connection)
    return connection


async def require_transaction(connection: AsyncConnection[Any]) -> None:
    """As `in_transaction`, when the answer is awaited: the transaction may have ended since the call."""
    if connection.info.pipeline_status != PipelineStatus.OFF:
        async with connection.pipeline():
            pass
    _require_transaction(connection)


def _require_transaction(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise OutsideTransaction(
            "the connection is in autocommit, and no transaction is open: the row would be a transaction of its own",
            next="do it together with your own statements in one `with connection.transaction():`",
        )


def _id(row: tuple[Any, ...] | None) -> str:
    assert row is not None  # noqa: S101 - the statement returns one
    return str(row[0])


_DEFAULT: Final = Outbox()
enqueue: Final = _DEFAULT.enqueue
enqueue_many: Final = _DEFAULT.enqueue_many
