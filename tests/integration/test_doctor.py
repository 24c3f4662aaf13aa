"""`doctor` as its users run it: what it finds well, each failure made for real, and its remedies run as printed."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier, Literal

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.pooler import Pooler
from tests.servers.postgres import PASSWORD, Postgres, PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import RelayProcess, clean_environment, run_command
from tests.servers.security import USERS, client_settings

ALL_VERSIONS = pytest.mark.usefixtures("postgres_version")
NOWHERE = "127.0.0.1:1"


class Doctor:
    """One database, one slot, one cluster, and the command on them as one role."""

    def __init__(
        self, server: Postgres, database: str, slot: str, bootstrap: str, dsn: str | None = None
    ) -> None:
        self.server = server
        self.database = database
        self.slot = slot
        self.owner = server.dsn(database)
        self.environment = {
            "CDC_OUTBOX_DSN": dsn or self.owner,
            "CDC_OUTBOX_SLOT": slot,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": bootstrap,
        }

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `cdc-outbox ARGUMENTS`; no secret is ever printed."""
        done = run_command(*arguments, env={**self.environment, **environment})
        for secret in (PASSWORD, *USERS.values()):
            assert secret not in done.stdout + done.stderr
        return done

    def init(self, *flags: str) -> Doctor:
        done = self.command("init", *flags, CDC_OUTBOX_ADMIN_DSN=self.owner)
        assert done.returncode == 0, done.stderr
        return self

    def look(self, *flags: str, code: int = 0, **environment: str) -> dict[str, dict[str, Any]]:
        """The checks by side and name; the exit code and the document's status must fit."""
        done = self.command("doctor", "--json", *flags, **environment)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr
        document = json.loads(done.stdout)
        assert document["schema_version"] == 1
        statuses = {check["status"] for check in document["checks"]}
        worst = "failed" if "failed" in statuses else "warning" if "warning" in statuses else "ok"
        assert document["status"] == worst
        assert (code != 0) == (worst == "failed")
        for check in document["checks"]:
            assert check.keys() == {"name", "side", "status", "message", "remedy"}
            assert check["remedy"] or check["status"] == "ok", check
        return {f"{check['side']}.{check['name']}": check for check in document["checks"]}

    def execute(self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()) -> list[Any]:
        return self.server.execute(query, parameters, dbname=self.database)

    def follow(self, check: Mapping[str, Any], *arguments: str) -> None:
        """Do what a remedy says, word for word: SQL as the superuser, commands as ourselves."""
        for line in check["remedy"].splitlines():
            if line.startswith("cdc-outbox "):
                done = self.command(*line.split()[1:], *arguments)
                assert done.returncode == 0, done.stderr
                return
            assert line.endswith(";"), line
            with psycopg.connect(self.owner, autocommit=True) as connection:
                for statement in line.split(";"):
                    if statement.strip():
                        connection.execute(statement.encode())


