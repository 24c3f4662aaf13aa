"""Slots on real servers of each version: made within a bound, named by a copy, whole or not there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from cdc_outbox.errors import CdcOutboxError, SlotBlocked, SlotBusy, SlotLost
from cdc_outbox.postgres import slot as slots
from cdc_outbox.postgres.connection import Connection, connect_control, connect_replication, execute
from cdc_outbox.settings import PostgresSettings
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.connected import settings_of
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.wait import PATIENCE, eventually

T = TypeVar("T")


@pytest.fixture
def settings(database: Database, slot: str) -> PostgresSettings:
    return settings_of(database.dsn, slot=slot, publication="outbox_pub")


@asynccontextmanager
async def connected(settings: PostgresSettings) -> AsyncIterator[Connection]:
    connection = await connect_control(settings, application_name="test")
    try:
        yield connection
    finally:
        await connection.close()


def on_two(settings: PostgresSettings, work: Callable[[Connection, Connection], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine function with two control connections."""

    async def both() -> T:
        async with connected(settings) as first, connected(settings) as second:
            return await work(first, second)

    return asyncio.run(both())


@contextmanager
def open_transaction(dsn: str, application: str = "") -> Iterator[psycopg.Connection]:
    """A session with an open transaction that has written."""
    with psycopg.connect(dsn, application_name=application) as connection:
        connection.execute("create table if not exists written (at timestamptz default now())")
        connection.commit()
        connection.execute("insert into written default values")
        yield connection
        connection.rollback()


def existing(database: Database) -> list[str]:
    rows = database.server.execute(
        "select slot_name from pg_replication_slots where database = %s", (database.name,)
    )
    return [row[0] for row in rows]


@ALL_VERSIONS
def test_a_new_slot_is_whole_and_says_so(database: Database, settings: PostgresSettings) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        assert await slots.inspect(conn, settings.slot) is None
        made = await slots.create(conn, settings.slot, failover=True, watcher=watcher)
        assert slots.require(made, settings.slot) == await slots.inspect(watcher, settings.slot)
        assert made.plugin == "pgoutput"
        assert made.database == database.name
        assert made.wal_status == "reserved"
        assert made.confirmed_flush_lsn is not None
        assert made.restart_lsn is not None
        assert made.restart_lsn <= made.confirmed_flush_lsn
        assert made.failover is (database.major >= 17)
        assert (made.inactive_since is None) is (database.major < 17)
        assert await slots.drop(conn, settings.slot)
        assert not await slots.drop(conn, settings.slot)

    on_two(settings, work)


@ALL_VERSIONS
def test_creation_waits_no_longer_than_told_though_each_transaction_ends_sooner(
    database: Database, settings: PostgresSettings
) -> None:
    """lock_timeout bounds the wait for one transaction; a second one must not start the clock anew."""

    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn) as first, open_transaction(database.dsn, "second") as second:
            begun = asyncio.get_running_loop().time()
            both = {first.info.backend_pid, second.info.backend_pid}
            making = asyncio.create_task(
                slots.create(conn, settings.slot, failover=False, watcher=watcher, within=2)
            )
            asyncio.get_running_loop().call_later(1.5, first.rollback)
            with pytest.raises(SlotBlocked) as caught:
                await making
            assert 1.5 < asyncio.get_running_loop().time() - begun < 3.4
            assert any(f"pid {pid} (user postgres, database" in str(caught.value) for pid in both)
            assert "application second" in str(caught.value)
            assert "query: insert into written default values" in str(caught.value)
            assert caught.value.exit_code == 1
            assert existing(database) == []

    on_two(settings, work)


@ALL_VERSIONS
def test_creation_goes_on_when_the_transaction_ends(database: Database, settings: PostgresSettings) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn) as other:
            named = asyncio.Event()

            def waiting(blockers: object) -> None:
                assert isinstance(blockers, tuple)
                assert [each.pid for each in blockers] == [other.info.backend_pid]
                named.set()

            making = asyncio.create_task(
                slots.create(conn, settings.slot, failover=False, watcher=watcher, waiting=waiting)
            )
            await asyncio.wait_for(named.wait(), PATIENCE)
            other.rollback()
            slots.require(await making, settings.slot)

    on_two(settings, work)


@ALL_VERSIONS
def test_a_cancelled_creation_leaves_nothing(database: Database, settings: PostgresSettings) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn):
            making = asyncio.create_task(slots.create(conn, settings.slot, failover=False, watcher=watcher))
            while not existing(database):
                await asyncio.sleep(0.01)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
            assert existing(database) == []

    on_two(settings, work)


