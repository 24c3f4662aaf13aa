"""The inbox for Django.

    with transaction.atomic():
        if first_time(consumer="billing", event_id=event_id(message.headers())):
            ...  # the effect, on the same database

Over the connection `using` of the settings' DATABASES, by default "default".
"""

from __future__ import annotations

from typing import Final

from cdc_outbox.enqueue.django import suitable
from cdc_outbox.inbox import statement

__all__ = ["first_time"]

_STATEMENT: Final = statement.insert("%s", "%s")


def first_time(*, consumer: str, event_id: object, using: str | None = None) -> bool:
    """Whether `consumer` has not applied the event before; from the commit of this transaction on it has.

    Raises OutsideTransaction, and CallRefused for an id or a name that says nothing.
    """
    connection, values = suitable(using), statement.values(consumer, event_id)
    with connection.cursor() as cursor:
        cursor.execute(_STATEMENT, values)
        return bool(cursor.rowcount == 1)
