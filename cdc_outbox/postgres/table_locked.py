"""A table that another session has to itself: who merely looks at it gives up at once, and looks again or not at all.

Whoever waits for the table would wait in front of the application's inserts.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres import sqlstate

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE: Final[LiteralString] = "set lock_timeout = '500ms'"
"""For a session. A migration has the table to itself for longer; a server that logs waiting does so after a second."""


class TableLocked(Exception):
    """Another session has the table to itself."""


@contextmanager
def giving_up() -> Iterator[None]:
    """Around statements on the table, of a session with AT_ONCE. Raises TableLocked for a lock that isn't to be had."""
    try:
        yield
    except CdcOutboxError as error:
        if sqlstate.of(error) == "55P03":
            raise TableLocked from error
        raise
