"""The end of a control connection, for those who share it with the session that ends."""

from __future__ import annotations

import asyncio

from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.postgres.connection import connect_control, execute
from cdc_outbox.postgres.control import Control
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database

NAME = "cdc-outbox/test_slot"


def test_who_asks_and_who_waits_learn_of_the_end_at_once(database: Database) -> None:
    """The slot watch outlives the session: an end that cancelled it would leave the relay unwatched."""
    settings = PostgresSettings(
        *(database.dsn, database.dsn), slot="test_slot", publication="outbox_pub", guard_interval=1.0
    )

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