def frozen_creation(
    database: Database, settings: PostgresSettings, cancels: Callable[[asyncio.Task[Any]], object]
) -> float:
    """Cancel the creation of a slot while the backend that makes it stands still; the seconds until it ends."""

    async def work(conn: Connection, watcher: Connection) -> float:
        with open_transaction(database.dsn):
            making = asyncio.create_task(slots.create(conn, settings.slot, failover=False, watcher=watcher))
            while not existing(database):
                await asyncio.sleep(0.01)
            pid = conn.info.backend_pid
            os.kill(pid, signal.SIGSTOP)
            try:
                begun = time.monotonic()
                cancels(making)
                await asyncio.wait({making}, timeout=20)
                assert making.cancelled()
                assert conn.closed
                return time.monotonic() - begun
            finally:
                os.kill(pid, signal.SIGCONT)

    return on_two(settings, work)


def test_a_cancelled_creation_waits_no_longer_than_told_for_a_server_that_stands_still(
    database: Database, settings: PostgresSettings
) -> None:
    assert frozen_creation(database, settings, lambda making: making.cancel()) < slots.CANCEL + 3


def test_a_second_cancel_of_a_creation_ends_it_at_once(
    database: Database, settings: PostgresSettings
) -> None:
    def twice(making: asyncio.Task[Any]) -> None:
        making.cancel()
        asyncio.get_running_loop().call_later(0.5, making.cancel)

    assert frozen_creation(database, settings, twice) < slots.CANCEL


def test_a_cancelled_creation_is_bounded_where_the_whole_server_stands_still(
    own_postgres: PostgresServer, settings: PostgresSettings
) -> None:
    """Nobody takes the cancel request then."""
    own = replace(settings, dsn=own_postgres.dsn())

    async def work(conn: Connection, watcher: Connection) -> float:
        with open_transaction(own.dsn):
            making = asyncio.create_task(slots.create(conn, own.slot, failover=False, watcher=watcher))
            while not await slots.inspect(watcher, own.slot):
                await asyncio.sleep(0.01)
            own_postgres.pause()
            try:
                begun = time.monotonic()
                making.cancel()
                await asyncio.wait({making}, timeout=30)
                assert making.cancelled()
                return time.monotonic() - begun
            finally:
                own_postgres.resume()

    assert on_two(own, work) < slots.CANCEL + 3


def test_the_session_that_made_a_slot_keeps_our_limit(database: Database, settings: PostgresSettings) -> None:
    """The role's own may be none, or a minute."""
    database.server.execute(
        SQL("alter database {} set statement_timeout = '1min'").format(Identifier(database.name))
    )

    async def work(conn: Connection, watcher: Connection) -> None:
        await slots.create(conn, settings.slot, failover=False, watcher=watcher)
        (after,), (ours,) = [await execute(each, "show statement_timeout") for each in (conn, watcher)]
        assert after == ours
        assert await slots.drop(conn, settings.slot)

    on_two(settings, work)


@ALL_VERSIONS
def test_a_creator_that_went_away_leaves_nothing(database: Database, settings: PostgresSettings) -> None:
    """Without client_connection_check_interval the server would wait on, and make the slot in the end."""

    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn):
            making = asyncio.create_task(slots.create(conn, settings.slot, failover=False, watcher=watcher))
            while not existing(database):
                await asyncio.sleep(0.01)
            conn.pgconn.finish()
            making.cancel()
            await asyncio.wait([making])
            await asyncio.to_thread(eventually, lambda: not existing(database), PATIENCE, "no half-made slot")

    on_two(settings, work)


def test_a_crash_of_the_server_leaves_no_half_made_slot(
    own_postgres: PostgresServer, settings: PostgresSettings
) -> None:
    own = replace(settings, dsn=own_postgres.dsn())

    async def work(conn: Connection, watcher: Connection) -> None:
        with psycopg.connect(own.dsn) as other:
            other.execute("create table written (at timestamptz default now())")
            making = asyncio.create_task(slots.create(conn, own.slot, failover=True, watcher=watcher))
            while not await slots.inspect(watcher, own.slot):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(own_postgres.kill)
            with pytest.raises(CdcOutboxError) as caught:
                await making
            assert caught.value.retriable
            other.close()

    on_two(own, work)
    own_postgres.start()
    assert own_postgres.execute("select slot_name from pg_replication_slots") == []


