"""Apply an event once, however often it comes: the inbox of a consumer.

`first_time` writes the event's id into the inbox table (`sql/inbox.sql`, made by `cdc-outbox inbox create`) within
the caller's transaction, and says whether it was not there yet. The effect belongs to the same transaction: both are
committed, or neither is, so that an event whose transaction failed is applied when it comes again. One module for each
library: `cdc_outbox.inbox.psycopg`, `.asyncpg`, `.sqlalchemy`, `.django`.

Two consumers that get the same event at once: the second one's `first_time` waits until the first one's transaction
has ended. It answers False after a commit, and True after a rollback. At the isolation levels `repeatable read` and
`serializable` it raises a serialization failure instead of False (SQLSTATE 40001), as any write does there.

The id is that of the Kafka header: `event_id(message.headers())`.
"""

from cdc_outbox.inbox.header import event_id

__all__ = ["event_id"]
