"""The end of a control connection, for those who share it with the session that ends."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from cdc_outbox.errors import CdcOutboxError, PostgresShutdown, PostgresUnavailable
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.control import Control
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.integration.connected import settings_of

NAME = "cdc-outbox/test_slot"


@pytest.fixture
def settings(database: Database) -> PostgresSettings:
    return settings_of(database.dsn)


def test_who_asks_and_who_waits_learn_of_the_end_at_once(settings: PostgresSettings) -> None:
    """The slot watch outlives the session: an end that cancelled it would leave the relay unwatched."""

    async def run() -> None:
        control = Control(await connect_control(settings, application_name=NAME))
        begun = asyncio.Event()

        async def ask(connection: object) -> None:
            begun.set()
            await execute(control.connection, "select pg_sleep(60)")

        asking = asyncio.create_task(control.run(ask))
        await begun.wait()
        waiting = asyncio.create_task(control.run(ask))
        async with asyncio.timeout(10):
            await asyncio.sleep(0)
            await control.close()
            await asyncio.wait({asking, waiting})
        assert control.connection.closed
        for task in (asking, waiting, asyncio.create_task(control.run(ask))):
            await asyncio.wait({task})
            assert not task.cancelled()
            assert isinstance(task.exception(), PostgresUnavailable)
        await control.close()

    asyncio.run(run())


def test_a_shutdown_that_is_read_before_the_query_is_told_as_one(settings: PostgresSettings) -> None:
    """The server's last word and its closed socket may both be there when the guard begins to ask."""

    async def run() -> None:
        control = Control(await connect_control(settings, application_name=NAME))

        async def ask(connection: Connection) -> None:
            backend = connection.info.backend_pid
            with psycopg.connect(settings.dsn, autocommit=True) as other:
                other.execute("select pg_terminate_backend(%s, 5000)", (backend,))
            with pytest.raises(psycopg.OperationalError):  # noqa: PT012 - libpq has the word first, then the end
                while True:
                    connection.pgconn.consume_input()
                    connection.pgconn.is_busy()
            await execute(connection, "select 1")

        with pytest.raises(CdcOutboxError) as told:
            await control.run(ask)
        assert isinstance(told.value, PostgresShutdown)
        assert control.lost.result() is told.value
        await control.close()

    asyncio.run(run())


def test_a_question_that_is_cancelled_ends_the_connection_for_all(settings: PostgresSettings) -> None:
    """It is cut then, and nobody else would see that before his next question."""

    async def run() -> None:
        control = Control(await connect_control(settings, application_name=NAME))
        begun = asyncio.Event()

        async def ask(connection: Connection) -> None:
            begun.set()
            await execute(connection, "select pg_sleep(60)")

        asking = asyncio.create_task(control.run(ask))
        await begun.wait()
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking}, timeout=10)
        assert asking.cancelled()
        assert control.connection.closed
        async with asyncio.timeout(10):
            assert isinstance(await control.lost, PostgresUnavailable)
        await control.close()

    asyncio.run(run())


def test_a_slow_statement_costs_no_connection(settings: PostgresSettings) -> None:
    """The server ends it before our own clock cuts the connection."""

    async def run() -> None:
        control = Control(await connect_control(settings, application_name=NAME))
        with pytest.raises(PostgresUnavailable, match=r"57014"):
            await control.run(lambda conn: execute(conn, "select pg_sleep(60)"))
        assert not control.connection.closed
        assert await control.run(lambda conn: execute(conn, "select 1")) == [(1,)]
        await control.close()

    asyncio.run(run())