def worse(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What isn't ok."""
    return {name: check["status"] for name, check in checks.items() if check["status"] != "ok"}


@pytest.fixture
def doctor(database: Database, kafka: Kafka, slot: str) -> Doctor:
    """Nothing is set up yet; as the superuser."""
    return Doctor(database.server, database.name, slot, kafka.bootstrap)


@pytest.fixture
def relay_role(database: Database, slot: str) -> Iterator[str]:
    """A role that may log in and replicate."""
    database.server.execute(
        SQL("create role {} login replication password {}").format(Identifier(slot), Literal(PASSWORD))
    )
    yield slot
    database.server.execute(SQL("drop owned by {}").format(Identifier(slot)), dbname=database.name)
    database.server.execute(SQL("drop role {}").format(Identifier(slot)))


@pytest.fixture
def as_relay(doctor: Doctor, relay_role: str) -> Doctor:
    """Set up by an owner, and looked at as the relay's role."""
    doctor.environment["CDC_OUTBOX_DSN"] = doctor.server.dsn(doctor.database, user=relay_role)
    return doctor.init("--create-table")


GENERATED: LiteralString = (
    "id bigint primary key, topic text, payload jsonb,"
    " aggregate_id text generated always as (payload ->> 'a') stored"
)
ROW: LiteralString = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"


@ALL_VERSIONS
def test_all_is_well_and_stays_as_it_was(
    as_relay: Doctor, kafka: Kafka, aggregate_type: str, outbox_topic: str
) -> None:
    kafka.create_topic(outbox_topic, 2)
    as_relay.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    watched = (
        "select (select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s),"
        " (select to_jsonb(w)::text from cdc_outbox_witness w)"
    )
    before = as_relay.execute(watched, (as_relay.slot,))
    checks = as_relay.look()
    # The tests' servers have no limit for WAL, and one broker.
    assert worse(checks) == {"postgres.retention": "warning"}
    assert as_relay.execute(watched, (as_relay.slot,)) == before
    as_relay.execute(SQL("grant select on outbox to {}").format(Identifier(as_relay.slot)))
    seen = as_relay.look()
    assert worse(seen) == {"postgres.retention": "warning", "kafka.replication": "warning"}
    assert "1 would be sent" in seen["postgres.rows"]["message"]
    assert outbox_topic in seen["kafka.rights"]["message"]
    done = as_relay.command("start", "--until-caught-up", "--no-http")
    assert done.returncode == 0, done.stderr
    assert worse(as_relay.look()) == worse(seen)


def test_the_mapping_in_words(as_relay: Doctor) -> None:
    document = json.loads(as_relay.command("doctor", "--json").stdout)
    assert document["mapping"].keys() == {"public.outbox"}
    assert "key from aggregate_id (recognised)" in document["mapping"]["public.outbox"]


@ALL_VERSIONS
def test_from_nothing_by_the_remedies_alone(doctor: Doctor) -> None:
    checks = doctor.look(code=78)
    assert worse(checks) == {
        "postgres.table": "failed",
        "postgres.slot": "failed",
        "postgres.retention": "warning",
    }
    doctor.follow(checks["postgres.table"])
    assert worse(doctor.look()) == {"postgres.retention": "warning"}


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
            "create table other (id int primary key); alter publication outbox_pub add table other",
            "publication",
            "warning",
            "also has public.other",
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


def test_a_suggestion_is_no_warning(as_relay: Doctor) -> None:
    rows = as_relay.look()["postgres.rows"]
    assert rows["status"] == "ok"
    assert "may not read public.outbox" in rows["message"]
    as_relay.follow(rows)
    assert "is empty" in as_relay.look()["postgres.rows"]["message"]


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
    assert doctor.look()["postgres.walsenders"]["status"] == "ok"


def test_a_relay_that_runs_is_no_trouble(
    as_relay: Doctor, kafka: Kafka, make_relay: Callable[..., RelayProcess]
) -> None:
    relay = make_relay(as_relay.owner, kafka.bootstrap, slot=as_relay.slot)
    relay.wait_state("streaming", timeout=60)
    slot = as_relay.look("--http", f"127.0.0.1:{relay.http_port}")
    assert "start would wait as a hot standby" in slot["postgres.slot"]["message"]
    assert worse(slot) == {"postgres.retention": "warning", "relay.http": "warning"}
    assert "is taken" in slot["relay.http"]["message"]


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


def test_a_publication_that_is_younger_than_the_slot(
    own_postgres: PostgresServer, kafka: Kafka, slot: str
) -> None:
    doctor = Doctor(own_postgres, "postgres", slot, kafka.bootstrap).init("--create-table")
    doctor.execute("drop table cdc_outbox_witness")
    assert doctor.look()["postgres.witness"]["status"] == "warning"
    doctor.execute("drop publication outbox_pub")
    doctor.execute("create publication outbox_pub for table outbox with (publish = 'insert')")
    assert "made or altered after the slot" in doctor.look(code=78)["postgres.slot"]["message"]


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        (
            "id bigint primary key, payload jsonb, topic text",
            "failed",
            "no key; its payloads have the members a, order_id",
        ),
        (
            "id bigint primary key, aggregate_id text, payload jsonb, topic text",
            "ok",
            "key from aggregate_id",
        ),
        ("id bigint primary key, aggregate_id text, topic text", "failed", "recognised as payload"),
        ("aggregate_id text, payload jsonb, topic text", "failed", "recognised as id"),
        (
            GENERATED,
            "failed",
            "is generated",
        ),
    ],
)
def test_columns(doctor: Doctor, columns: LiteralString, status: str, words: str) -> None:
    doctor.execute(SQL("create table outbox ({})").format(SQL(columns)))
    if "payload" in columns and columns.startswith("id"):
        doctor.execute('insert into outbox (id, payload) values (1, \'{"order_id": 1, "a": "x"}\')')
    doctor.init("--no-backfill")
    mapping = doctor.look(code=78 if status == "failed" else 0)["postgres.mapping"]
    assert mapping["status"] == status
    assert words in mapping["message"]


