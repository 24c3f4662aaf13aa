"""The inbox for psycopg 3.

with connection.transaction():
    if first_time(connection, consumer="billing", event_id=event_id(message.headers())):
        ...  # the effect, on the same connection
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final, overload

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.rows import tuple_row

from cdc_outbox.enqueue.psycopg import Async, Sync, in_transaction, require_transaction
from cdc_outbox.inbox import statement
from cdc_outbox.inbox.answer import Answer

__all__ = ["first_time"]

# In a pipeline the count of rows comes after it has ended, and a row comes when it is asked for. A constant needs no
# right to read.
_STATEMENT: Final = statement.insert("%s", "%s") + " returning true"


@overload
def first_time(conn: Sync, *, consumer: str, event_id: object) -> bool: ...
@overload
def first_time(conn: Async, *, consumer: str, event_id: object) -> Awaitable[bool]: ...
def first_time(conn: Sync | Async, *, consumer: str, event_id: object) -> bool | Awaitable[bool]:
    """Whether `consumer` has not applied the event before; from the commit of this transaction on it has.

    With an asynchronous connection: `if await first_time(...)`. Raises OutsideTransaction, and CallRefused for an id or
    a name that says nothing.
    """
    connection, values = in_transaction(conn), statement.values(consumer, event_id)
    if isinstance(connection, AsyncConnection):
        return Answer(_insert_async(connection, values))
    return _insert(connection, values)


def _insert(connection: Connection[Any], values: tuple[str, str]) -> bool:
    with Cursor(connection, row_factory=tuple_row) as cursor:
        return cursor.execute(_STATEMENT, values).fetchone() is not None


async def _insert_async(connection: AsyncConnection[Any], values: tuple[str, str]) -> bool:
    await require_transaction(connection)
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_STATEMENT, values)
        return await cursor.fetchone() is not None
