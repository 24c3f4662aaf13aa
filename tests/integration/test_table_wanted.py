"""Who waits to have the table to itself is seen, whatever the role of the one who looks."""

from __future__ import annotations

import asyncio
import threading

import psycopg
from psycopg.sql import SQL, Identifier

from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.postgres.wanted import waits_for
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.integration.initial import ALL_VERSIONS, plain_role  # noqa: F401 - a fixture
from tests.servers.wait import eventually


@ALL_VERSIONS
def test_a_plain_owner_sees_who_waits_for_its_table(database: Database, plain_role: str) -> None:  # noqa: F811
    """What sessions of other roles do is hidden from a role that is nothing else; whom they wait for isn't."""
    dsn = database.server.dsn(database.name, user=plain_role)
    settings = PostgresSettings(dsn=dsn, admin_dsn=dsn, slot="s", publication="p", guard_interval=1.0)

    def seen(reader: int) -> str | None:
        async def look() -> str | None:
            async with await connect_control(settings, application_name="test") as conn:
                return await waits_for(conn, reader)

        return asyncio.run(look())

    def migrate() -> None:
        with psycopg.connect(database.dsn, application_name="migration") as connection:
            connection.execute("alter table orders add column note text")

    database.server.execute("create table orders ()", dbname=database.name)
    database.server.execute(
        SQL("alter table orders owner to {}").format(Identifier(plain_role)), dbname=database.name
    )
    with psycopg.connect(dsn) as reader:
        reader.execute("select from orders")
        assert seen(reader.info.backend_pid) is None
        migration = threading.Thread(target=migrate)
        migration.start()
        try:
            words = eventually(lambda: seen(reader.info.backend_pid), 10, "the one who waits")
        finally:
            reader.rollback()
            migration.join()
    assert str(words).endswith("(migration)")
