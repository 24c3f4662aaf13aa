"""What `doctor` says of the server and the slot, each failure made for real, its remedies run as they are printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.integration.conftest import ALL_VERSIONS
from tests.integration.consultation import NOWHERE, Doctor, as_relay, doctor, worse
from tests.servers.kafka import Kafka
from tests.servers.pooler import Pooler
from tests.servers.postgres import PostgresServer
from tests.servers.wait import PATIENCE, eventually

__all__ = ["as_relay", "doctor"]


@pytest.mark.parametrize(
    ("change", "name", "status", "words"),
    [
        ("alter role {role} noreplication", "replication_right", "failed", "may not replicate"),
        (
            "alter publication outbox_pub set (publish = 'insert, update')",
            "publication",
            "warning",
            "more than inserts",
        ),
        (
            'create table "Other" (id int primary key); alter publication outbox_pub add table "Other"',
            "publication",
            "failed",
            'also has public."Other"',
        ),
        (
            "revoke insert, update on cdc_outbox_witness from {role}",
            "witness",
            "failed",
            "lacks insert, update",
        ),
        ("revoke select on cdc_outbox_witness from {role}", "witness", "failed", "lacks select"),
        ("alter database {database} set synchronous_commit = off", "synchronous_commit", "warning", "late"),
        ("alter role {role} set synchronous_commit = off", "synchronous_commit", "warning", "late"),
        (
            "alter role {role} in database {database} set synchronous_commit = off",
            "synchronous_commit",
            "warning",
            "late",
        ),
    ],
)
def test_what_sql_breaks_the_remedy_mends(
    as_relay: Doctor, change: LiteralString, name: str, status: str, words: str
) -> None:
    statement = SQL(change).format(role=Identifier(as_relay.slot), database=Identifier(as_relay.database))
    for each in statement.as_string().split(";"):
        as_relay.server.execute(SQL(each), dbname=as_relay.database)  # type: ignore[arg-type]  # made above
    checks = as_relay.look(code=78 if status == "failed" else 0)
    check = checks[f"postgres.{name}"]
    assert (check["status"], words in check["message"]) == (status, True), check
    as_relay.follow(check)
    after = as_relay.look()
    assert after[f"postgres.{name}"]["status"] == "ok", after[f"postgres.{name}"]


@pytest.mark.parametrize("major", [15, 18])
def test_wal_level(make_postgres: Callable[..., PostgresServer], slot: str, major: int) -> None:
    server = make_postgres(major, settings={"wal_level": "replica"})
    doctor = Doctor(server, "postgres", slot, NOWHERE)
    level = doctor.look(code=78)["postgres.wal_level"]
    assert level["status"] == "failed"
    sql, restart = level["remedy"].splitlines()
    server.execute(sql)  # what it writes is read after postgresql.conf
    assert restart == "restart PostgreSQL"
    server.settings.pop("wal_level")
    server.configure({})
    server.restart()
    assert doctor.look(code=78)["postgres.wal_level"]["status"] == "ok"


def test_a_limit_for_wal(make_postgres: Callable[..., PostgresServer], slot: str) -> None:
    server = make_postgres(18, settings={"idle_replication_slot_timeout": "60"})
    doctor = Doctor(server, "postgres", slot, NOWHERE)
    idle = doctor.look(code=78)["postgres.retention"]
    assert "idle_replication_slot_timeout" in idle["message"]
    server.settings.pop("idle_replication_slot_timeout")
    server.reload({"max_slot_wal_keep_size": "64MB"})
    little = doctor.look(code=78)["postgres.retention"]
    assert (little["status"], "64 MB" in little["message"]) == ("warning", True)
    server.settings.pop("max_slot_wal_keep_size")
    server.reload({})
    doctor.follow(doctor.look(code=78)["postgres.retention"])
    assert doctor.look(code=78)["postgres.retention"]["message"] == "max_slot_wal_keep_size is 16384 MB"


def test_no_room_for_a_slot(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    server = make_postgres(17, settings={"max_replication_slots": "2"})
    doctor = Doctor(server, "postgres", slot, kafka.bootstrap)
    server.execute("select pg_create_physical_replication_slot('standby')")
    slots = doctor.look(code=78)["postgres.slots"]
    assert (slots["status"], slots["message"]) == ("failed", "1 of 2 in use, and init needs 2 free")
    server.execute("select pg_drop_replication_slot('standby')")
    doctor.init("--create-table")
    server.execute("select pg_create_physical_replication_slot('standby')")
    assert doctor.look()["postgres.slots"]["status"] == "ok"


def test_no_walsender_is_free(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    server = make_postgres(16, settings={"max_wal_senders": "1"})
    doctor = Doctor(server, "postgres", slot, kafka.bootstrap).init("--create-table")
    with closing(psycopg.connect(server.dsn() + "?replication=database", autocommit=True)):
        checks = doctor.look(code=1)
        assert worse(checks).items() >= {("postgres.walsenders", "failed")}
        assert "postgres.replication_connection" not in checks
    eventually(lambda: not server.execute("select from pg_stat_replication"), PATIENCE, "the walsender gone")
    assert doctor.look()["postgres.walsenders"]["status"] == "ok"


def test_what_a_slot_may_be(doctor: Doctor) -> None:
    doctor.init("--create-table")
    for make, words in (
        ("select pg_create_physical_replication_slot(%s)", "is a physical replication slot"),
        ("select pg_create_logical_replication_slot(%s, 'test_decoding')", 'output plugin "test_decoding"'),
    ):
        other = f"{doctor.slot}_x"
        doctor.execute(make, (other,))
        slot = doctor.look("--slot", other, code=78)["postgres.slot"]
        assert words in slot["message"]
        doctor.execute("select pg_drop_replication_slot(%s)", (other,))
    doctor.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (f"{doctor.slot}_x_pending",))
    assert "_x_pending" in doctor.look("--slot", f"{doctor.slot}_x", code=78)["postgres.slot"]["message"]


def test_a_slot_that_another_hand_moved(doctor: Doctor) -> None:
    doctor.init("--create-table")
    doctor.execute("select pg_logical_emit_message(false, 'x', 'x')")
    doctor.execute("select pg_replication_slot_advance(%s, pg_current_wal_lsn())", (doctor.slot,))
    slot = doctor.look(code=78)["postgres.slot"]
    assert "those between may be missing" in slot["message"]
    assert "--accept-gap" in slot["remedy"]
    doctor.execute("select pg_drop_replication_slot(%s)", (doctor.slot,))
    assert "is gone" in doctor.look(code=78)["postgres.slot"]["message"]


def test_a_table_that_was_out_of_the_publication(as_relay: Doctor) -> None:
    as_relay.execute("alter publication outbox_pub drop table outbox")
    publication = as_relay.look(code=78)["postgres.publication"]
    assert "lacks table public.outbox" in publication["message"]
    as_relay.follow(publication)
    checks = as_relay.look(code=78)
    assert checks["postgres.publication"]["status"] == "ok"
    assert "events of that time may be missing" in checks["postgres.slot"]["message"]
    as_relay.command("start", "--accept-gap", "--until-caught-up", "--no-http")
    assert worse(as_relay.look()) == {"postgres.retention": "warning"}


@ALL_VERSIONS
def test_no_publication(doctor: Doctor) -> None:
    doctor.init("--create-table")
    doctor.execute("drop publication outbox_pub")
    publication = doctor.look(code=78)["postgres.publication"]
    assert publication["message"] == "publication outbox_pub does not exist"
    assert "create publication outbox_pub for table public.outbox" in publication["remedy"]
    doctor.command("drop", "--yes")
    publication = doctor.look(code=78)["postgres.publication"]
    doctor.follow(publication)
    assert doctor.look()["postgres.publication"]["status"] == "ok"


def test_a_slot_of_another_database(doctor: Doctor) -> None:
    """A database that has nothing yet gets a slot of another name, and no publication beside one that isn't its own."""
    doctor.init("--create-table")
    name = f"{doctor.database}_b"
    dsn = doctor.server.create_database(name)
    try:
        doctor.server.execute(
            "create table outbox (id uuid primary key, topic text, payload jsonb)", dbname=name
        )
        checks = doctor.look("--publication", "own_pub", code=78, CDC_OUTBOX_DSN=dsn)
    finally:
        doctor.server.drop_database(name)
    assert f'belongs to the database "{doctor.database}"' in checks["postgres.slot"]["message"]
    remedy = checks["postgres.publication"]["remedy"]
    assert remedy.endswith("and cdc-outbox init --publication own_pub --slot ANOTHER")
    assert "accept-gap" not in remedy


