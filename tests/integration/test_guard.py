"""The guard against real servers: each thing that ends a session, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

import pytest
from psycopg.pq import ExecStatus

from cdc_outbox.errors import PostgresUnavailable, SlotLost, SlotMissing, SynchronousStandby
from cdc_outbox.event import TableName
from cdc_outbox.postgres import server
from cdc_outbox.postgres.connection import Connection, connect_control, connect_replication
from cdc_outbox.postgres.guard import Guarded, GuardReport, PublicationWatch, guard
from cdc_outbox.postgres.publication_identity import Change, compare
from cdc_outbox.postgres.witness import IncidentKind
from tests.integration.conftest import Database
from tests.integration.connected import run_sql, settings_of
from tests.servers.postgres import MAJORS, Postgres, PostgresServer
from tests.servers.wait import PATIENCE, eventually

T = TypeVar("T")
NAME = "cdc-outbox/guarded"


def prepared(dsn: str, slot: str) -> None:
    run_sql(
        dsn,
        "create table outbox (id int primary key, payload text)",
        "create publication p for table outbox with (publish = 'insert')",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )


def streaming(dsn: str, slot: str, work: Callable[[Connection, Guarded], Awaitable[T]]) -> T:
    """Run `work` while a stream flows from the slot."""

    async def run() -> T:
        async with AsyncExitStack() as stack:
            stream = await connect_replication(settings_of(dsn), application_name=NAME)
            stack.push_async_callback(stream.close)
            conn = await stack.enter_async_context(
                await connect_control(settings_of(dsn), application_name=NAME, like=stream)
            )
            who = await server.identity(conn)
            stream.pgconn.send_query(
                f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
                " (proto_version '1', publication_names 'p')".encode()
            )
            while stream.pgconn.is_busy():
                await asyncio.sleep(0.01)
                stream.pgconn.consume_input()
            result = stream.pgconn.get_result()
            assert result is not None
            assert result.status == ExecStatus.COPY_BOTH
            guarded = Guarded(
                slot=slot,
                publication="p",
                tables=(TableName("public", "outbox"),),
                application_name=NAME,
                timeline=who.timeline or 0,
                walsender_pid=stream.info.backend_pid,
            )
            return await work(conn, guarded)

    return asyncio.run(run())


def checked(dsn: str, streamed: str, **changes: object) -> GuardReport:
    async def work(conn: Connection, guarded: Guarded) -> GuardReport:
        return await guard(conn, replace(guarded, **changes))  # type: ignore[arg-type]  # fields by their names

    return streaming(dsn, streamed, work)


@pytest.fixture
def guarded_slot(postgres_version: Postgres, database: Database, slot: str) -> str:
    prepared(database.dsn, slot)
    return slot


def test_all_is_well(database: Database, guarded_slot: str) -> None:
    report = checked(database.dsn, guarded_slot)
    assert report.failure is None
    assert report.publication.problem is None
    assert report.lsn is not None
    assert report.publication.insert_lsn is not None
    assert report.lsn <= report.publication.insert_lsn
    assert report.confirmed is not None
    assert report.snapshot.count(":") == 2


def test_a_slot_in_other_hands(database: Database, guarded_slot: str) -> None:
    report = checked(database.dsn, guarded_slot, walsender_pid=1)
    assert type(report.failure) is PostgresUnavailable
    assert "not by our stream" in str(report.failure)


def test_another_timeline(database: Database, guarded_slot: str) -> None:
    report = checked(database.dsn, guarded_slot, timeline=7)
    assert type(report.failure) is PostgresUnavailable
    assert "timeline 1" in str(report.failure)


def test_a_slot_that_is_gone(database: Database, guarded_slot: str) -> None:
    report = checked(database.dsn, guarded_slot, slot="no_such_slot", walsender_pid=None)
    assert type(report.failure) is SlotMissing


def test_F11_what_happens_to_the_publication_between_two_checks(  # noqa: N802 - the failure's own name
    database: Database, guarded_slot: str
) -> None:
    create = "create publication p for table outbox with (publish = 'insert')"

    async def work(conn: Connection, guarded: Guarded) -> None:
        watch = PublicationWatch()

        async def found(*statements: str) -> tuple[str | None, IncidentKind | None]:
            await asyncio.to_thread(run_sql, database.dsn, *statements)
            report = await guard(conn, guarded)
            assert report.failure is None
            finding = watch.look(report.publication, report.lsn)
            if finding.incident is not None:
                assert finding.incident.from_lsn < finding.incident.to_lsn
            return finding.problem, finding.incident.kind if finding.incident else None

        assert await found() == (None, None)
        assert await found("alter publication p set (publish = 'insert')") == (None, IncidentKind.ALTERED)
        assert await found("drop publication p", create) == (None, IncidentKind.MADE_AGAIN)
        assert await found("drop publication p") == ("publication p does not exist", IncidentKind.HIDDEN)
        assert await found() == ("publication p does not exist", None)
        assert await found(create) == (None, IncidentKind.MADE_AGAIN)
        assert await found("alter publication p set (publish = 'update')") == (
            "publication p does not publish inserts",
            IncidentKind.HIDDEN,
        )
        assert await found("alter publication p set (publish = 'insert')") == (None, IncidentKind.MADE_AGAIN)
        assert await found() == (None, None)

    streaming(database.dsn, guarded_slot, work)


@pytest.mark.parametrize("major", MAJORS)
def test_F24_a_synchronous_standby_by_reload(  # noqa: N802 - the failure's own name
    make_postgres: Callable[..., PostgresServer], slot: str, major: int
) -> None:
    own = make_postgres(major)
    prepared(own.dsn(), slot)

    async def work(conn: Connection, guarded: Guarded) -> None:
        assert (await guard(conn, guarded)).failure is None
        own_names = f'FIRST 1 (other, "{NAME.upper()}")'
        await asyncio.to_thread(own.reload, {"synchronous_standby_names": own_names})
        failure = (await guard(conn, guarded)).failure
        for _ in range(50):  # the reload reaches our session a moment after others
            if failure is not None:
                break
            await asyncio.sleep(0.05)
            failure = (await guard(conn, guarded)).failure
        assert type(failure) is SynchronousStandby
        assert NAME.upper() in str(failure)

    streaming(own.dsn(), slot, work)


def test_F10_a_lost_slot(make_postgres: Callable[..., PostgresServer], slot: str) -> None:  # noqa: N802
    own = make_postgres(
        settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    prepared(own.dsn(), slot)

    def lost() -> bool:
        own.execute("select pg_logical_emit_message(false, 'fill', 'x')")
        own.execute("select pg_switch_wal()")
        own.execute("checkpoint")
        status = own.value("select wal_status from pg_replication_slots where slot_name = %s", (slot,))
        return bool(status == "lost")

    eventually(lost, PATIENCE, "slot lost")

    async def run() -> GuardReport:
        async with await connect_control(settings_of(own.dsn()), application_name=NAME) as conn:
            return await guard(conn, Guarded(slot, "p", (TableName("public", "outbox"),), NAME, timeline=1))

    report = asyncio.run(run())
    assert type(report.failure) is SlotLost
    assert "recover" in report.failure.next


def test_a_standby_ends_the_session(own_postgres: PostgresServer, slot: str) -> None:
    prepared(own_postgres.dsn(), slot)
    standby = own_postgres.standby()
    try:
        eventually(
            lambda: standby.value("select to_regclass('public.outbox') is not null"),
            PATIENCE,
            "table replayed",
        )

        async def run() -> GuardReport:
            async with await connect_control(settings_of(standby.dsn()), application_name=NAME) as conn:
                return await guard(
                    conn, Guarded(slot, "p", (TableName("public", "outbox"),), NAME, timeline=1)
                )

        report = asyncio.run(run())
        assert type(report.failure) is PostgresUnavailable
        assert "standby" in str(report.failure)
        assert report.lsn is None
    finally:
        standby.close()


def test_a_check_is_two_short_queries(own_postgres: PostgresServer, slot: str) -> None:
    prepared(own_postgres.dsn(), slot)
    own_postgres.reload({"log_min_duration_statement": "0"})

    async def work(conn: Connection, guarded: Guarded) -> tuple[str, bool]:
        first = await guard(conn, guarded)
        before = own_postgres.log_size()
        second = await guard(conn, guarded)
        assert first.publication.identity is not None
        assert second.publication.identity is not None
        same = compare(first.publication.identity, second.publication.identity) is Change.UNCHANGED
        await asyncio.to_thread(
            eventually, lambda: own_postgres.log_text(before).count("execute") >= 2, PATIENCE, "logged"
        )
        return own_postgres.log_text(before), same

    log, same = streaming(own_postgres.dsn(), slot, work)
    assert same
    durations = [line for line in log.splitlines() if NAME in line and " execute" in line]
    assert len(durations) == 2
    assert "ERROR" not in log
