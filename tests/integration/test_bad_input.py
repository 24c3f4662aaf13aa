"""What people get wrong on their first day: each is answered by what is wrong, the next step, and its exit code.

Both forms are read: the two lines for a person, and the JSON line for a machine. They say the same.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.started import SECRET, Start, ready, start
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox, read_all
from tests.servers.postgres import PASSWORD
from tests.servers.process import free_port
from tests.servers.relay import run_command
from tests.servers.wait import eventually

__all__ = ["ready", "start"]


@pytest.fixture
def role(database: Database, slot: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    server = database.server
    server.execute(SQL("create role {} login password {}").format(Identifier(slot), Literal(PASSWORD)))
    yield slot
    server.execute(SQL("drop owned by {}").format(Identifier(slot)), dbname=database.name)
    server.execute(SQL("drop role {}").format(Identifier(slot)))


# PostgreSQL: who, where, with which right


def test_an_unknown_slot(ready: Start) -> None:
    ready.execute("delete from cdc_outbox_witness")
    ready.execute("select pg_drop_replication_slot(%s)", (ready.slot,))
    error, remedy = ready.refused(code=78)
    assert error == f'there is no replication slot "{ready.slot}"'
    assert remedy == f"cdc-outbox init --slot {ready.slot}"


def test_only_a_pending_slot(ready: Start) -> None:
    pending = f"{ready.slot}_pending"
    ready.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (ready.slot, pending))
    ready.execute("select pg_drop_replication_slot(%s)", (ready.slot,))
    ready.execute("delete from cdc_outbox_witness")
    error, remedy = ready.refused(code=78)
    assert pending in error
    assert "backfill" in remedy


def test_the_slot_of_another_plugin(start: Start) -> None:
    create_outbox(start.database.dsn)
    start.init()
    start.execute("select pg_drop_replication_slot(%s)", (start.slot,))
    start.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (start.slot,))
    error, remedy = start.refused(code=78)
    assert "test_decoding" in error
    assert "--slot" in remedy


def test_the_slot_of_another_database(ready: Start) -> None:
    name = f"{ready.database.name}_other"
    server = ready.database.server
    server.create_database(name)
    try:
        create_outbox(server.dsn(name))
        server.execute("create publication outbox_pub for table outbox", dbname=name)
        error, remedy = ready.refused(code=78, CDC_OUTBOX_DSN=server.dsn(name))
        assert f'belongs to the database "{ready.database.name}"' in error
        assert "--dsn" in remedy
    finally:
        server.drop_database(name)


def test_a_role_that_may_not_replicate(ready: Start, role: str) -> None:
    dsn = ready.database.server.dsn(ready.database.name, user=role)
    error, remedy = ready.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert role in error
    assert f"alter role {role} replication;" in remedy


def test_a_role_without_rights_on_the_witness(ready: Start, role: str) -> None:
    ready.database.server.execute(SQL("alter role {} replication").format(Identifier(role)))
    dsn = ready.database.server.dsn(ready.database.name, user=role)
    error, remedy = ready.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert "cdc_outbox_witness" in error
    assert "cdc-outbox init " in remedy
    assert f"--role {role}" in remedy
    ready.init("--role", role)
    error, _ = ready.refused("--fail-fast", code=1, CDC_OUTBOX_DSN=dsn)
    assert "Kafka" in error


def test_a_wrong_password(start: Start) -> None:
    dsn = start.database.server.dsn(start.database.name, password=SECRET)
    error, remedy = start.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert "password" in error
    assert "--dsn" in remedy


def test_an_unknown_role(start: Start) -> None:
    dsn = start.database.server.dsn(start.database.name, user="nobody_by_that_name", password=SECRET)
    error, _ = start.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert "nobody_by_that_name" in error


def test_an_unknown_database(start: Start) -> None:
    error, remedy = start.refused(code=78, CDC_OUTBOX_DSN=start.database.server.dsn("nothing_by_that_name"))
    assert "nothing_by_that_name" in error
    assert "--dsn" in remedy


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://app:{SECRET}@localhost:port/app",
        f"host=localhost password={SECRET} nonsense",
        f"mysql://app:{SECRET}@localhost/app",
    ],
)
def test_a_dsn_that_is_none(dsn: str, start: Start) -> None:
    error, _ = start.refused("--dsn", dsn, code=2)
    assert "--dsn" in error
    error, _ = start.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert "CDC_OUTBOX_DSN" in error


def test_a_server_that_is_away_with_fail_fast(start: Start) -> None:
    dsn = f"postgresql://app:{SECRET}@127.0.0.1:{free_port()}/app"
    error, _ = start.refused("--fail-fast", code=1, CDC_OUTBOX_DSN=dsn)
    assert "127.0.0.1" in error
    error, _ = start.refused(
        "--fail-fast", code=1, CDC_OUTBOX_DSN=f"postgresql://app:{SECRET}@no-such-host.invalid/app"
    )
    assert "no-such-host.invalid" in error


# The publication and the table


def test_no_table(start: Start) -> None:
    start.execute("create publication outbox_pub")
    start.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (start.slot,))
    error, remedy = start.refused(code=78)
    assert "table public.outbox does not exist" in error
    assert "--table" in remedy


def test_no_publication(ready: Start) -> None:
    ready.execute("drop publication outbox_pub")
    error, remedy = ready.refused(code=78)
    assert "publication outbox_pub" in error
    assert "create publication outbox_pub for table public.outbox" in remedy
    assert f"then cdc-outbox start --slot {ready.slot} --accept-gap, which " in remedy


def test_a_publication_without_the_table(ready: Start) -> None:
    ready.execute("alter publication outbox_pub drop table outbox")
    error, remedy = ready.refused(code=78)
    assert "lacks table public.outbox" in error
    assert remedy.startswith("alter publication outbox_pub add table public.outbox;")


class Odd(Start):
    """An outbox of other columns, with everything around it made by hand."""

    def make(self, columns: LiteralString, *, options: LiteralString = "") -> Odd:
        self.execute(SQL("create table outbox ({})").format(SQL(columns)).as_string())
        self.execute(
            SQL("create publication outbox_pub for table outbox with (publish = 'insert'{})")
            .format(SQL(options))
            .as_string()
        )
        self.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (self.slot,))
        return self


@pytest.fixture
def odd(database: Database, slot: str) -> Odd:
    return Odd(database, slot)


def test_a_table_without_a_key_and_what_could_be_one(odd: Odd) -> None:
    odd.make("id bigserial primary key, topic text not null, payload jsonb, sent_at timestamptz")
    error, remedy = odd.refused(code=78)
    assert "public.outbox has no aggregate id column" in error
    assert "members" not in error
    assert "--key" in remedy
    odd.execute(
        "insert into outbox (topic, payload) values"
        """ ('orders', '{"total": 3, "order_id": 7, "lines": [], "a/b~id": "x"}'),"""
        """ ('orders', '{"order_id": "8"}'), ('orders', 'null'), ('orders', null)"""
    )
    error, remedy = odd.refused(code=78)
    assert error.endswith("its payloads have the members order_id, total, a/b~id")
    assert "--key payload:/order_id" in remedy
    error, _ = odd.refused("--key", "payload:/order_id", "--fail-fast", code=1)
    assert "Kafka" in error


def test_a_table_without_a_key_that_the_role_may_not_read(odd: Odd, role: str) -> None:
    odd.make("id bigserial primary key, topic text not null, payload jsonb")
    odd.execute("""insert into outbox (topic, payload) values ('orders', '{"order_id": 7}')""")
    odd.database.server.execute(SQL("alter role {} replication").format(Identifier(role)))
    dsn = odd.database.server.dsn(odd.database.name, user=role)
    error, remedy = odd.refused(code=78, CDC_OUTBOX_DSN=dsn)
    assert error.endswith("so its events have no key")
    assert "--key" in remedy


def test_a_column_that_is_not_there(ready: Start) -> None:
    error, remedy = ready.refused("--column", "payload=body", code=78)
    assert "'body'" in error
    assert "payload" in remedy


@pytest.mark.parametrize("kind", ["stored", "virtual"])
def test_a_needed_column_that_is_generated(kind: LiteralString, odd: Odd) -> None:
    columns: LiteralString = (
        "id bigserial primary key, aggregate_type text, order_id bigint, payload jsonb,"
        " aggregate_id text generated always as (order_id::text) "
    )
    odd.make(columns + kind)
    error, remedy = odd.refused(code=78)
    assert "column aggregate_id of public.outbox" in error
    assert "generated" in error
    assert "publish_generated_columns = stored" in remedy
    error, _ = odd.refused("--key", "order_id", "--fail-fast", code=1)
    assert "Kafka" in error


def test_a_generated_column_that_the_publication_sends(odd: Odd) -> None:
    odd.make(
        "id bigserial primary key, aggregate_type text, order_id bigint, payload jsonb,"
        " aggregate_id text generated always as (order_id::text) stored",
        options=", publish_generated_columns = stored",
    )
    error, _ = odd.refused("--fail-fast", code=1)
    assert "Kafka" in error


@pytest.mark.parametrize(
    ("columns", "flags", "words", "way_out"),
    [
        (
            'id int, "Payload" text, "PAYLOAD" text',
            (),
            'columns "Payload" and "PAYLOAD" differ only by case',
            "Payload;",
        ),
        (
            "id int, payload oid",
            (),
            "column payload of public.outbox can't be the payload",
            "as bytea or text",
        ),
        (
            "id int, payload text, h int[]",
            ("--column", "headers=h"),
            "column h of public.outbox can't be the headers: it is not json",
            "--column headers=NAME",
        ),
    ],
)
def test_columns_that_cannot_play_their_role(
    columns: LiteralString, flags: tuple[str, ...], words: str, way_out: str, odd: Odd
) -> None:
    odd.make("aggregate_type text, aggregate_id text, " + columns)
    error, remedy = odd.refused(*flags, code=78)
    assert words in error
    assert way_out in remedy


def test_a_table_without_a_primary_key_is_only_told_of(odd: Odd) -> None:
    odd.make("id int, aggregate_type text, aggregate_id text, payload text")
    done = run_command("start", "--fail-fast", "--no-http", "--log-format", "json", env=odd.environment({}))
    assert done.returncode == 1, done.stderr
    told = [record.get("what", "") for record in map(json.loads, done.stderr.splitlines())]
    assert [what for what in told if what.startswith("public.outbox has no primary key")]


PARTITIONED: LiteralString = """
    create table outbox (id int, aggregate_type text, aggregate_id text, payload text, day int)
        partition by range (day);
    create table outbox_old partition of outbox for values from (1) to (2);
