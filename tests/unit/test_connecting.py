"""A connection that was on its way when nobody wanted it any more, and one to a server that is too old."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

import pytest

from cdc_outbox.errors import SetupError
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.settings import PostgresSettings, load


def to(port: int) -> PostgresSettings:
    dsn = f"postgresql://somebody@127.0.0.1:{port}/app?sslmode=disable&gssencmode=disable"
    return load("start", {}, {"CDC_OUTBOX_DSN": dsn}, Path("/nonexistent")).postgres


def test_a_cancelled_connect_leaves_no_socket_though_its_task_is_kept() -> None:
    """The server would show it as a session of ours until the garbage collector runs."""

    async def scene() -> None:
        came, gone = asyncio.Event(), asyncio.Event()

        async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            await reader.read()
            gone.set()
            writer.close()

        server = await asyncio.start_server(mute, "127.0.0.1", 0)
        settings = to(server.sockets[0].getsockname()[1])
        connecting = asyncio.create_task(connect_control(settings, application_name="test"))
        await asyncio.wait_for(came.wait(), 10)
        connecting.cancel()
        await asyncio.wait({connecting})
        assert connecting.cancelled()
        await asyncio.wait_for(gone.wait(), 10)
        server.close()

    gc.disable()
    try:
        asyncio.run(scene())
    finally:
        gc.enable()


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4) + body


def test_a_server_that_is_too_old_is_told_which_are_not() -> None:
    """No PostgreSQL before 15 is among the tests' servers, so this one only says that it is one."""
    welcome = b"".join(
        [
            message(b"R", (0).to_bytes(4)),
            message(b"S", b"server_version\0" + b"14.18\0"),
            message(b"S", b"client_encoding\0" + b"UTF8\0"),
            message(b"Z", b"I"),
        ]
    )

    async def scene() -> None:
        gone = asyncio.Event()

        async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(int.from_bytes(await reader.readexactly(4)) - 4)
            writer.write(welcome)
            await reader.read()
            writer.close()
            gone.set()

        server = await asyncio.start_server(old, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(SetupError) as refused:
            await connect_control(to(port), application_name="test")
        assert str(refused.value) == f"PostgreSQL 14 at 127.0.0.1:{port} is too old"
        assert refused.value.next == "upgrade it: cdc-outbox supports PostgreSQL 15 to 18"
        await asyncio.wait_for(gone.wait(), 10)
        server.close()

    asyncio.run(scene())
