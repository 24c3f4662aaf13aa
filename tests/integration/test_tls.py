"""The stream over TLS, where a socket that has nothing to read is no proof that nothing has come.

OpenSSL decrypts a record at a time, and libpq takes from it what its buffer has room for. What stays behind makes no
socket readable. A server's own records end with its messages; those of a proxy that ends TLS end anywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest
from psycopg import sql

from cdc_outbox.postgres import pgoutput
from cdc_outbox.postgres.connection import connect_replication
from cdc_outbox.postgres.protocol import XLOG_HEADER
from cdc_outbox.postgres.stream import ReplicationStream
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.servers.security import certificates
from tests.servers.wait import PATIENCE

RECORD = 16_384
"""Bytes of the largest record, and of libpq's buffer at first."""

AROUND_THE_ROW = 43
"""Bytes of a frame with one row of one text column, besides the text."""


class Terminator:
    """A proxy that ends TLS, and cuts frames into records of its own; without TLS to the server behind it.

    `cuts` are for each frame of CopyData that is larger than a record: its pieces' lengths in bytes, the last of
    which takes the rest. After such a frame nothing more comes.
    """

    def __init__(self, server: tuple[str, int], cuts: Sequence[int]) -> None:
        self._server = server
        self._cuts = cuts
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificates() / "server.pem", certificates() / "server.key")
        self._tasks: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """The port."""
        listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)  # SSLRequest
        writer.write(b"S")
        await writer.start_tls(self._context)
        from_server, to_server = await asyncio.open_connection(*self._server)
        upwards = asyncio.ensure_future(self._up(reader, to_server))
        try:
            await self._down(from_server, writer)
        finally:
            upwards.cancel()
            to_server.close()
            writer.close()

    async def _up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        while data := await reader.read(RECORD):
            to_server.write(data)

    async def _down(self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await from_server.readexactly(5)
            message = head + await from_server.readexactly(int.from_bytes(head[1:]) - 4)
            if head[:1] != b"d" or len(message) <= RECORD:
                writer.write(message)
                continue
            for cut in self._cuts:
                writer.write(message[:cut])
                message = message[cut:]
            writer.write(message)
            await asyncio.Event().wait()


async def rows_of(stream: ReplicationStream) -> AsyncIterator[bytes]:
    """The frames of rows, read as the relay reads."""
    while True:
        await stream.readable()
        while True:
            length, view = stream.frame(1)
            if length == 0:
                stream.receive()
                length, view = stream.frame(1)
                if length == 0:
                    break
            data = bytes(view)
            if len(data) > XLOG_HEADER and data[XLOG_HEADER] == pgoutput.INSERT:
                yield data


@pytest.mark.parametrize(
    ("size", "cuts"),
    [
        (RECORD + 2, (2,)),
        (RECORD + 4, (4,)),
        (RECORD + 1, (1,)),
        (2 * RECORD + 2, (2, RECORD)),
        (4 * RECORD + 3, (3, RECORD, RECORD, RECORD)),
        (9 * RECORD + 1, (1, *(RECORD,) * 8)),
        (9 * RECORD + 4096, (2048, *(RECORD,) * 8)),
    ],
)
def test_what_openssl_holds_back_does_not_wait_for_more(
    database: Database, slot: str, size: int, cuts: tuple[int, ...]
) -> None:
    """A record that ends within a frame's header: libpq doesn't know yet how much room the frame will need.

    Newer ones find by themselves what OpenSSL holds; this fails with psycopg-binary 3.2.4 where nothing is done for it.
    """
    text = "x" * (size - AROUND_THE_ROW)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("create table outbox (payload text)")
        connection.execute("create publication p for table outbox")
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        where = psycopg.conninfo.conninfo_to_dict(database.dsn)
        terminator = Terminator((str(where["host"]), int(where["port"] or 0)), cuts)
        insert = sql.SQL("insert into outbox values ({})").format(sql.Literal(text))

        async def run() -> bytes:
            async with terminator.listening() as port:
                dsn = psycopg.conninfo.make_conninfo(database.dsn, port=port, sslmode="require")
                settings = PostgresSettings(
                    dsn=dsn, admin_dsn="", slot=slot, publication="p", guard_interval=1.0
                )
                replication = await connect_replication(settings, application_name="cdc-outbox/tls")
                assert replication.pgconn.ssl_in_use
                stream = ReplicationStream(replication, sender_timeout=0)
                try:
                    await stream.start(slot, "p")
                    await asyncio.to_thread(connection.execute, insert)
                    async with asyncio.timeout(PATIENCE):
                        return await anext(rows_of(stream))
                finally:
                    await stream.close(within=0.2)

        row = asyncio.run(run())
    assert len(row) + 5 == size
    assert row.endswith(text.encode())
