"""`enqueue` for asyncpg.

    from cdc_outbox.enqueue.asyncpg import enqueue

    async with connection.transaction():
        ...
        event_id = await enqueue(connection, aggregate_type="order", aggregate_id=42, event_type="Placed", payload={})

Over a connection, or one of a pool.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Final, TypeAlias, Unpack

from asyncpg import Connection
from asyncpg.pool import PoolConnectionProxy

from cdc_outbox.enqueue.event import Event
from cdc_outbox.enqueue.table import OutboxTable, Row, alike
from cdc_outbox.errors import OutsideTransaction

__all__ = ["Event", "Outbox", "enqueue", "enqueue_many"]

AnyConnection: TypeAlias = "Connection[Any] | PoolConnectionProxy[Any]"


class Outbox(OutboxTable):
    """An outbox table that is written with asyncpg."""

    async def enqueue(
        self, conn: AnyConnection, *, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> str:
        """Write an event in the connection's transaction; its id, as Kafka's header `id` will have it.

        See `Event` for the arguments. Raises OutsideTransaction, unless `allow_autocommit`: then the row is a
        transaction of its own. Raises EventUnfit and EventTooLarge before anything is sent.
        """
        if not allow_autocommit:
            require_transaction(conn)
        row = self.row(event)
        with self.written():
            made = await conn.fetchval(self.statement(row), *row.values)
        return row.id if row.id is not None else str(made)

    async def enqueue_many(
        self, conn: AnyConnection, events: Iterable[Event], *, allow_autocommit: bool = False
    ) -> list[str]:
        """Write events in their order, in few round trips; their ids. Nothing is written unless each of them can be.

        With `allow_autocommit` they are one transaction.
        """
        if not allow_autocommit:
            require_transaction(conn)
        rows = self.rows(events)
        ids: list[str] = []
        async with nullcontext() if conn.is_in_transaction() else conn.transaction():
            for run in alike(rows):
                ids += await self._write(conn, run)
        return ids

    async def _write(self, conn: AnyConnection, rows: list[Row]) -> list[str]:
        statement, values = self.statement(rows[0]), [row.values for row in rows]
        with self.written():
            if rows[0].id is None:
                return [str(await conn.fetchval(statement, *each)) for each in values]
            await conn.executemany(statement, values)
        return [row.id for row in rows if row.id is not None]

    def _mark(self, place: int) -> str:
        return f"${place + 1}"

    def _escaped(self, name: str) -> str:
        return name


def require_transaction(conn: AnyConnection) -> None:
    """Raise OutsideTransaction unless what the connection does next belongs to a transaction that goes on."""
    if not isinstance(conn, Connection | PoolConnectionProxy):
        raise TypeError(f"a connection of asyncpg is needed, not {type(conn).__name__}")
    if not conn.is_in_transaction():
        raise OutsideTransaction(
            "no transaction is open on the connection: the row would be a transaction of its own",
            next="do it together with your own statements in one `async with connection.transaction():`",
        )


_DEFAULT: Final = Outbox()
enqueue: Final = _DEFAULT.enqueue
enqueue_many: Final = _DEFAULT.enqueue_many
