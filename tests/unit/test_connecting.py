"""A connection that was on its way when nobody wanted it any more."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path

from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.settings import load


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
        port = server.sockets[0].getsockname()[1]
        dsn = f"postgresql://somebody@127.0.0.1:{port}/app?sslmode=disable&gssencmode=disable"
        settings = load("start", {}, {"CDC_OUTBOX_DSN": dsn}, Path("/nonexistent")).postgres
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
