"""A migration that rewrites the table while it is to be read: it is waited for, and then all rows are seen."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.event import TableName
from cdc_outbox.postgres import table_rows
from cdc_outbox.settings import PostgresSettings
from tests.integration.backfilled import TABLE_C, Backfilled, place
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.postgres import PASSWORD

__all__ = ["place"]

PARTITIONED = TableName("public", "outbox")
PLAIN = TableName("public", "other")
TABLES: LiteralString = """
create table outbox (id int primary key) partition by range (id);
create table part partition of outbox for values from (0) to (10);
create table other (id int);
insert into outbox values (1), (2);
insert into other values (3);
"""
REWRITES: LiteralString = """
alter table outbox add column trace uuid default gen_random_uuid();
alter table other alter column id type bigint;
"""
ROWS: LiteralString = (
    "insert into outbox (topic, payload) select %s, jsonb_build_object('n', n) from generate_series(1, 5) n"
)
TRIES: LiteralString = (
    "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'reader'"
    " and query ~ '^(lock|rollback)'"
)


async def seen(settings: PostgresSettings) -> list[int]:
    async with table_rows.snapshot(settings, [PLAIN, PARTITIONED], application_name="reader") as conn:
        return [await table_rows.count(conn, table, None) for table in (PLAIN, PARTITIONED)]


@ALL_VERSIONS
def test_a_snapshot_is_taken_once_all_tables_are_locked(
    database: Database, slot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partitioned one too, and by a role that may read alone."""
    server, name = database.server, database.name
    role = f"reader_{slot}"
    with psycopg.connect(database.dsn) as connection:
        connection.execute(TABLES)
        connection.execute(f"create role {role} login password '{PASSWORD}' in role pg_read_all_data")
    settings = PostgresSettings(server.dsn(name, user=role), "", slot, "outbox_pub", 1.0)

    async def read() -> list[int]:
        with psycopg.connect(database.dsn) as migration:
            migration.execute(REWRITES)
            reading = asyncio.create_task(seen(settings))
            while not server.execute(TRIES, dbname=name)[0][0]:
                await asyncio.sleep(0.02)
            migration.commit()
        return await reading

    try:
        assert asyncio.run(read()) == [1, 2]
        monkeypatch.setattr(table_rows, "LOCK_WAIT", 0.2)
        with psycopg.connect(database.dsn) as migration:
            migration.execute("lock table other")
            with pytest.raises(PostgresUnavailable, match=r"another session has public\.other to itself"):
                asyncio.run(seen(settings))
    finally:
        server.execute(f"drop role {role}")


def test_a_backfill_publishes_the_rows_of_a_table_that_was_rewritten_before_it_read(
    place: Backfilled, tmp_path: Path
) -> None:
    place.execute(TABLE_C)
    place.execute(ROWS, (place.topic,))
    place.refused("--key", "none")
    hold = tmp_path / "hold"
    process = place.held("slot", hold, "--key", "none")
    try:
        with psycopg.connect(place.dsn) as migration:
            migration.execute("alter table outbox add column trace uuid default gen_random_uuid()")
            hold.unlink()
            while not place.value(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and application_name = 'cdc-outbox backfill' and query ~ '^(lock|rollback|select count)'"
            ):
                pass
        assert process.wait() == 0, process.text()
        assert [record.json()["n"] for record in place.records()] == [1, 2, 3, 4, 5]
    finally:
        process.close()