def test_a_prepared_transaction_is_named_too(
    database: Database, settings: PostgresSettings, slot: str
) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn) as other:
            other.execute(SQL("prepare transaction {}").format(Literal(slot)))
        try:
            with pytest.raises(SlotBlocked, match=f"prepared transaction '{slot}' .user postgres"):
                await slots.create(conn, settings.slot, failover=False, watcher=watcher, within=1)
        finally:
            database.server.execute(SQL("rollback prepared {}").format(Literal(slot)), dbname=database.name)

    on_two(settings, work)


@ALL_VERSIONS
def test_a_plain_replication_role_is_told_what_it_may_see(
    database: Database, settings: PostgresSettings, slot: str
) -> None:
    database.server.execute(
        SQL("create role {} login replication password {}").format(Identifier(slot), Literal(PASSWORD))
    )
    plain = replace(settings, dsn=database.server.dsn(database.name, user=slot))

    async def work(conn: Connection, watcher: Connection) -> None:
        with open_transaction(database.dsn, "checkout") as other:
            with pytest.raises(SlotBlocked) as caught:
                await slots.create(conn, slot, failover=False, watcher=watcher, within=1)
            assert f"pid {other.info.backend_pid} (user postgres" in str(caught.value)
            assert "application checkout" in str(caught.value)
            assert "insert into" not in str(caught.value)
            assert "insufficient" not in str(caught.value)
        await slots.create(conn, slots.pending_name(slot), failover=True, watcher=watcher)
        named, left = await slots.hand_over(conn, plain)
        assert left is None
        assert slots.require(named, slot).failover is (database.major >= 17)
        assert await slots.drop(conn, slot)

    try:
        on_two(plain, work)
    finally:
        database.server.execute(SQL("drop role {}").format(Identifier(slot)))


@ALL_VERSIONS
@pytest.mark.parametrize("failover", [True, False])
def test_the_copy_keeps_the_position_and_the_wish_for_failover(
    database: Database, settings: PostgresSettings, failover: bool
) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        pending = await slots.create(
            conn, slots.pending_name(settings.slot), failover=failover, watcher=watcher
        )
        database.server.execute("select pg_switch_wal()")
        named, left = await slots.hand_over(conn, settings)
        assert left is None
        assert named is not None
        assert named.confirmed_flush_lsn == pending.confirmed_flush_lsn
        assert named.restart_lsn == pending.restart_lsn
        assert named.failover is (failover and database.major >= 17)
        assert existing(database) == [settings.slot]

    on_two(settings, work)


@ALL_VERSIONS
def test_who_finds_both_slots_finishes_the_job(database: Database, settings: PostgresSettings) -> None:
    async def work(conn: Connection, watcher: Connection) -> None:
        assert await slots.finish_pending(conn, settings) == (None, None)
        pending = await slots.create(conn, slots.pending_name(settings.slot), failover=True, watcher=watcher)
        # A pending slot alone proves nothing, and is left.
        assert await slots.finish_pending(conn, settings) == (None, pending)
        await slots.copy(conn, pending.name, settings.slot)
        async with slots.lock(watcher, settings.slot):
            with pytest.raises(SlotBusy):
                await slots.finish_pending(conn, settings, within=0.2)
        named, left = await slots.finish_pending(conn, settings)
        assert left is None
        assert slots.require(named, settings.slot).failover is (database.major >= 17)
        assert existing(database) == [settings.slot]
        assert await slots.finish_pending(conn, settings) == (named, None)

    on_two(settings, work)


def test_the_lock_names_its_holder_and_ends_with_the_session(settings: PostgresSettings) -> None:
    async def work(conn: Connection, other: Connection) -> None:
        async with connected(settings) as third, slots.lock(third, settings.slot):
            with pytest.raises(SlotBusy, match=f"pid {third.info.backend_pid} "):
                async with slots.lock(conn, settings.slot, within=0.2):
                    raise AssertionError("two hold one lock")
            async with slots.lock(other, settings.slot + "x", within=0.2):
                pass
            await third.close()
            async with slots.lock(conn, settings.slot, within=5):
                pass

    on_two(settings, work)


def test_waiting_for_the_lock_leaves_the_log_alone(
    own_postgres: PostgresServer, settings: PostgresSettings, slot: str
) -> None:
    own = replace(settings, dsn=own_postgres.dsn())

    async def work(conn: Connection, other: Connection) -> None:
        async with slots.lock(other, slot):
            size = own_postgres.log_size()
            with pytest.raises(SlotBusy):
                async with slots.lock(conn, slot, within=0.5):
                    pass
            assert own_postgres.log_text(size) == ""

    on_two(own, work)


