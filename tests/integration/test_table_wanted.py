"""Who waits to have the table to itself is seen, whatever the role of the one who looks, and is let by."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cdc_outbox.postgres import rows_by_id
from cdc_outbox.postgres.chosen import Chosen
from cdc_outbox.postgres.setup import init
from cdc_outbox.postgres.steps import InitOptions
from cdc_outbox.postgres.table_wanted import TableWanted, waits_for
from cdc_outbox.repair.find import find
from cdc_outbox.repair.replay import Replay
from cdc_outbox.settings import Settings, load
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.connected import with_control
from tests.servers.kafka import Kafka
from tests.servers.wait import PATIENCE, eventually


@ALL_VERSIONS
def test_a_plain_owner_sees_who_waits_for_its_table(database: Database, plain_role: str) -> None:
    """What sessions of other roles do is hidden from a role that is nothing else; whom they wait for isn't."""
    dsn = database.server.dsn(database.name, user=plain_role)

    def seen(reader: int) -> str | None:
        return with_control(dsn, lambda conn: waits_for(conn, reader))

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
            words = eventually(lambda: seen(reader.info.backend_pid), PATIENCE, "the one who waits")
        finally:
            reader.rollback()
            migration.join()
    assert str(words).endswith("(migration)")


SLOW: LiteralString = """
create function slow(uuid) returns text language plpgsql as
    $$ begin perform pg_catalog.pg_sleep(0.2); return 'a'; end $$;
create cast (uuid as text) with function slow(uuid);
create table outbox (
    id bigserial, topic text, aggregate_id text default '1', tenant uuid default gen_random_uuid(), payload jsonb,
    status text default 'pending');
insert into outbox (topic, payload) select 't', '{}' from generate_series(1, 600);
"""
"""A table whose rows take two minutes to be counted, where `outbox.only` names the tenant."""

READS = """
select exists (select from pg_stat_activity where datname = %s and application_name like 'cdc-outbox%%'
   and state = 'active' and query like '%%"outbox"%%' and clock_timestamp() - query_start > interval '0.1 s')
"""


@pytest.fixture
def slow(
    database: Database, slot: str, kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings of a table that takes long to read, and short looks at who waits for it."""
    database.server.execute(SLOW, dbname=database.name)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK", 0.02)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK_AGAIN", 0.02)
    (tmp_path / "cdc-outbox.toml").write_text('[outbox.only]\ntenant = ["a"]\n')
    environment = {
        "CDC_OUTBOX_DSN": database.dsn,
        "CDC_OUTBOX_SLOT": slot,
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap,
    }
    return load("replay", {}, environment, tmp_path)


def is_let_by(database: Database, work: Callable[[], Awaitable[object]]) -> None:
    """Whoever wants the table to itself while the work reads it gets it, and the work says who that was."""

    def alter() -> None:
        eventually(lambda: database.server.value(READS, (database.name,)), PATIENCE, "the table is read")
        with psycopg.connect(database.dsn, autocommit=True, application_name="migration") as connection:
            connection.execute("alter table outbox add column note text")

    async def run() -> None:
        await work()

    migration = threading.Thread(target=alter)
    migration.start()
    try:
        with pytest.raises(TableWanted, match=r"migration.*alter table outbox add column note"):
            asyncio.run(run())
    finally:
        migration.join(PATIENCE)
    assert not migration.is_alive()


def test_init_counts_and_lets_by_who_wants_the_table(slow: Settings, database: Database, slot: str) -> None:
    is_let_by(database, lambda: init(slow, InitOptions()))
    left = "select count(*) from pg_replication_slots where slot_name like %s"
    assert database.server.value(left, (f"{slot}%",)) == 0, "the next init makes it anew"


def test_a_search_without_an_index_lets_by_who_wants_the_table(
    slow: Settings, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = rows_by_id._FIND.replace("where r.", "where pg_catalog.pg_sleep(0.2) is not null and r.")
    monkeypatch.setattr(rows_by_id, "_FIND", slowly)
    is_let_by(database, lambda: find(slow, "3"))


def test_a_replay_of_one_row_reads_no_others(slow: Settings) -> None:
    asyncio.run(init(slow, InitOptions(backfill=False)))
    chosen = Chosen(ids=("3",))
    found = asyncio.run(Replay(slow, chosen, order_by=None, beside=True).look(read=lambda count: None))
    assert found.rows == 1
