"""The witness row on every version: written, read, never taken back; and what it notices about a real slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL

from cdc_outbox.errors import GapFound, MissingRight, PublicationReplaced, SetupError, SlotMissing
from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import server, slot, witness
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.guard import PublicationWatch
from cdc_outbox.postgres.publication import look
from cdc_outbox.postgres.witness import Absent, Incident, IncidentKind, Verdict, Witness
from tests.integration.conftest import Database
from tests.integration.connected import run_sql, with_control
from tests.servers.postgres import Postgres, PostgresServer
from tests.servers.wait import PATIENCE, eventually

DDL = (Path(__file__).parents[2] / "sql" / "witness.sql").read_text()
OUTBOX = TableName("public", "outbox")
ROW = Witness(
    slot="s",
    system_identifier="18446744073709551615",
    timeline=3,
    position=LSN.parse("1/A0"),
    publication="an identity",
    incidents=(
        Incident(
            IncidentKind.ALTERED,
            datetime(2026, 1, 2, tzinfo=UTC),
            LSN(1),
            LSN.parse("2/0"),
            'said "so", 50 %s',
        ),
    ),
    snapshot="750:760:751,755",
)


def test_without_the_table_and_without_the_row(postgres_version: Postgres, database: Database) -> None:
    async def work(conn: Connection) -> None:
        assert await witness.read(conn, "s") is Absent.TABLE
        await witness.delete(conn, "s")
        run_sql(database.dsn, DDL, DDL)  # may run twice
        assert await witness.read(conn, "s") is Absent.ROW
        await witness.delete(conn, "s")

    with_control(database.dsn, work)


def test_a_row_comes_back_as_it_was_written(postgres_version: Postgres, database: Database) -> None:
    run_sql(database.dsn, DDL)

    async def work(conn: Connection) -> None:
        await witness.write(conn, ROW)
        first = await witness.read(conn, "s")
        assert first == ROW
        bare = replace(ROW, slot="t", publication=None, incidents=(), snapshot=None)
        await witness.write(conn, bare)
        assert await witness.read(conn, "t") == bare
        accepted = replace(ROW, position=LSN.parse("1/B0"), incidents=(), snapshot=None)
        await witness.write(conn, accepted)
        second = await witness.read(conn, "s")
        assert second == replace(accepted, snapshot=ROW.snapshot)
        assert isinstance(first, Witness)
        assert isinstance(second, Witness)
        assert first.updated_at is not None
        assert second.updated_at is not None
        assert second.updated_at > first.updated_at
        await witness.delete(conn, "s")
        assert await witness.read(conn, "s") is Absent.ROW
        assert await witness.read(conn, "t") == bare

    with_control(database.dsn, work)


def test_what_happened_is_noted_and_no_time_of_delivery_with_it(
    postgres_version: Postgres, database: Database
) -> None:
    """Before 17 `health` knows by that time since when nobody reads from the slot: it was told to be seconds."""
    run_sql(database.dsn, DDL)

    async def work(conn: Connection) -> None:
        await witness.write(conn, replace(ROW, incidents=()))
        before = await witness.read(conn, "s")
        await witness.note(conn, ROW)
        after = await witness.read(conn, "s")
        assert after == ROW
        assert isinstance(before, Witness)
        assert isinstance(after, Witness)
        assert after.updated_at == before.updated_at
        await witness.advance(conn, replace(ROW, position=LSN.parse("1/B0")))
        later = await witness.read(conn, "s")
        assert isinstance(later, Witness)
        assert before.updated_at is not None
        assert later.updated_at is not None
        assert later.updated_at > before.updated_at

    with_control(database.dsn, work)


def test_the_position_never_goes_back_on_one_timeline(postgres_version: Postgres, database: Database) -> None:
    run_sql(database.dsn, DDL)

    async def position(conn: Connection) -> LSN:
        found = await witness.read(conn, "s")
        assert isinstance(found, Witness)
        return found.position

    async def work(conn: Connection) -> None:
        await witness.write(conn, ROW)
        # The last word of a relay that lost the slot to another one.
        await witness.write(conn, replace(ROW, position=LSN.parse("1/90")))
        assert await position(conn) == ROW.position
        await witness.write(conn, replace(ROW, timeline=4, position=LSN.parse("1/90")))
        assert await position(conn) == LSN.parse("1/90")

    with_control(database.dsn, work)


def test_a_role_without_rights_is_told_so(postgres_version: Postgres, database: Database, slot: str) -> None:
    role = f"role_{slot}"
    run_sql(database.dsn, DDL, f"create role {role} login password 'x'")
    dsn = database.server.dsn(database.name, user=role, password="x")
    try:
        with pytest.raises(MissingRight) as caught:
            with_control(dsn, lambda conn: witness.read(conn, "s"))
        assert f"cdc-outbox init --role {role}" in caught.value.next
        run_sql(database.dsn, f"grant select, insert, update, delete on public.cdc_outbox_witness to {role}")

        async def work(conn: Connection) -> None:
            await witness.write(conn, ROW)
            assert await witness.read(conn, "s") == ROW
            await witness.delete(conn, "s")

        with_control(dsn, work)
    finally:
        run_sql(database.dsn, f"drop owned by {role}", f"drop role {role}")


def test_incidents_of_another_hand_are_an_error_and_no_traceback(database: Database) -> None:
    run_sql(database.dsn, DDL)

    async def work(conn: Connection) -> None:
        await witness.write(conn, ROW)
        await execute(conn, """update public.cdc_outbox_witness set incidents = '[{"kind": "else"}]'""")
        await witness.read(conn, "s")

    with pytest.raises(SetupError, match="can't be read"):
        with_control(database.dsn, work)


def test_a_row_is_written_while_a_synchronous_standby_is_away(
    make_postgres: Callable[..., PostgresServer],
) -> None:
    own = make_postgres(settings={"synchronous_standby_names": "nobody_there"})
    with psycopg.connect(own.dsn(), autocommit=True) as connection:
        connection.execute("set synchronous_commit = local")
        connection.execute(SQL(DDL))
    with_control(own.dsn(), lambda conn: witness.write(conn, ROW, within=5))


async def judged(conn: Connection, name: str) -> Verdict:
    found = await slot.inspect(conn, name)
    return witness.judge(name, await witness.read(conn, name), found, await server.identity(conn))


async def written_at_the_slot(conn: Connection, name: str) -> None:
    """What `init` leaves: the row at the slot's start."""
    found, who = await slot.inspect(conn, name), await server.identity(conn)
    assert found is not None
    assert found.confirmed_flush_lsn is not None
    state = await look(conn, "p", (OUTBOX,))
    row = Witness(
        name, who.system_identifier, who.timeline or 0, found.confirmed_flush_lsn, str(state.identity)
    )
    await witness.write(conn, row)


