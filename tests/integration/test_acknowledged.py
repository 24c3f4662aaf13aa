"""Which rows count as delivered: on every version, by real transactions of every kind, and never one too many."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import sql
from psycopg.sql import SQL, Composed, Identifier

from cdc_outbox.errors import SetupError
from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import acknowledged as room
from cdc_outbox.postgres import publication, server, witness
from cdc_outbox.postgres.acknowledged import Acknowledged, acknowledged
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.integration.connected import run_sql, with_control
from tests.servers.cache import CHECKOUT
from tests.servers.postgres import Postgres, PostgresServer

T = TypeVar("T")
EVENTS = TableName("public", "events")
TABLE = "create table events (id int generated always as identity, name text, created_at timestamptz default now())"
DDL = (CHECKOUT / "sql" / "witness.sql").read_text()


class Place:
    """A database with the table `events`, and what its slots have proven, written as their relays would."""

    def __init__(self, database: Database, table: str = TABLE) -> None:
        self.database = database
        self.sql(
            DDL,
            table,
            "create publication p for table events with (publish = 'insert', publish_via_partition_root)",
        )

    def sql(self, *statements: str) -> None:
        run_sql(self.database.dsn, *statements)

    def insert(self, name: str) -> None:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute("insert into events (name) values (%s)", (name,))

    def ask(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        return with_control(self.database.dsn, work)

    def prove(self, slot: str = "s", table: TableName = EVENTS, **other: Any) -> Witness:
        """Write the slot's row: what has ended by now is delivered."""

        async def work(conn: Connection) -> Witness:
            here = await server.identity(conn)
            ((snapshot,),) = await execute(conn, "select pg_current_snapshot()::text")
            state = await publication.look(conn, "p", [table])
            row = Witness(slot, here.system_identifier, here.timeline or 0, LSN(1), str(state.identity))
            row = replace(row, **{"snapshot": snapshot, **other})
            await witness.write(conn, row)
            return row

        return self.ask(work)

    def rows(self, query: Composed) -> list[Any]:
        return self.ask(lambda conn: execute(conn, query))

    def look(self, slot: str = "s", table: TableName = EVENTS) -> Acknowledged:
        return self.ask(lambda conn: acknowledged(conn, conn, slot, table))

    def delivered(self, slot: str = "s") -> set[str]:
        """The names of the rows that count as delivered."""
        query = SQL("select name from public.events where {}").format(self.look(slot).condition())
        return {name for (name,) in self.rows(query)}

    def lacking(self, slot: str = "s") -> list[str]:
        """Why nothing counts as delivered."""
        found = self.look(slot)
        assert found.horizon is None
        assert self.delivered(slot) == set()
        return [proof.lacking for proof in found.proofs if proof.lacking is not None]


def test_what_had_ended_when_the_snapshot_was_taken_is_delivered(
    postgres_version: Postgres, database: Database
) -> None:
    place = Place(database)
    for name in ("before", "updated", "frozen"):
        place.insert(name)
    with psycopg.connect(database.dsn) as early, psycopg.connect(database.dsn) as late:
        # `early` has the lower number, and sees what `late` commits: its version of the row came after the insert.
        early.execute("create temporary table nothing ()")
        late.execute("insert into events (name) values ('updated by an older one')")
        late.commit()
        early.execute("update events set created_at = now() where name = 'updated by an older one'")
        with psycopg.connect(database.dsn) as open_one, psycopg.connect(database.dsn) as prepared:
            open_one.execute("insert into events (name) values ('open')")
            open_one.execute("savepoint a")
            open_one.execute("insert into events (name) values ('open, in a subtransaction')")
            open_one.execute("release a")
            prepared.tpc_begin("a prepared one")
            prepared.execute("insert into events (name) values ('prepared')")
            prepared.tpc_prepare()
            place.insert("after the open ones")
            place.prove()
            assert place.delivered() == {"before", "updated", "frozen"}
            early.commit()
            open_one.commit()
            prepared.tpc_commit()
    assert place.delivered() == {"before", "updated", "frozen"}
    place.sql("update events set created_at = now() where name = 'updated'", "vacuum freeze events")
    assert place.delivered() == {"before", "frozen"}, "an update is later, so it is not sure"
    place.prove()
    everything = place.delivered()
    assert len(everything) == 8
    place.insert("new")
    place.sql("vacuum full events")
    assert place.delivered() == everything
    place.sql("alter table events alter name type varchar(90)", "alter table events alter id type bigint")
    assert place.delivered() == set(), "a rewrite makes every row anew"
    place.prove()
    assert place.delivered() == everything | {"new"}


def test_rows_of_partitions_count_by_the_root(postgres_version: Postgres, database: Database) -> None:
    place = Place(database, TABLE + " partition by list (name)")
    place.sql(
        "create table a partition of events for values in ('a')",
        "create table rest partition of events default",
    )
    place.insert("a")
    place.insert("b")
    place.prove()
    place.insert("c")
    assert place.delivered() == {"a", "b"}
    assert place.look(table=TableName("public", "a")).horizon == place.look().horizon


