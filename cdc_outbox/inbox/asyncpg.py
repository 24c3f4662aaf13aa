"""The inbox for asyncpg.

async with connection.transaction():
    if await first_time(connection, consumer="billing", event_id=event_id(record.headers)):
        ...  # the effect, on the same connection
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from cdc_outbox.enqueue.asyncpg import AnyConnection, require_transaction
from cdc_outbox.inbox import statement
from cdc_outbox.inbox.answer import Answer

__all__ = ["first_time"]

_STATEMENT: Final = statement.insert("$1", "$2")


def first_time(conn: AnyConnection, *, consumer: str, event_id: object) -> Awaitable[bool]:
    """Whether `consumer` has not applied the event before; from the commit of this transaction on it has.

    Raises OutsideTransaction, and CallRefused for an id or a name that says nothing.
    """
    require_transaction(conn)
    return Answer(_insert(conn, statement.values(consumer, event_id)))


async def _insert(conn: AnyConnection, values: tuple[str, str]) -> bool:
    require_transaction(conn)  # it may have ended since the call
    return await conn.execute(_STATEMENT, *values) == "INSERT 0 1"
