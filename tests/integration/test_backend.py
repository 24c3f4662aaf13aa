"""Who has the slot: told from others by what a plain role may see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from cdc_outbox.postgres import backend
from cdc_outbox.postgres.backend import Backend
from cdc_outbox.postgres.connection import connect_control, connect_replication, execute
from cdc_outbox.postgres.stream import ReplicationStream
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.postgres import PASSWORD


@pytest.fixture
def roles(database: Database, slot: str) -> Iterator[tuple[PostgresSettings, PostgresSettings]]:
    """Two roles that may replicate, and see no more than that of others."""
    names = (f"{slot}_a", f"{slot}_b")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute("create publication p")
        for name in names:
            connection.execute(
                SQL("create role {} login replication password {}").format(
                    Identifier(name), Literal(PASSWORD)
                )
            )
    first, second = (
        PostgresSettings(
            dsn=psycopg.conninfo.make_conninfo(database.dsn, user=name),
            admin_dsn="",
            slot=slot,
            publication="p",
            guard_interval=1.0,
        )
        for name in names
    )
    yield first, second
    for name in names:
        database.server.execute(SQL("drop role {}").format(Identifier(name)))


@ALL_VERSIONS
def test_a_walsender_is_known_by_its_number_and_when_it_began(
    slot: str, roles: tuple[PostgresSettings, PostgresSettings]
) -> None:
    same, other = roles

    async def scene() -> tuple[Backend | None, ...]:
        async with AsyncExitStack() as ending:
            beside = await connect_control(same, application_name="test")
            ending.push_async_callback(beside.close)
            hidden = await connect_control(other, application_name="test")
            ending.push_async_callback(hidden.close)
            await execute(beside, "select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
            before = await backend.holder(beside, slot)
            connection = await connect_replication(same, application_name="test")
            ours = await backend.own(connection)
            stream = ReplicationStream(connection, sender_timeout=0, backend=ours)
            await stream.start(slot, "p")
            seen = await backend.holder(beside, slot), await backend.holder(hidden, slot)
            await stream.close()
            while await backend.holder(beside, slot) is not None:
                await asyncio.sleep(0.05)
            await execute(beside, "select pg_drop_replication_slot(%s)", (slot,))
            return before, ours, *seen

    before, ours, by_own_role, by_another = asyncio.run(scene())
    assert before is None
    assert ours is not None
    assert ours.began is not None
    assert by_own_role == ours
    assert by_another == Backend(ours.pid, None)
