"""What was committed before the slot is visible before anybody counts, reads or decides; also behind a standby."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from cdc_outbox.postgres.blocker import Blocker, unended
from cdc_outbox.postgres.connection import Connection
from tests.integration.backfilled import Backfilled
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.connected import with_control
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.postgres import PostgresServer
from tests.servers.relay import clean_environment
from tests.servers.wait import PATIENCE, eventually

ROW = "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', 'placed')"
WAITS_FOR_ONE: LiteralString = (
    "select exists (select from pg_locks where locktype = 'transactionid' and not granted"
    " and transactionid::text = %s)"
)


class Shop:
    """A server whose synchronous standby is away: who asks for it waits."""

    def __init__(self, place: Backfilled, aggregate_type: str) -> None:
        self.place = place
        self.aggregate_type = aggregate_type

    def until(self, query: LiteralString, *parameters: object) -> None:
        eventually(lambda: self.place.execute(query, parameters)[0][0], PATIENCE, query)

    def write_and_wait(self) -> None:
        with psycopg.connect(self.place.dsn, autocommit=True, application_name="shop") as connection:
            connection.execute("set synchronous_commit = on")
            connection.execute(ROW, (self.aggregate_type,))

    def init_overtaken(self, words: Path) -> threading.Thread:
        """An `init` that is killed while it waits for a commit which lies below its slot and isn't visible.

        Creating a slot waits twice, for what is open at that time. What begins after the first wait did, and commits
        before the second is over, has its commit in the log before the slot's position.
        """
        dsn, slot = self.place.dsn, self.place.slot
        command = [sys.executable, "-m", "cdc_outbox", "init", "--slot", slot]
        with (
            psycopg.connect(dsn) as first,
            psycopg.connect(dsn) as second,
            words.open("wb") as told,
            subprocess.Popen(command, env=clean_environment({"CDC_OUTBOX_DSN": dsn}), stderr=told) as init,
        ):
            try:
                [(xid,)] = first.execute("select pg_current_xact_id()::text").fetchall()
                self.until(WAITS_FOR_ONE, xid)
                [(xid,)] = second.execute("select pg_current_xact_id()::text").fetchall()
                first.rollback()
                self.until(WAITS_FOR_ONE, xid)
                writer = threading.Thread(target=self.write_and_wait)
                writer.start()
                self.until("select exists (select from pg_stat_activity where wait_event = 'SyncRep')")
                second.rollback()
                eventually(lambda: "application shop" in words.read_text(), PATIENCE, words.read_text)
            finally:
                init.kill()
        return writer


@pytest.mark.parametrize("major", [15, 18])
def test_a_commit_that_waits_for_a_standby_is_waited_for(
    major: int,
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    slot: str,
    aggregate_type: str,
    outbox_topic: str,
    tmp_path: Path,
) -> None:
    """It lies in the log before the slot and is visible later. Also a slot that was made before is no boundary yet."""
    settings = {"synchronous_standby_names": "nobody", "synchronous_commit": "local"}
    server = make_postgres(major, settings=settings)
    server.create_database("app")
    kafka.create_topic(outbox_topic, 1)
    place = Backfilled(Database(server, "app"), slot, kafka, outbox_topic)
    create_outbox(place.dsn)
    place.ok("--only", "publication", "--only", "witness")
    writer = Shop(place, aggregate_type).init_overtaken(tmp_path / "init")
    try:
        for command, *flags in (
            ("init",),
            ("init", "--no-backfill"),
            ("backfill", "--all", "--yes", "--bootstrap-servers", kafka.bootstrap),
        ):
            error, remedy = place.refused("--wait", "300ms", *flags, code=1, command=command)
            assert "application shop" in error
            assert "committed, waits for a synchronous standby" in error
            assert "synchronous_standby_names" in remedy
            assert f"cdc-outbox drop --slot {slot}" in remedy
            assert place.slots() == [f"{slot}_pending"]
            assert place.execute("select from cdc_outbox_witness where slot = %s", (slot,)) == []
    finally:
        server.reload({"synchronous_standby_names": ""})
        writer.join(PATIENCE)
    assert "holds 1 row from before the slot" in place.refused()[0]
    with psycopg.connect(place.dsn) as idle:
        idle.execute(ROW, (aggregate_type,))
        assert "published 1," in place.backfill(), "who is idle in his transaction has yet to commit"
    place.relay()
    assert set(place.ids()) == {str(row[0]) for row in place.execute("select id from outbox")}
    assert len(place.ids()) == 2


@ALL_VERSIONS
def test_who_may_have_begun_to_commit_is_seen_by_whoever_looks(
    database: Database,
    plain_role: str,
) -> None:
    """Who is idle is left out where that can be seen; what one may not see is waited for."""

    def seen(user: str) -> dict[str | int | None, Blocker]:
        async def look(conn: Connection) -> dict[str | int | None, Blocker]:
            return {each.gid or each.pid: each for each in (await unended(conn)).values()}

        return with_control(database.server.dsn(database.name, user=user), look)

    gid = f"of {plain_role}"
    number = "select pg_current_xact_id()"
    with (
        psycopg.connect(database.dsn) as idle,
        psycopg.connect(database.dsn) as prepared,
        psycopg.connect(database.server.dsn("postgres")) as elsewhere,
        psycopg.connect(database.dsn) as reader,
    ):
        prepared.tpc_begin(gid)
        for each in (idle, prepared, elsewhere):
            each.execute(number)
        prepared.tpc_prepare()
        reader.execute("select 1")
        try:
            assert list(seen("postgres")) == [gid]
            hidden = seen(plain_role)
            assert hidden.keys() == {gid, idle.info.backend_pid}
            assert hidden[idle.info.backend_pid].query is None
        finally:
            prepared.tpc_rollback()
        assert list(seen(plain_role)) == [idle.info.backend_pid]
