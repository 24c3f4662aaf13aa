"""Waiting for a socket: woken once, leaving nothing in the loop, told where libpq has closed it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import psycopg
import pytest

from cdc_outbox.postgres.readiness import ready


class Closed:
    @property
    def socket(self) -> int:
        raise psycopg.OperationalError("the connection is lost")


class Open:
    def __init__(self, end: socket.socket) -> None:
        self.socket = end.fileno()


def test_a_socket_that_libpq_has_closed_is_told_as_its_error() -> None:
    closed: Any = Closed()
    with pytest.raises(psycopg.OperationalError, match="lost"):
        asyncio.run(ready(closed, write=False))


@pytest.mark.parametrize("write", [True, False])
def test_it_wakes_and_leaves_nothing_in_the_loop(write: bool) -> None:
    async def scene() -> None:
        mine, other = socket.socketpair()
        with mine, other:
            pgconn: Any = Open(mine)
            if not write:
                waiting = asyncio.create_task(ready(pgconn, write=False))
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait({waiting})
                assert not asyncio.get_running_loop().remove_reader(mine)
                other.send(b"x")
            async with asyncio.timeout(10):
                await ready(pgconn, write=write)
            loop = asyncio.get_running_loop()
            assert not (loop.remove_writer(mine) if write else loop.remove_reader(mine))

    asyncio.run(scene())