def test_what_is_no_table(doctor: Doctor) -> None:
    doctor.execute("create view outbox as select 1 as id")
    assert "is a view" in doctor.look(code=78)["postgres.table"]["message"]
    doctor.execute("create unlogged table unlogged (id int)")
    unlogged = doctor.look("--table", "unlogged", code=78)["postgres.table"]
    doctor.follow(unlogged)
    assert doctor.look("--table", "unlogged", code=78)["postgres.table"]["status"] == "ok"


def test_rows_that_could_never_be_sent(doctor: Doctor, kafka: Kafka, topics: str) -> None:
    doctor.execute("create table outbox (id int primary key, topic text, aggregate_id text, payload text)")
    doctor.init()
    doctor.execute(
        "insert into outbox values (1, %s, 'k', 'v'), (2, 'no topic!', 'k', 'v'), (3, %s, null, 'v')",
        (f"{topics}a", f"{topics}a"),
    )
    rows = doctor.look()["postgres.rows"]
    assert rows["status"] == "warning"
    assert (
        "3 of the newest rows of public.outbox: 2 can't be published, the first (2) because"
        in rows["message"]
    )
    assert "'no topic!' is illegal" in rows["message"]


def test_a_partition_by_state(doctor: Doctor) -> None:
    doctor.execute(
        "create table outbox (id int, aggregate_id text, topic text, payload text, status text)"
        " partition by list (status)"
    )
    doctor.execute("create table outbox_pending partition of outbox for values in ('pending')")
    doctor.init()
    doctor.execute("insert into outbox values (1, 'k', 'nowhere', 'v', 'pending')")
    checks = doctor.look()
    assert "partitioned by status" in checks["postgres.partitioning"]["message"]
    assert "1 would be sent" in checks["postgres.rows"]["message"]


def test_hidden_rows_are_no_sample(as_relay: Doctor) -> None:
    as_relay.execute(SQL("grant select on outbox to {}").format(Identifier(as_relay.slot)))
    as_relay.execute("alter table outbox enable row level security")
    as_relay.execute(f"{ROW} values ('o', '1', 'placed', '{{}}')")
    assert "not looked at" in as_relay.look()["postgres.rows"]["message"]


def test_standbys(make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str) -> None:
    primary = make_postgres(17)
    doctor = Doctor(primary, "postgres", slot, kafka.bootstrap).init("--create-table", "--no-failover")
    assert doctor.look()["postgres.failover"]["message"] == "no standby is known here"
    standby = primary.standby(slot="standby_1")
    with closing(standby):
        there = Doctor(standby, "postgres", slot, kafka.bootstrap)
        waiting = there.look(code=78)  # the slot is not there
        assert "start waits until it is promoted" in waiting["postgres.primary"]["message"]
        failover = doctor.look()["postgres.failover"]
        assert "is no failover slot" in failover["message"]
        with closing(psycopg.connect(primary.dsn() + "?replication=database", autocommit=True)) as connection:
            command = failover["remedy"].rpartition(" -c ")[2].strip("'")
            connection.execute(command.encode())
        failover = doctor.look()["postgres.failover"]
        assert "synchronized_standby_slots is empty" in failover["message"]
        doctor.follow(failover)
        assert doctor.look()["postgres.failover"]["message"] == "a failover slot, behind standby_1"
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
    server.reload({"synchronous_standby_names": "FIRST 1 (s1)", "wal_sender_timeout": "2s"})
    checks = doctor.look()
    assert checks["postgres.synchronous_standby"]["status"] == "ok"
    assert checks["postgres.wal_sender_timeout"]["status"] == "warning"


def test_the_wrong_password_hides_nothing_of_kafka(doctor: Doctor) -> None:
    wrong = doctor.server.dsn(doctor.database, password="wrong-secret")
    checks = doctor.look(code=78, CDC_OUTBOX_DSN=wrong)
    assert [name for name in checks if name.startswith("postgres.")] == ["postgres.connection"]
    connection = checks["postgres.connection"]
    assert "refuses the connection" in connection["message"]
    assert "wrong-secret" not in json.dumps(checks)
    assert checks["kafka.connection"]["status"] == "ok"


def test_servers_that_are_away(doctor: Doctor) -> None:
    doctor.init("--create-table")
    gone = f"postgresql://postgres@127.0.0.1:{free_port()}/app"
    checks = doctor.look(code=1, CDC_OUTBOX_DSN=gone)
    assert worse(checks) == {"postgres.connection": "failed"}
    checks = doctor.look(code=1, CDC_OUTBOX_BOOTSTRAP_SERVERS=f"127.0.0.1:{free_port()}")
    assert worse(checks) == {"postgres.retention": "warning", "kafka.connection": "failed"}
    assert "connection refused" in checks["kafka.connection"]["message"]
    checks = doctor.look(code=1, CDC_OUTBOX_DSN=gone, CDC_OUTBOX_BOOTSTRAP_SERVERS=NOWHERE)
    assert {*worse(checks)} == {"postgres.connection", "kafka.connection"}