def test_every_slot_of_the_table_has_to_have_proven_it(database: Database) -> None:
    place = Place(database)
    place.insert("first")
    place.prove("shard_0")
    place.insert("second")
    place.prove("shard_1")
    place.sql(
        "create table other ()",
        "drop publication p",
        "create publication p for table other, events with (publish = 'insert')",
    )
    place.prove("elsewhere", TableName("public", "other"), snapshot=None)
    assert place.delivered("shard_1") == place.delivered("shard_0") == {"first"}
    assert [proof.slot for proof in place.look("shard_1").proofs] == ["shard_0", "shard_1"]
    assert place.lacking("elsewhere") == ["the slot elsewhere doesn't feed public.events"]
    assert place.lacking("unknown") == ["the witness table has no row for the slot"]
    place.prove("another", snapshot=None)
    assert place.lacking("shard_1") == ["the slot another has no proof yet of what was delivered"]
    place.prove("another", publication="by another version")
    assert place.delivered("shard_1") == {"first"}, "it may be of this table, and has seen all"


def test_a_pending_slot_that_nothing_is_decided_about_proves_nothing(
    postgres_version: Postgres, database: Database, slot: str
) -> None:
    """Rows from before it are in the table alone, until `backfill` has published them."""
    place = Place(database)
    place.insert("a")
    place.prove(slot)
    assert place.delivered(slot) == {"a"}
    place.sql(f"select pg_create_logical_replication_slot('{slot}_new_pending', 'pgoutput')")
    try:
        assert place.lacking(slot) == [
            f"rows from before the slot {slot}_new_pending have yet to be published"
        ]
        assert place.look(slot).proofs[-1].next == f"cdc-outbox backfill --slot {slot}_new"
        assert len(place.look(f"{slot}_new").proofs) == 2, "once each"
        place.prove(f"{slot}_new_pending")  # what is noted of the publication decides nothing
        assert place.lacking(slot) == [
            f"rows from before the slot {slot}_new_pending have yet to be published"
        ]
        place.prove(f"{slot}_new", snapshot=None)
        assert place.lacking(slot) == [f"the slot {slot}_new has no proof yet of what was delivered"]
        place.prove(f"{slot}_new")
        assert place.delivered(slot) == {"a"}
    finally:
        place.sql(f"select pg_drop_replication_slot('{slot}_new_pending')")


def test_a_witness_that_speaks_of_something_else_proves_nothing(database: Database) -> None:
    place = Place(database)
    assert place.lacking() == ["the witness table has no row for the slot"]
    place.insert("row")
    row = place.prove(system_identifier="1")
    assert place.lacking() == ["the witness of slot s belongs to another server"]
    place.prove(timeline=7)
    assert place.lacking() == ["the witness of slot s belongs to timeline 7"]
    place.prove(snapshot=None)
    assert place.lacking() == ["the slot s has no proof yet of what was delivered"], "no other timeline's"
    future = int(str(row.snapshot).partition(":")[0]) + 1000
    place.prove(snapshot=f"{future}:{future}:")
    assert "transactions old" in place.lacking()[0]
    place.sql("drop table cdc_outbox_witness")
    assert place.lacking() == ["the witness table does not exist"]
    with pytest.raises(SetupError, match="does not exist"):
        place.look(table=TableName("public", "nowhere"))


def test_two_dsns_that_lead_apart_are_refused(database: Database, own_postgres: PostgresServer) -> None:
    place = Place(database)
    place.prove()

    async def work(dsn: str) -> None:
        settings = PostgresSettings(
            dsn=database.dsn, admin_dsn=dsn, slot="s", publication="p", guard_interval=1.0
        )
        async with (
            await connect_control(settings, application_name="test") as relay,
            await connect_control(settings, application_name="test", admin=True) as owner,
        ):
            with pytest.raises(SetupError, match="--admin-dsn leads to database"):
                await acknowledged(relay, owner, "s", EVENTS)

    asyncio.run(work(own_postgres.dsn()))
    asyncio.run(work(database.server.dsn()))


def test_numbers_are_compared_by_their_distance(postgres_version: Postgres, database: Database) -> None:
    """Whatever a row bears, one that was made after the snapshot's oldest is never taken for delivered."""
    place = Place(database)
    proof = place.prove()
    horizon = int(str(proof.snapshot).partition(":")[0])
    now = place.database.server.value("select pg_snapshot_xmax(pg_current_snapshot())::text::int8")
    for distance in (0, 10**6, room.OLDEST):
        # As if the snapshot had been taken `distance` transactions ago.
        old = Acknowledged(EVENTS, (room.Proof("s", now + 2**32 - distance),))
        query = SQL(
            "select n, {} from (values {}) as r (n, xmin)",
        ).format(
            old.condition(Identifier("r")),
            SQL(", ").join(
                SQL("({n}, {xmin}::xid)").format(n=n, xmin=str((now - distance + n) % 2**32))
                for n in (-(2**30) + 10, -(10**6), -1, 0, 1, distance // 2, max(distance - 1, 0), distance)
            ),
        )
        rows = place.rows(query)
        assert dict(rows) == {n: n < 0 for n, _ in rows}, distance
    frozen = Acknowledged(EVENTS, (room.Proof("s", horizon),)).condition(Identifier("r"))
    assert place.rows(SQL("select {} from (values ('2'::xid)) as r (xmin)").format(frozen)) == [(True,)]


def test_who_has_no_proof_has_no_condition() -> None:
    assert Acknowledged(EVENTS, ()).condition() == sql.SQL("false")
