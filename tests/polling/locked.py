"""Tables B and C: rows stay locked in one transaction while they are published, and are marked at its end.

A relay that is killed leaves nothing behind but rows that were published and are not marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg.rows import class_row

from tests.polling.outlet import Row


@dataclass(frozen=True, slots=True)
class Statements:
    """`claim` takes the size of the batch, `sent` a list of ids, `failed` an error and an id; without it nothing is
    written, and the row is simply taken again."""

    claim: LiteralString
    sent: LiteralString
    failed: LiteralString | None


B = Statements(
    claim="""
        select id, event_id::text as event_id, topic, payload ->> 'order_id' as key, payload::text as payload, attempts
          from outbox where bus = 'kafka' and status = 'pending'
         order by id limit %s for update skip locked
    """,
    sent="update outbox set status = 'sent', sent_at = now(), attempts = attempts + 1 where id = any(%s)",
    failed="""
        update outbox set attempts = attempts + 1, last_error = %s,
               status = case when attempts >= 4 then 'failed' else 'pending' end
         where id = %s
    """,
)

C = Statements(
    claim="""
        select id, id::text as event_id, topic, payload ->> 'order_id' as key, payload::text as payload, 0 as attempts
          from outbox where sent_at is null
         order by id limit %s for update skip locked
    """,
    sent="update outbox set sent_at = now() where id = any(%s)",
    failed=None,
)


class Locked:
    """One relay's work on a table, over a connection in autocommit."""

    def __init__(self, connection: psycopg.Connection, statements: Statements, *, batch: int) -> None:
        self._connection = connection
        self._statements = statements
        self._batch = batch

    def turn(self, publish: Callable[[Sequence[Row]], dict[int, str]]) -> int:
        """Lock, publish and mark one batch; how many rows it had."""
        with self._connection.transaction():
            cursor = self._connection.cursor(row_factory=class_row(Row))
            rows = cursor.execute(self._statements.claim, (self._batch,)).fetchall()
            if not rows:
                return 0
            failed = publish(rows)
            sent = [row.id for row in rows if row.id not in failed]
            self._connection.execute(self._statements.sent, (sent,))
            if self._statements.failed is not None:
                for id_, error in failed.items():
                    self._connection.execute(self._statements.failed, (error, id_))
        return len(rows)