def test_servers_that_freeze(own_postgres: PostgresServer, kafka: Kafka, slot: str) -> None:
    doctor = Doctor(own_postgres, "postgres", slot, kafka.bootstrap)
    own_postgres.pause()
    began = time.monotonic()
    try:
        checks = doctor.look(code=1)
    finally:
        own_postgres.resume()
    assert time.monotonic() - began < 30
    assert worse(checks) == {"postgres.connection": "failed"}


def test_a_topic_for_all_rows(as_relay: Doctor, kafka: Kafka, topics: str) -> None:
    topic = f"{topics}all"
    missing = as_relay.look("--topic", topic, code=78)["kafka.topics"]
    assert f"the cluster has no topic {topic}" in missing["message"]
    assert f"--create --topic {topic}" in missing["remedy"]
    made = as_relay.look("--topic", topic, "--create-topics")["kafka.topics"]
    assert f"start makes {topic}" in made["message"]
    assert topic not in kafka.topics()
    refused = as_relay.look(
        "--topic", topic, "--create-topics", code=78, CDC_OUTBOX_KAFKA_TOPICS_REPLICATION_FACTOR="3"
    )["kafka.topics"]
    assert "replication factor" in refused["message"].lower()
    kafka.create_topic(topic, config={"min.insync.replicas": "2", "cleanup.policy": "compact"})
    checks = as_relay.look("--topic", topic, code=78)
    assert "so that nothing can be written" in checks["kafka.replication"]["message"]
    assert checks["kafka.compaction"]["status"] == "warning"
    assert as_relay.look("--topic", topic, "--key", "none", code=78)["kafka.compaction"]["status"] == "failed"


@pytest.mark.parametrize("policy", ["hold", "poison"])
def test_topics_that_rows_name(
    doctor: Doctor, kafka: Kafka, outbox_topic: str, aggregate_type: str, policy: str
) -> None:
    doctor.init("--create-table")
    doctor.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    check = doctor.look(CDC_OUTBOX_KAFKA_UNKNOWN_TOPIC=policy)["kafka.topics"]
    assert check["status"] == "warning"
    assert outbox_topic in check["message"]
    assert ("poison" in check["message"]) == (policy == "poison")
    assert outbox_topic not in kafka.topics()


def test_sizes(doctor: Doctor, kafka: Kafka, topics: str) -> None:
    topic = f"{topics}sized"
    kafka.create_topic(topic, config={"max.message.bytes": "2000"})
    doctor.init("--create-table")
    tight = doctor.look("--topic", topic)["kafka.message_size"]
    assert (tight["status"], "is 2000" in tight["message"]) == ("warning", True)
    doctor.execute(
        f"{ROW} select 'o', n::text, 'placed', to_jsonb(repeat('x', n * 1000)) from generate_series(1, 4) n"
    )
    checks = doctor.look("--topic", topic, code=78)
    assert "a row makes a record of 41" in checks["kafka.message_size"]["message"]
    assert checks["kafka.record_size"]["status"] == "ok"
    half = doctor.look("--topic", topic, "--kafka", "max.request.size=5000", code=78)
    assert half["kafka.record_size"]["status"] == "warning"
    over = doctor.look("--topic", topic, "--kafka", "max.request.size=3000", code=78)
    assert over["kafka.record_size"]["status"] == "failed"
    assert "max.request.size = 8192" in over["kafka.record_size"]["remedy"]


def test_a_large_row_is_seen_among_many(doctor: Doctor, kafka: Kafka, topics: str) -> None:
    topic = f"{topics}sized"
    kafka.create_topic(topic)
    doctor.init("--create-table")
    doctor.execute(
        f"{ROW} select 'o', n::text, 'placed', to_jsonb(case when n = 150 then (select string_agg(md5(i::text), '')"
        " from generate_series(1, 60000) i) else 'x' end) from generate_series(1, 200) n"
    )
    assert "a record of 19" in doctor.look("--topic", topic, code=78)["kafka.record_size"]["message"]


