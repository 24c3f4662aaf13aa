"""`enqueue` for SQLAlchemy 2, over any of its drivers for PostgreSQL.

    from cdc_outbox.enqueue.sqlalchemy import enqueue

    with Session.begin() as session:
        ...
        event_id = enqueue(session, aggregate_type="order", aggregate_id=42, event_type="Placed", payload={})

A Connection or Session; with an AsyncConnection or AsyncSession, `await enqueue(...)`. Those need greenlet
(`sqlalchemy[asyncio]`); nothing else here does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack, overload

from sqlalchemy import Connection, text
from sqlalchemy.orm import Session, scoped_session

from cdc_outbox.enqueue.event import Event
from cdc_outbox.enqueue.table import OutboxTable, Row, alike
from cdc_outbox.errors import CallRefused, OutsideTransaction

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

__all__ = ["Event", "Outbox", "enqueue", "enqueue_many"]

Sync: TypeAlias = Connection | Session | scoped_session[Any]
Async: TypeAlias = "AsyncConnection | AsyncSession | async_scoped_session[Any]"
Answer = TypeVar("Answer")


class Outbox(OutboxTable):
    """An outbox table that is written with SQLAlchemy."""

    @overload
    def enqueue(self, conn: Sync, *, allow_autocommit: bool = False, **event: Unpack[Event]) -> str: ...
    @overload
    def enqueue(
        self, conn: Async, *, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> Awaitable[str]: ...
    def enqueue(
        self, conn: Sync | Async, *, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> str | Awaitable[str]:
        """Write an event in the transaction; its id, as Kafka's header `id` will have it.

        See `Event` for the arguments. Raises OutsideTransaction for a connection at the isolation level AUTOCOMMIT,
        unless `allow_autocommit`: then the row is a transaction of its own. Raises EventUnfit and EventTooLarge before
        anything is sent.
        """
        row = self.row(event)

        def write(connection: Connection) -> str:
            return self._write(connection, [row])[0]

        return on_connection(conn, write, allow_autocommit=allow_autocommit)

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

        At the isolation level AUTOCOMMIT, with `allow_autocommit`, that holds for what is checked before anything is
        sent (EventUnfit, EventTooLarge): what the server refuses leaves those written that came before it.
        """
        rows = self.rows(events)

        def write(connection: Connection) -> list[str]:
            return [id_ for run in alike(rows) for id_ in self._write(connection, run)]

        return on_connection(conn, write, allow_autocommit=allow_autocommit)

    def _write(self, connection: Connection, rows: list[Row]) -> list[str]:
        statement, values = text(self.statement(rows[0])), [_named(row) for row in rows]
        with self.written():
            if rows[0].id is None:
                return [str(connection.execute(statement, each).scalar_one()) for each in values]
            connection.execute(statement, values)
        return [row.id for row in rows if row.id is not None]

    def _mark(self, place: int) -> str:
        return f":p{place}"

    def _escaped(self, name: str) -> str:
        return name.replace(":", r"\:")


def on_connection(
    conn: Sync | Async, write: Callable[[Connection], Answer], *, allow_autocommit: bool = False
) -> Answer | Coroutine[Any, Any, Answer]:
    """What `write` answers on the connection of `conn`; awaitable where that is asynchronous.

    Raises OutsideTransaction, unless `allow_autocommit`; CallRefused for another database than PostgreSQL.
    """

    def run(sync: Sync) -> Answer:
        connection = sync if isinstance(sync, Connection) else sync.connection()
        _require_suitable(connection, allow_autocommit=allow_autocommit)
        return write(connection)

    if isinstance(conn, Connection | Session | scoped_session):
        return run(conn)
    return _asynchronous(conn).run_sync(run)


def _asynchronous(conn: Async) -> AsyncConnection | AsyncSession:
    """The connection or session itself. Raises TypeError for anything else."""
    try:
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    except ImportError:
        pass  # without greenlet there is no asynchronous connection
    else:
        if isinstance(conn, async_scoped_session):
            session: AsyncSession = conn()
            return session
        if isinstance(conn, AsyncConnection | AsyncSession):
            return conn
    raise TypeError(f"a Connection or Session of SQLAlchemy is needed, not {type(conn).__name__}")


def _require_suitable(connection: Connection, *, allow_autocommit: bool) -> None:
    if connection.dialect.name != "postgresql":
        raise CallRefused(
            f"the connection leads to {connection.dialect.name}, and the relay reads PostgreSQL",
            next="hand over the connection or session of the PostgreSQL database",
        )
    # Each driver, or SQLAlchemy's adapter of it, has the attribute.
    if not allow_autocommit and getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise OutsideTransaction(
            "the connection's isolation level is AUTOCOMMIT: the row would be a transaction of its own",
            next="use a connection of an engine without isolation_level='AUTOCOMMIT', and its begin()",
        )


def _named(row: Row) -> dict[str, object]:
    return {f"p{place}": value for place, value in enumerate(row.values)}


_DEFAULT: Final = Outbox()
enqueue: Final = _DEFAULT.enqueue
enqueue_many: Final = _DEFAULT.enqueue_many