@ALL_VERSIONS
def test_a_slot_in_use_names_who_uses_it(database: Database, settings: PostgresSettings) -> None:
    database.server.execute("create publication outbox_pub", dbname=database.name)

    async def work(conn: Connection, watcher: Connection) -> None:
        await slots.create(conn, settings.slot, failover=False, watcher=watcher)
        stream = await connect_replication(settings, application_name="test")
        try:
            stream.pgconn.send_query(
                f"START_REPLICATION SLOT {settings.slot} LOGICAL 0/0"
                " (proto_version '1', publication_names 'outbox_pub')".encode()
            )
            pid = stream.info.backend_pid
            while not (found := await slots.inspect(conn, settings.slot)) or not found.active:
                await asyncio.sleep(0.01)
            assert found.active_pid == pid
            with pytest.raises(SlotBusy, match=f"pid {pid}"):
                await slots.drop(conn, settings.slot)
        finally:
            stream.pgconn.finish()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    assert await slots.drop(conn, settings.slot)
                    break
                except SlotBusy:
                    await asyncio.sleep(0.05)

    on_two(settings, work)


@pytest.mark.parametrize("major", [15, 16, 17, 18])
def test_a_lost_slot_is_known_as_lost(
    make_postgres: Callable[..., PostgresServer], settings: PostgresSettings, major: int
) -> None:
    """Before 17 no reason is said; only wal_status is the same everywhere."""
    server = make_postgres(major, settings={"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB"})
    own = replace(settings, dsn=server.dsn())

    async def work(conn: Connection, watcher: Connection) -> None:
        await slots.create(conn, settings.slot, failover=False, watcher=watcher)

        def lost() -> bool:
            server.execute("select pg_logical_emit_message(false, 'x', 'y')")
            server.execute("select pg_switch_wal()")
            server.execute("checkpoint")
            answer: bool = server.value("select wal_status = 'lost' from pg_replication_slots")
            return answer

        eventually(lost, 30)
        found = await slots.inspect(conn, settings.slot)
        with pytest.raises(SlotLost, match="is lost"):
            slots.require(found, settings.slot)
        assert await slots.drop(conn, settings.slot)

    on_two(own, work)


@pytest.mark.parametrize("major", [16, 17, 18])
def test_a_slot_on_a_standby_that_a_conflict_took_is_lost(
    make_postgres: Callable[..., PostgresServer], settings: PostgresSettings, major: int
) -> None:
    """The primary removes catalogue rows that it needs: `wal_status` says it, and from 17 on the reason."""
    primary = make_postgres(major)
    standby = primary.standby()
    try:
        standby.reload({"hot_standby_feedback": "off"})
        own = replace(settings, dsn=standby.dsn())
        making = threading.Thread(
            target=standby.execute,
            args=("select pg_create_logical_replication_slot(%s, 'pgoutput')", (settings.slot,)),
        )
        making.start()

        def made() -> bool:
            primary.execute("select pg_log_standby_snapshot()")
            return not making.is_alive()

        eventually(made, 30, "the slot made")

        async def work(conn: Connection, _: Connection) -> None:
            def conflicts() -> bool:
                primary.execute("create table gone (n int)")
                primary.execute("drop table gone")
                primary.execute("vacuum pg_class")
                return bool(standby.value("select wal_status = 'lost' from pg_replication_slots"))

            await asyncio.to_thread(eventually, conflicts, 30, "a conflict")
            with pytest.raises(SlotLost) as caught:
                slots.require(await slots.inspect(conn, settings.slot), settings.slot)
            assert ("rows_removed" in str(caught.value)) is (major > 16)

        on_two(own, work)
    finally:
        standby.close()


def test_no_room_for_a_slot_is_a_set_up_error(
    make_postgres: Callable[..., PostgresServer], settings: PostgresSettings
) -> None:
    server = make_postgres(settings={"max_replication_slots": "1"})
    own = replace(settings, dsn=server.dsn())

    async def work(conn: Connection, watcher: Connection) -> None:
        await slots.create(conn, "first", failover=False, watcher=watcher)
        with pytest.raises(CdcOutboxError, match="room for another") as caught:
            await slots.create(conn, "second", failover=False, watcher=watcher)
        assert caught.value.exit_code == 78
        assert "max_replication_slots" in caught.value.next
        with pytest.raises(CdcOutboxError, match="room for another"):
            await slots.copy(conn, "first", "second")

    on_two(own, work)