@pytest.fixture
def secured(as_relay: Doctor, secure_kafka: KafkaBroker) -> Doctor:
    as_relay.environment["CDC_OUTBOX_BOOTSTRAP_SERVERS"] = secure_kafka.address("SASL_SSL")
    for name, value in client_settings("SASL_SSL").items():
        as_relay.environment["CDC_OUTBOX_KAFKA_" + name.upper().replace(".", "_")] = value
    return as_relay


def test_rights_on_a_topic(secured: Doctor, secure_kafka: KafkaBroker, topics: str) -> None:
    topic, other = f"{topics}secured", f"{topics}other"
    secure_kafka.create_topic(topic)
    secure_kafka.create_topic(other)
    secure_kafka.allow("relay", "write", other)  # without any such right there is no idempotent producer
    hidden = secured.look("--topic", topic, code=78)["kafka.rights"]
    assert f"User:relay may not see {topic}" in hidden["message"]
    assert f"--add --allow-principal User:relay --producer --topic {topic}" in hidden["remedy"]
    secure_kafka.allow("relay", "describe", topic)
    rights = secured.look("--topic", topic, code=78)["kafka.rights"]
    assert f"User:relay may not write to {topic}" in rights["message"]
    secure_kafka.allow("relay", "write", topic)
    checks = secured.look("--topic", topic)
    assert f"may write to {topic}" in checks["kafka.rights"]["message"]
    assert "isn't told to us" in checks["kafka.message_size"]["message"]
    assert checks["kafka.security"]["message"] == "SASL_SSL SCRAM-SHA-512 as relay"
    missing = f"{topics}missing"
    secure_kafka.allow("relay", "write", missing)
    create = secured.look("--topic", missing, "--create-topics", code=78)["kafka.topics"]
    assert f"--operation Create --topic {missing}" in create["remedy"]
    secure_kafka.allow("relay", "create", missing)
    assert secured.look("--topic", missing, "--create-topics")["kafka.topics"]["status"] == "ok"


def test_no_right_at_all(secured: Doctor, secure_kafka: KafkaBroker) -> None:
    secured.environment["CDC_OUTBOX_KAFKA_SASL_USERNAME"] = "stranger"
    secured.environment["CDC_OUTBOX_KAFKA_SASL_PASSWORD"] = USERS["stranger"]
    connection = secured.look(code=78)["kafka.connection"]
    assert "doesn't allow us an idempotent producer" in connection["message"]


def test_ways_into_kafka(secured: Doctor, secure_kafka: KafkaBroker) -> None:
    wrong = secured.look(code=78, CDC_OUTBOX_KAFKA_SASL_PASSWORD="wrong-secret")["kafka.connection"]
    assert "refuses us" in wrong["message"]
    assert "wrong-secret" not in json.dumps(wrong)
    no_file = secured.look(code=78, CDC_OUTBOX_KAFKA_SSL_CA_LOCATION="/nowhere/ca.pem")["kafka.connection"]
    assert "/nowhere/ca.pem, which can't be read" in no_file["message"]


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


def test_several_tables(doctor: Doctor) -> None:
    doctor.init("--create-table", "--table", "one", "--table", "two")
    document = json.loads(doctor.command("doctor", "--json", "--table", "one", "--table", "two").stdout)
    assert document["mapping"].keys() == {"public.one", "public.two"}
    assert [check["name"] for check in document["checks"]].count("mapping") == 2


def on_a_terminal(doctor: Doctor, columns: int, **environment: str) -> str:
    """What the command prints on a terminal of that width."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc_outbox", "doctor"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=clean_environment(
            {**doctor.environment, "COLUMNS": str(columns), "TERM": "xterm", **environment}
        ),
    )
    os.close(theirs)
    printed = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            more = os.read(ours, 65536)
        except OSError:
            break
        if not more:
            break
        printed += more
    os.close(ours)
    process.wait(30)
    return printed.decode().replace("\r\n", "\n")


def test_on_a_terminal(as_relay: Doctor) -> None:
    coloured = on_a_terminal(as_relay, 80)
    assert "\x1b[32mok\x1b[0m" in coloured
    plain = on_a_terminal(as_relay, 80, NO_COLOR="1")
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    table = plain.partition("what to do")[0]
    assert max(map(len, table.splitlines())) <= 80
    starts = {
        line.index(line.split()[1]) for line in table.splitlines() if line.startswith(("  ok", "  warning"))
    }
    assert len(starts) == 1
    assert plain.splitlines()[-1].endswith("ok")
    assert "alter system set max_slot_wal_keep_size = '16GB';" in [
        line.strip() for line in plain.splitlines()
    ]
