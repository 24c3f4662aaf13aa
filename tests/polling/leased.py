"""Table A: rows are leased in one transaction, published outside of any, and marked in another.

A relay that is killed between leaves its rows in `processing`; they are taken again when the lease is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from psycopg.rows import class_row

from tests.polling.outlet import Row

BACKOFF = ("1 second", "5 seconds", "30 seconds", "2 minutes", "10 minutes")

_RECOVER = """
update outbox set status = 'pending', locked_by = null, locked_at = null
 where status = 'processing' and locked_at < now() - make_interval(secs => %s)
"""
_CLAIM = """
update outbox set status = 'processing', locked_by = %(name)s, locked_at = clock_timestamp(), attempts = attempts + 1
 where id in (
    select id from outbox where status in ('pending', 'failed') and next_run_at <= now()
     order by id limit %(batch)s for update skip locked
 )
returning id, id::text as event_id, topic, aggregate_id as key, payload::text as payload, attempts - 1 as attempts
"""
_SENT = """
update outbox set status = 'sent', sent_at = now(), locked_by = null, locked_at = null, last_error = null
 where id = any(%s) and locked_by = %s
"""
_FAILED = """
update outbox set status = 'failed', next_run_at = now() + %s::interval, last_error = %s, locked_by = null,
       locked_at = null
 where id = %s and locked_by = %s
"""


class Leased:
    """One relay's work on table A, over a connection in autocommit."""

    def __init__(self, connection: psycopg.Connection, *, name: str, batch: int, lease: float) -> None:
        self._connection = connection
        self._name = name
        self._batch = batch
        self._lease = lease

    def turn(self, publish: Callable[[Sequence[Row]], dict[int, str]]) -> int:
        """Lease, publish and mark one batch; how many rows it had."""
        with self._connection.transaction():
            self._connection.execute(_RECOVER, (self._lease,))
            cursor = self._connection.cursor(row_factory=class_row(Row))
            rows = cursor.execute(_CLAIM, {"name": self._name, "batch": self._batch}).fetchall()
        if not rows:
            return 0
        rows.sort()
        failed = publish(rows)
        with self._connection.transaction():
            sent = [row.id for row in rows if row.id not in failed]
            self._connection.execute(_SENT, (sent, self._name))
            for row in rows:
                if row.id in failed:
                    later = BACKOFF[min(row.attempts, len(BACKOFF) - 1)]
                    self._connection.execute(_FAILED, (later, failed[row.id], row.id, self._name))
        return len(rows)
