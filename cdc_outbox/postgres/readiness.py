"""Waiting for the socket of a connection whose protocol we speak ourselves.

libpq closes its socket by itself when it meets the connection's end, so its number is asked for each time, and kept for
as long as it is watched.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn


async def ready(pgconn: PGconn, *, write: bool) -> None:
    """Wait until the socket has something to read, or room to `write`.

    Raises psycopg.OperationalError where libpq has closed it.
    """
    loop = asyncio.get_running_loop()
    socket = pgconn.socket
    woken = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(socket, _wake, woken)
    try:
        await woken
    finally:
        remove(socket)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