def test_a_publication_that_is_younger_than_the_slot(
    own_postgres: PostgresServer, kafka: Kafka, slot: str
) -> None:
    doctor = Doctor(own_postgres, "postgres", slot, kafka.bootstrap).init("--create-table")
    doctor.execute("drop table cdc_outbox_witness")
    assert doctor.look()["postgres.witness"]["status"] == "warning"
    doctor.execute("drop publication outbox_pub")
    doctor.execute("create publication outbox_pub for table outbox with (publish = 'insert')")
    assert "made or altered after the slot" in doctor.look(code=78)["postgres.slot"]["message"]


def test_standbys(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    primary = make_postgres(17)
    doctor = Doctor(primary, "postgres", slot, kafka.bootstrap).init("--create-table", "--no-failover")
    assert doctor.look()["postgres.failover"]["message"] == "no standby is known here"
    standby = primary.standby(slot="standby_1")
    active = "select from pg_replication_slots where slot_name = 'standby_1' and active"
    with closing(standby):
        eventually(lambda: primary.execute(active), PATIENCE, "the standby streams")
        there = Doctor(standby, "postgres", slot, kafka.bootstrap)
        waiting = there.look(code=78)  # the slot is not there
        assert "start waits until it is promoted" in waiting["postgres.primary"]["message"]
        assert "is a standby, and has no replication slot" in waiting["postgres.slot"]["message"]
        assert waiting["postgres.slot"]["remedy"].startswith("look at the primary: cdc-outbox health --slot")
        failover = doctor.look()["postgres.failover"]
        assert "is no failover slot" in failover["message"]
        with closing(psycopg.connect(primary.dsn() + "?replication=database", autocommit=True)) as connection:
            command = failover["remedy"].rpartition(" -c ")[2].strip("'")
            connection.execute(command.encode())
        failover = doctor.look()["postgres.failover"]
        assert "synchronized_standby_slots is empty" in failover["message"]
        doctor.follow(failover)
        assert doctor.look()["postgres.failover"]["message"] == "a failover slot, behind standby_1"
    eventually(lambda: not primary.execute(active), PATIENCE, "the standby's walsender gone")
    stale = doctor.look(code=1)["postgres.failover"]
    assert "waits for standby_1" in stale["message"]


def test_a_standby_before_17(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    primary = make_postgres(15)
    doctor = Doctor(primary, "postgres", slot, kafka.bootstrap).init("--create-table")
    primary.execute("select pg_create_physical_replication_slot('standby')")
    failover = doctor.look()["postgres.failover"]
    assert (failover["status"], "before PostgreSQL 17" in failover["message"]) == ("warning", True)


def test_a_synchronous_standby(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    server = make_postgres(18)
    doctor = Doctor(server, "postgres", slot, kafka.bootstrap).init("--create-table")
    server.reload({"synchronous_standby_names": "*"})
    standby = doctor.look(code=78)["postgres.synchronous_standby"]
    assert "every COMMIT of the application would wait" in standby["message"]
    server.settings.pop("synchronous_standby_names")
    server.reload({})
    server.execute("alter system set synchronous_standby_names = '*'")
    server.execute("alter publication outbox_pub set (publish = 'delete')")
    server.execute("select pg_reload_conf()")
    failed = [check for check in doctor.look(code=78).values() if check["status"] == "failed"]
    # In their order: a COMMIT before the first of them would wait for ever.
    assert [check["name"] for check in failed][:2] == ["synchronous_standby", "publication"]
    for check in failed[:2]:
        doctor.follow(check)
    checks = doctor.look()
    assert (
        checks["postgres.synchronous_standby"]["status"] == checks["postgres.publication"]["status"] == "ok"
    )
    server.reload({"synchronous_standby_names": "FIRST 1 (s1)", "wal_sender_timeout": "2s"})
    checks = doctor.look()
    assert checks["postgres.synchronous_standby"]["status"] == "ok"
    assert checks["postgres.wal_sender_timeout"]["status"] == "warning"


def test_a_pooler_in_between(own_postgres: PostgresServer, kafka: Kafka, slot: str) -> None:
    doctor = Doctor(own_postgres, "postgres", slot, kafka.bootstrap).init("--create-table")
    with Pooler(("127.0.0.1", own_postgres.port)) as pooler:
        checks = doctor.look(code=78, CDC_OUTBOX_DSN=own_postgres.dsn(port=pooler.port))
        assert checks["postgres.pooler"]["status"] == "warning"
        refused = checks["postgres.replication_connection"]
        assert "does not speak replication" in refused["message"]
        assert "not a pooler's" in refused["remedy"]
    with Pooler(("127.0.0.1", own_postgres.port), replication=True) as pooler:
        checks = doctor.look(CDC_OUTBOX_DSN=own_postgres.dsn(port=pooler.port))
        assert checks["postgres.pooler"]["status"] == "warning"
        assert checks["postgres.replication_connection"]["status"] == "ok"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("alter publication outbox_pub set table outbox where (id is not null)", "has a row filter on"),
        ("alter publication outbox_pub set table outbox (id, aggregate_id)", "has a column list on"),
        ("alter publication outbox_pub set (publish = 'delete')", "does not publish inserts"),
    ],
)
def test_a_publication_that_hides(as_relay: Doctor, change: LiteralString, words: str) -> None:
    as_relay.execute("alter table outbox replica identity full")
    as_relay.execute(change)
    publication = as_relay.look(code=78)["postgres.publication"]
    assert words in publication["message"]
    as_relay.follow(publication)
    checks = json.loads(as_relay.command("doctor", "--json").stdout)["checks"]
    assert {check["status"] for check in checks if check["name"] == "publication"} == {"ok"}


def test_all_that_a_publication_hides_is_said_at_once(as_relay: Doctor) -> None:
    as_relay.execute("create table other (id int primary key)")
    as_relay.execute("alter table outbox replica identity full")
    as_relay.execute(
        "alter publication outbox_pub set table outbox (id, aggregate_id) where (id is not null), other"
    )
    as_relay.execute("alter publication outbox_pub set (publish = 'insert, update')")
    checks = as_relay.look(code=78)
    publication = checks["postgres.publication"]
    for words in ("a row filter on", "a column list on", "also has public.other", "more than inserts"):
        assert words in publication["message"]
    mapping = checks["postgres.mapping"]
    assert mapping["status"] == "failed"
    assert "column list keeps back aggregate_type, event_type, event_version, payload" in mapping["message"]
    as_relay.follow(mapping)
    checks = as_relay.look(code=78)  # what came meanwhile may be missing
    assert (checks["postgres.mapping"]["status"], checks["postgres.slot"]["status"]) == ("ok", "failed")
    as_relay.follow(publication)
    assert as_relay.look(code=78)["postgres.publication"]["status"] == "ok"


def test_partitions_under_their_own_names(doctor: Doctor) -> None:
    doctor.execute(
        "create table outbox (id int, aggregate_id text, topic text, payload text) partition by range (id)"
    )
    doctor.execute("create table outbox_1 partition of outbox for values from (1) to (9)")
    doctor.init()
    doctor.execute("alter publication outbox_pub set (publish_via_partition_root = false)")
    publication = doctor.look(code=78)["postgres.publication"]
    assert "publishes the partitions of public.outbox under their own names" in publication["message"]
    doctor.follow(publication)
    assert doctor.look()["postgres.publication"]["status"] == "ok"


def test_a_table_that_the_slot_feeds_too(doctor: Doctor) -> None:
    doctor.init("--create-table", "--table", "one", "--table", "two")
    assert "feeds public.two too" in doctor.look("--table", "one", code=78)["postgres.slot"]["message"]
    assert doctor.look("--table", "two", "--table", "one")["postgres.slot"]["status"] == "ok"