@pytest.mark.parametrize("moved", ["not", "advanced", "made again", "dropped"])
def test_F25_a_slot_moved_by_another_hand(  # noqa: N802 - the failure's own name
    postgres_version: Postgres, database: Database, slot: str, moved: str
) -> None:
    run_sql(database.dsn, DDL, "create table outbox (id int)", "create publication p for table outbox")
    create = f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    drop = f"select pg_drop_replication_slot('{slot}')"
    run_sql(database.dsn, create)
    with_control(database.dsn, lambda conn: written_at_the_slot(conn, slot))
    run_sql(database.dsn, "insert into outbox values (1)")
    if moved == "advanced":
        run_sql(database.dsn, f"select pg_replication_slot_advance('{slot}', pg_current_wal_flush_lsn())")
    elif moved == "made again":
        run_sql(database.dsn, drop, create)
    elif moved == "dropped":
        run_sql(database.dsn, drop)
    verdict = with_control(database.dsn, lambda conn: judged(conn, slot))
    expected = {"not": None, "advanced": GapFound, "made again": GapFound, "dropped": SlotMissing}[moved]
    assert (type(verdict.error) if verdict.error else None) is expected


def test_F25_a_publication_made_again_while_away(  # noqa: N802 - the failure's own name
    postgres_version: Postgres, database: Database, slot: str
) -> None:
    create = "create publication p for table outbox with (publish = 'insert')"
    run_sql(database.dsn, DDL, "create table outbox (id int)", create)
    run_sql(database.dsn, f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    with_control(database.dsn, lambda conn: written_at_the_slot(conn, slot))

    async def looked(conn: Connection) -> PublicationWatch:
        found = await witness.read(conn, slot)
        assert isinstance(found, Witness)
        watch = PublicationWatch()
        watch.recall(found)
        watch.look(await look(conn, "p", (OUTBOX,)), None)
        return watch

    assert with_control(database.dsn, looked).incidents == ()
    run_sql(database.dsn, "alter publication p set (publish = 'insert')")
    altered = with_control(database.dsn, looked)
    altered.require(slot)
    assert [incident.kind for incident in altered.incidents] == [IncidentKind.ALTERED]
    run_sql(database.dsn, "drop publication p", "insert into outbox values (1)", create)
    again = with_control(database.dsn, looked)
    assert again.incidents[0].from_lsn < again.incidents[0].to_lsn
    with pytest.raises(PublicationReplaced):
        again.require(slot)


def test_F25_a_promoted_standby_without_the_slot(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, slot: str
) -> None:
    run_sql(own_postgres.dsn(), DDL, "create table outbox (id int)", "create publication p for table outbox")
    create = f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    run_sql(own_postgres.dsn(), create)
    with_control(own_postgres.dsn(), lambda conn: written_at_the_slot(conn, slot))
    standby = own_postgres.standby()
    try:
        end = own_postgres.value("select pg_current_wal_lsn()::text")
        eventually(
            lambda: standby.value("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)),
            PATIENCE,
            "replayed",
        )
        who = with_control(standby.dsn(), server.identity)
        assert who.in_recovery
        assert who.timeline is None
        state = with_control(standby.dsn(), lambda conn: look(conn, "p", (OUTBOX,)))
        assert state.problem is None
        assert state.insert_lsn is None
        standby.promote()
        assert isinstance(with_control(standby.dsn(), lambda conn: judged(conn, slot)).error, SlotMissing)
        run_sql(standby.dsn(), create)
        gap = with_control(standby.dsn(), lambda conn: judged(conn, slot)).error
        assert isinstance(gap, GapFound)
        assert "timeline 1 to 2" in str(gap)
    finally:
        standby.close()


def test_F25_another_server_of_the_same_name(  # noqa: N802 - the failure's own name
    make_postgres: Callable[..., PostgresServer], slot: str
) -> None:
    here, there = make_postgres(), make_postgres()
    create = f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')"
    for each in (here, there):
        run_sql(
            each.dsn(), DDL, create, "create table outbox (id int)", "create publication p for table outbox"
        )
    with_control(here.dsn(), lambda conn: written_at_the_slot(conn, slot))
    row = with_control(here.dsn(), lambda conn: witness.read(conn, slot))
    assert isinstance(row, Witness)
    with_control(there.dsn(), lambda conn: witness.write(conn, row))
    assert isinstance(with_control(there.dsn(), lambda conn: judged(conn, slot)).error, GapFound)
    assert with_control(here.dsn(), lambda conn: judged(conn, slot)).error is None


def test_what_a_proven_snapshot_says_was_delivered(postgres_version: Postgres, database: Database) -> None:
    """Rows below the snapshot's xmin had committed before the LSN that was read after it."""
    run_sql(database.dsn, "create table outbox (id int)")
    with psycopg.connect(database.dsn) as open_one, psycopg.connect(database.dsn, autocommit=True) as other:
        open_one.execute("insert into outbox values (1)")
        other.execute("insert into outbox values (2)")

        async def sample(conn: Connection) -> tuple[str, str]:
            ((snapshot,),) = await execute(conn, "select pg_current_snapshot()::text")
            ((lsn,),) = await execute(conn, "select pg_current_wal_insert_lsn()::text")
            return snapshot, lsn

        snapshot, _ = with_control(database.dsn, sample)
        proven = (
            "select id from outbox where xmin::text::int8 < pg_snapshot_xmin(%s::pg_snapshot)::text::int8"
        )
        assert other.execute(proven, (snapshot,)).fetchall() == []
        open_one.commit()
        snapshot, _ = with_control(database.dsn, sample)
        assert sorted(other.execute(proven, (snapshot,)).fetchall()) == [(1,), (2,)]