"""
UNLOGGED: LiteralString = "create unlogged table outbox_new partition of outbox default"
FOREIGN: LiteralString = """
    create foreign data wrapper w; create server s foreign data wrapper w;
    create foreign table outbox_new partition of outbox default server s
"""


@ALL_VERSIONS
def test_a_partition_whose_rows_leave_no_trace(start: Start) -> None:
    start.execute(PARTITIONED + UNLOGGED)
    done = run_command("init", env=start.environment({}))
    assert done.returncode == 78
    assert "partitions of public.outbox leave no rows in the write-ahead log" in done.stderr


@pytest.mark.parametrize(("partition", "kind"), [(UNLOGGED, "unlogged"), (FOREIGN, "foreign")])
def test_such_a_partition_that_came_later(partition: LiteralString, kind: str, start: Start) -> None:
    """What was inserted there is nowhere else, so a person has to know of it even when the partition is mended."""
    start.execute(PARTITIONED)
    start.init()
    start.execute(partition)
    words = f"partitions of public.outbox leave no rows in the write-ahead log: public.outbox_new ({kind})"
    error, remedy = start.refused(code=78)
    assert error == words
    with psycopg.connect(start.database.dsn) as connection:
        connection.execute(remedy.encode())
    error, remedy = start.refused(code=78)
    assert f"{words}: events of that time may be missing" in error
    assert "--accept-gap" in remedy
    error, _ = start.refused("--accept-gap", "--fail-fast", code=1)
    assert "Kafka" in error


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("create view outbox as select 1 as id", "public.outbox is a view"),
        ("create unlogged table outbox (id int, payload text)", "public.outbox is unlogged"),
    ],
    ids=["view", "unlogged"],
)
def test_what_is_no_table_of_the_log(statement: LiteralString, words: str, start: Start) -> None:
    start.execute(statement)
    start.execute("create publication outbox_pub")
    start.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (start.slot,))
    error, remedy = start.refused(code=78)
    assert words in error
    assert remedy


# Kafka


def test_a_broker_that_is_away_with_fail_fast(ready: Start) -> None:
    error, remedy = ready.refused("--fail-fast", code=1)
    assert ready.bootstrap in error
    assert "kafka.bootstrap_servers" in remedy


def test_a_fixed_topic_that_is_missing(ready: Start, kafka: Kafka, slot: str) -> None:
    ready.bootstrap = kafka.bootstrap
    topic = f"fixed-{slot}"
    error, remedy = ready.refused("--topic", topic, code=78)
    assert f"no topic {topic}" in error
    assert "--create-topics" in remedy
    assert topic not in kafka.topics()
    done = run_command(
        "start", "--no-http", "--until-caught-up", "--topic", topic, "--create-topics",
        env=ready.environment({}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert topic in kafka.topics()


def test_an_event_that_can_never_be_sent(ready: Start, kafka: Kafka, slot: str) -> None:
    ready.bootstrap = kafka.bootstrap
    topic = f"poisoned-{slot}"
    kafka.create_topic(topic)
    ready.execute("alter table outbox alter aggregate_id drop not null")
    ready.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', '1', 'good')"
    )
    ((event_id,),) = ready.execute(
        "insert into outbox (aggregate_type, event_type) values ('order', 'bad') returning id::text"
    )
    error, remedy = ready.refused("--topic", topic, code=70)
    assert event_id in error
    assert "NULL" in error
    assert "--key" in remedy
    assert [record.header("type") for record in read_all(kafka.bootstrap, topic)] == ["good"]


# Settings


def test_an_unknown_key_in_the_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text('[kafka]\nbootstrap_server = "localhost:9092"\n')
    error, remedy = start.refused(code=78, cwd=tmp_path)
    assert "kafka.bootstrap_server" in error
    assert "kafka.bootstrap_servers" in error + remedy


def test_a_malformed_value_in_the_file(start: Start, tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text('[limits]\ndrain = "soon"\n')
    error, _ = start.refused(code=78, cwd=tmp_path)
    assert "limits.drain" in error
    assert "soon" in error


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--slot", "Not A Slot"], "--slot"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--table", "a.b.c"], "--table"),
    ],
)
def test_a_malformed_flag(flags: list[str], word: str, start: Start) -> None:
    error, _ = start.refused(*flags, code=2)
    assert word in error


@pytest.mark.parametrize(
    "command", [("init",), ("drop", "--yes"), ("peek",), ("start", "--fail-fast", "--no-http")]
)
def test_no_dsn_at_all(command: tuple[str, ...]) -> None:
    """Whether libpq's own defaults find a server or not, they aren't what was meant."""
    done = run_command(*command, "--log-format", "text")
    assert done.returncode in (1, 78), done.stderr
    error, remedy = done.stderr.splitlines()[-2:]
    assert error.startswith("error: no DSN is set, and libpq's defaults don't lead anywhere: ")
    assert remedy == "next: export CDC_OUTBOX_DSN=postgresql://USER@HOST:5432/DATABASE"


def test_libpqs_own_variables_are_somebodys_will() -> None:
    port = free_port()
    done = run_command("init", env={"PGHOST": "127.0.0.1", "PGPORT": str(port)})
    assert done.returncode == 1, done.stderr
    error, remedy = done.stderr.splitlines()
    assert (
        error
        == f"error: can't reach PostgreSQL at 127.0.0.1:{port}: connection refused, nothing listens there"
    )
    assert remedy == "next: check that the server runs and that no firewall stops this machine"


# HTTP


def test_a_port_that_is_taken_where_a_person_asked_for_it(ready: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        error, remedy = ready.refused(http=address, code=78)
    assert address in error
    assert "taken" in error
    assert "--http" in remedy
    error, _ = ready.refused(http="nowhere", code=2)
    assert "--http" in error


def test_the_default_port_that_is_taken_is_only_a_warning(ready: Start) -> None:
    """A standby beside the active relay is usual, and needs no flag."""
    with contextlib.ExitStack() as stack:

        def bound() -> bool:
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", 9464)))
                return True
            return False

        # The README's relays have it for a moment; where another has it for good, that does as well.
        with contextlib.suppress(AssertionError):
            eventually(bound, 60)
        done = run_command("start", "--fail-fast", "--log-format", "json", env=ready.environment({}))
    assert done.returncode == 1, done.stderr
    records = [json.loads(line) for line in done.stderr.splitlines()]
    (warning,) = [record for record in records if record["event"].startswith("no probes from this relay")]
    assert warning["level"] == "warning"
    assert (warning["port"], warning["for_its_own"]) == (9464, "--http HOST:PORT")
    assert "error" not in warning, "it is none"
    assert "Kafka" in records[-1]["error"]
