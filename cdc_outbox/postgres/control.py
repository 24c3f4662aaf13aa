"""The control connection: short queries to the server that streams to us, and a sentinel of its shutdown.

A fast shutdown ends ordinary sessions at once, while a walsender keeps the server waiting for us. So the end of this
connection is the sign to get out of the way, and it is watched also while no query runs: between queries the socket
is in the event loop, and what the server says there (57P01 and its kin) arrives as a notice.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from psycopg import Error, OperationalError

from cdc_outbox.errors import CdcOutboxError, PostgresShutdown, PostgresUnavailable
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres.connection import in_short, sever

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from psycopg import AsyncConnection
    from psycopg.errors import Diagnostic

    Answer = TypeVar("Answer")

SHUTDOWN_STATES = frozenset({"57P01", "57P02", "57P03"})
"""admin_shutdown, crash_shutdown, cannot_connect_now."""


class Control:
    """An ordinary connection with one user at a time, whose loss is an event (`lost`)."""

    def __init__(self, connection: AsyncConnection[Any]) -> None:
        self.connection = connection
        self.lost: asyncio.Future[CdcOutboxError] = asyncio.get_running_loop().create_future()
        """Resolves to the reason as soon as the connection has ended."""
        self.asked = 0
        """How often something was asked here."""
        self._lock = asyncio.Lock()
        self._sqlstate: str | None = None
        connection.add_notice_handler(self._notice)
        self._watch()

    def _notice(self, diagnostic: Diagnostic) -> None:
        if diagnostic.severity_nonlocalized in ("FATAL", "PANIC"):
            self._sqlstate = diagnostic.sqlstate

    async def run(self, query: Callable[[AsyncConnection[Any]], Awaitable[Answer]]) -> Answer:
        """Run one function of the control modules on the connection.

        Raises the error of `sqlstate`'s table that fits; PostgresShutdown where the server ends.
        """
        async with self._lock:
            if self.lost.done():
                raise self.lost.result()
            self._unwatch()
            self.asked += 1
            try:
                return await query(self.connection)
            except Error as error:
                if self.connection.closed:
                    raise self._end(error) from error
                raise sqlstate.from_exception(error, stage="control") from error
            except CdcOutboxError as error:
                if self.connection.closed and not self.lost.done():
                    if self._sqlstate in SHUTDOWN_STATES:  # said before the query, which met a closed socket
                        raise self._end(error) from error
                    self.lost.set_result(error)
                raise
            finally:
                if self.connection.closed and not self.lost.done():  # `execute` cuts it when it is cancelled
                    self._end(OperationalError("who asked was cancelled before the answer came"))
                self._watch()

    def _watch(self) -> None:
        if not self.connection.closed:
            asyncio.get_running_loop().add_reader(self.connection.fileno(), self._spoken)

    def _unwatch(self) -> None:
        if not self.connection.closed:
            asyncio.get_running_loop().remove_reader(self.connection.fileno())

    def _spoken(self) -> None:
        """The server said something that nobody asked for: a notice, or its end."""
        pgconn = self.connection.pgconn
        descriptor = pgconn.socket
        try:
            pgconn.consume_input()
            pgconn.is_busy()  # parses what came, which calls the notice handler
        except OperationalError as error:
            # libpq closes its socket by itself, so the descriptor is taken out of the loop here.
            asyncio.get_running_loop().remove_reader(descriptor)
            self._end(error)

    def _end(self, error: Exception) -> CdcOutboxError:
        if self.lost.done():
            return self.lost.result()
        state = getattr(error, "sqlstate", None) or self._sqlstate
        if state in SHUTDOWN_STATES:
            reason: CdcOutboxError = PostgresShutdown(
                f"PostgreSQL is shutting down ({state})",
                next="nothing to do: the relay made way and reconnects by itself",
            )
        else:
            reason = PostgresUnavailable(
                f"the control connection was lost: {in_short(error)}",
                next="nothing to do: the relay reconnects by itself",
            )
        self.lost.set_result(reason)
        return reason

    async def close(self) -> None:
        """Close without waiting for the server. Who still asks, or waits for a turn, gets PostgresUnavailable at once.

        Only then is the socket given back: its number may be that of the next connection.
        """
        if not self.lost.done():
            self.lost.set_result(
                PostgresUnavailable(
                    "the control connection is closed: the session is over",
                    next="nothing to do: the relay connects again by itself",
                )
            )
        try:
            if self._lock.locked():
                sever(self.connection)
                async with self._lock:
                    pass
        finally:
            self._unwatch()
            await self.connection.close()
