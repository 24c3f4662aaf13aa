"""The inbox for SQLAlchemy 2, over any of its drivers for PostgreSQL.

with Session.begin() as session:
    if first_time(session, consumer="billing", event_id=event_id(message.headers())):
        ...  # the effect, in the same session
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, overload

from sqlalchemy import Connection, text

from cdc_outbox.enqueue.sqlalchemy import Async, Sync, on_connection
from cdc_outbox.inbox import statement
from cdc_outbox.inbox.answer import Answer

__all__ = ["first_time"]

_STATEMENT: Final = text(statement.insert(":consumer", ":event_id"))


@overload
def first_time(conn: Sync, *, consumer: str, event_id: object) -> bool: ...
@overload
def first_time(conn: Async, *, consumer: str, event_id: object) -> Awaitable[bool]: ...
def first_time(conn: Sync | Async, *, consumer: str, event_id: object) -> bool | Awaitable[bool]:
    """Whether `consumer` has not applied the event before; from the commit of this transaction on it has.

    With an AsyncConnection or AsyncSession: `if await first_time(...)`. Raises OutsideTransaction for a connection at
    the isolation level AUTOCOMMIT, and CallRefused for an id or a name that says nothing.
    """
    named = dict(zip(("consumer", "event_id"), statement.values(consumer, event_id), strict=True))

    def write(connection: Connection) -> bool:
        return connection.execute(_STATEMENT, named).rowcount == 1

    answer = on_connection(conn, write)
    return answer if isinstance(answer, bool) else Answer(answer)
