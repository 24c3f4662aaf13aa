"""`enqueue` for Django.

    from cdc_outbox.enqueue.django import enqueue

    with transaction.atomic():
        ...
        event_id = enqueue(aggregate_type="order", aggregate_id=order.pk, event_type="Placed", payload={})

Over the connection `using` of the settings' DATABASES, by default "default".
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, Unpack

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from cdc_outbox.enqueue.event import Event
from cdc_outbox.enqueue.table import OutboxTable, Row, alike
from cdc_outbox.errors import CallRefused, OutsideTransaction

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

__all__ = ["Event", "Outbox", "enqueue", "enqueue_many"]


class Outbox(OutboxTable):
    """An outbox table that is written over one of Django's connections."""

    def enqueue(
        self, *, using: str | None = None, allow_autocommit: bool = False, **event: Unpack[Event]
    ) -> str:
        """Write an event in the transaction of `transaction.atomic`; its id, as Kafka's header `id` will have it.

        See `Event` for the arguments. Raises OutsideTransaction, unless `allow_autocommit`: then the row is a
        transaction of its own. Raises EventUnfit and EventTooLarge before anything is sent.
        """
        connection = suitable(using, allow_autocommit=allow_autocommit)
        return self._write(connection, [self.row(event)])[0]

    def enqueue_many(
        self, events: Iterable[Event], *, using: str | None = None, allow_autocommit: bool = False
    ) -> list[str]:
        """Write events in their order; their ids. Nothing is written unless each of them can be.

        With `allow_autocommit` they are one transaction.
        """
        connection = suitable(using, allow_autocommit=allow_autocommit)
        rows = self.rows(events)
        with transaction.atomic(connection.alias) if connection.get_autocommit() else nullcontext():
            return [id_ for run in alike(rows) for id_ in self._write(connection, run)]

    def _write(self, connection: BaseDatabaseWrapper, rows: list[Row]) -> list[str]:
        statement = self.statement(rows[0])
        with self.written(), connection.cursor() as cursor:
            if rows[0].id is not None:
                cursor.executemany(statement, [row.values for row in rows])
                return [row.id for row in rows if row.id is not None]
            ids = []
            for row in rows:
                cursor.execute(statement, row.values)
                ids.append(str(cursor.fetchone()[0]))
            return ids


def suitable(using: str | None, *, allow_autocommit: bool = False) -> BaseDatabaseWrapper:
    """The connection, if what it does next belongs to a transaction that goes on.

    Raises OutsideTransaction, unless `allow_autocommit`; CallRefused for another database than PostgreSQL.
    """
    alias = using or DEFAULT_DB_ALIAS
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise CallRefused(
            f"the connection {alias!r} leads to {connection.vendor}, and the relay reads PostgreSQL",
            next="name the connection of the PostgreSQL database: using=…",
        )
    if not allow_autocommit and not connection.in_atomic_block and connection.get_autocommit():
        raise OutsideTransaction(
            f"no transaction is open on the connection {alias!r}: the row would be a transaction of its own",
            next="do it together with your own queries in one `with transaction.atomic():`"
            + ("" if using is None else f", of using={alias!r}"),
        )
    return connection


_DEFAULT: Final = Outbox()
enqueue: Final = _DEFAULT.enqueue
enqueue_many: Final = _DEFAULT.enqueue_many
