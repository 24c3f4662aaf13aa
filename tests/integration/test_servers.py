"""The fixtures do what their names say; everything else in this directory stands on them."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from psycopg.conninfo import conninfo_to_dict

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.guardian import descendants
from tests.servers.kafka import Kafka, KafkaBroker, KafkaCluster, shared_kafka
from tests.servers.lacking import lacking
from tests.servers.ledger import (
    Consumer,
    Entry,
    Record,
    Writer,
    create_outbox,
    entries_in_table,
    read_all,
    verify,
)
from tests.servers.postgres import Postgres, PostgresServer, shared_postgres
from tests.servers.process import workspace
from tests.servers.proxy import Proxy
from tests.servers.relay import run_command
from tests.servers.security import client_settings
from tests.servers.wait import PATIENCE, eventually


def test_every_version_has_logical_replication(postgres_version: Postgres, database: Database) -> None:
    assert postgres_version.value("show wal_level") == "logical"
    assert database.server is postgres_version


def test_servers_that_were_there_before_can_be_used(
    own_postgres: PostgresServer, own_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDC_OUTBOX_TEST_POSTGRES_18", own_postgres.dsn())
    given = shared_postgres(18)
    given.drop_database(str(conninfo_to_dict(given.create_database())["dbname"]))
    given.close()
    assert own_postgres.running
    monkeypatch.setenv("CDC_OUTBOX_TEST_KAFKA", own_kafka.bootstrap)
    broker = shared_kafka()
    broker.create_topic("given")
    broker.close()
    assert own_kafka.topics() == {"given": 1}


def test_leftovers_go_with_their_database(postgres: Postgres, slot: str) -> None:
    dsn = postgres.create_database("leftover")
    assert dsn.endswith("/leftover")
    postgres.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,), dbname="leftover")
    with postgres.connect("leftover") as connection:
        connection.execute("begin")
        connection.execute("create table prepared ()")
        connection.execute("prepare transaction 'left over'")
    postgres.drop_database("leftover")
    assert not postgres.execute("select 1 from pg_replication_slots where slot_name = %s", (slot,))


def test_two_servers_have_two_identities(own_postgres: PostgresServer, postgres: Postgres) -> None:
    identity = "select system_identifier from pg_control_system()"
    assert own_postgres.value(identity) != postgres.value(identity)


def test_postgres_survives_what_the_tests_do_to_it(own_postgres: PostgresServer) -> None:
    own_postgres.execute("create table kept as select 1 as n")
    own_postgres.stop("immediate")
    own_postgres.start()
    own_postgres.kill()
    own_postgres.start()
    assert own_postgres.stop("fast", timeout=10) < 10
    own_postgres.start()
    own_postgres.reload({"max_slot_wal_keep_size": "64MB"})
    assert own_postgres.value("show max_slot_wal_keep_size") == "64MB"
    own_postgres.pause()
    own_postgres.resume()
    assert own_postgres.value("select n from kept") == 1


def test_a_topic_has_the_partitions_and_limits_asked_for(kafka: Kafka, topics: str) -> None:
    kafka.create_topic(f"{topics}a", 3, {"max.message.bytes": "2000"})
    kafka.create_partitions(f"{topics}a", 4)
    kafka.configure_topic(f"{topics}a", {"max.message.bytes": None})
    assert kafka.topics()[f"{topics}a"] == 4
    kafka.delete_topic(f"{topics}a")


def test_a_broker_survives_what_the_tests_do_to_it(own_kafka: KafkaBroker) -> None:
    own_kafka.create_topic("kept", 2)
    own_kafka.kill()
    own_kafka.start()
    own_kafka.stop()
    own_kafka.move()
    own_kafka.start()
    own_kafka.pause()
    own_kafka.resume()
    assert own_kafka.topics() == {"kept": 2}


def test_a_broker_leaves_no_library_in_the_temporary_directory(own_kafka: KafkaBroker) -> None:
    own_kafka.create_topic("compressed")
    producer = Producer({"bootstrap.servers": own_kafka.bootstrap, "compression.type": "lz4"})
    producer.produce("compressed", b"a" * 10_000)
    assert producer.flush(20) == 0
    assert list(workspace().glob("liblz4*"))


def test_a_cluster_elects_another_leader(own_cluster: KafkaCluster) -> None:
    own_cluster.create_topic("led", 2)
    first = own_cluster.leader("led")
    first.kill()
    assert own_cluster.leader("led") is not first
    first.start()
    assert own_cluster.topics() == {"led": 2}


def outcome(broker: KafkaBroker, topic: str, settings: Mapping[str, str]) -> str:
    """What becomes of a record: `written`, or the name of librdkafka's error."""
    address = broker.address(settings["security.protocol"])
    producer = Producer(
        {
            "bootstrap.servers": address,
            "message.timeout.ms": int(PATIENCE * 1000),
            "log_level": 0,
            **settings,
        },
        logger=logging.getLogger("producer"),
    )
    outcomes: list[str] = []
    producer.produce(
        topic, b"", on_delivery=lambda error, _: outcomes.append(error.name() if error else "written")
    )
    producer.flush(PATIENCE)
    return outcomes[0]


def test_a_secure_broker_knows_its_clients(secure_kafka: KafkaBroker, topics: str) -> None:
    topic = f"{topics}secure"
    secure_kafka.create_topic(topic)
    secure_kafka.allow("relay", "write", topic)
    for settings in (
        client_settings("SASL_PLAINTEXT", "PLAIN"),
        client_settings("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        client_settings("SASL_SSL", "SCRAM-SHA-512"),
        client_settings("SSL"),
    ):
        assert outcome(secure_kafka, topic, settings) == "written"
    stranger = client_settings("SASL_SSL", "PLAIN", "stranger")
    assert outcome(secure_kafka, topic, stranger) == "TOPIC_AUTHORIZATION_FAILED"
    secure_kafka.withdraw("relay", "write", topic)
    assert outcome(secure_kafka, topic, client_settings("SSL")) == "TOPIC_AUTHORIZATION_FAILED"


ABANDON = """
import os, signal
from tests.servers.postgres import PostgresServer
from tests.servers.process import workspace
server = PostgresServer().start()
server.pause()
print(server.pid, workspace(), server.home.parent, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_outlives_tests_that_were_killed() -> None:
    abandoned = subprocess.run(
        [sys.executable, "-c", ABANDON], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert abandoned.returncode == -signal.SIGKILL, abandoned.stderr
    pid, *directories = abandoned.stdout.split()
    eventually(lambda: not descendants({int(pid)}), 30, "the frozen server to be killed")
    eventually(
        lambda: not any(Path(each).exists() for each in directories), 30, "its directories to be removed"
    )


@pytest.mark.parametrize(("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)])
def test_what_a_machine_lacks_skips_a_test_but_not_in_ci(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no engine"):
        lacking("no engine")


def shared_memory() -> set[str]:
    """The pieces that a server of ours takes (System V)."""
    table = Path("/proc/sysvipc/shm")
    return {line.split()[1] for line in table.read_text().splitlines()[1:]} if table.exists() else set()


@pytest.mark.parametrize("paused", [False, True], ids=["running", "frozen"])
def test_a_server_that_is_closed_leaves_no_shared_memory(paused: bool) -> None:
    server = PostgresServer()
    try:
        server.start()
        key = server.data.joinpath("postmaster.pid").read_text().splitlines()[6].split()[1]
        if paused:
            server.pause()
    finally:
        server.close()
    assert key not in shared_memory()
    assert not server.home.exists()


@pytest.mark.parametrize(
    "arguments", [("--version",), ("config", "show"), ("start", "--http", "nonsense"), ("nonsense",)]
)
def test_a_warm_command_ends_as_a_fresh_one_does(arguments: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"CDC_OUTBOX_LOG_FORMAT": "text", "CDC_OUTBOX_SLOT": "from_environment"}
    warm, fresh = (
        run_command(*arguments, env={**environment, **more}, cwd=tmp_path)
        for more in ({}, {"PYTHONUTF8": "1"})
    )
    assert warm.returncode == fresh.returncode
    assert warm.stdout == fresh.stdout
    assert warm.stderr.split()[1:] == fresh.stderr.split()[1:]  # but for the time
    assert warm.stdout or warm.stderr


def test_a_warm_command_ends_when_patience_does(postgres: Postgres, outbox: Database, slot: str) -> None:
    environment = {"CDC_OUTBOX_DSN": outbox.dsn}
    assert run_command("init", "--slot", slot, env=environment).returncode == 0
    with pytest.raises(subprocess.TimeoutExpired):
        run_command("health", "--watch", "--json", "--slot", slot, env=environment, timeout=2)
    watching = "select count(*) from pg_stat_activity where datname = %s and pid <> pg_backend_pid()"
    eventually(lambda: postgres.value(watching, (outbox.name,)) == 0, 30, "its connection to end")


def test_the_writer_knows_what_committed_through_crashes_and_cuts(
    own_postgres: PostgresServer,
    make_proxy: Callable[[str, int], Proxy],
    make_writer: Callable[..., Writer],
) -> None:
    create_outbox(own_postgres.dsn())
    proxy = make_proxy("127.0.0.1", own_postgres.port)
    writer = make_writer(
        own_postgres.dsn(port=proxy.port), rate=None, threads=2, rows_per_transaction=3, rollback_share=0.1
    ).start()
    for harm in (proxy.cut, lambda: own_postgres.stop("immediate"), own_postgres.kill):
        writer.wait_written(200)
        harm()
        if not own_postgres.running:
            own_postgres.start()
    writer.wait_written(200)
    committed = writer.stop()
    in_table = entries_in_table(own_postgres.dsn())
    assert {key: (entry.key, entry.n) for key, entry in committed.items()} == {
        key: (entry.key, entry.n) for key, entry in in_table.items()
    }
    assert writer.failures >= 3
    assert writer.rolled_back


def answered(connection: psycopg.Connection) -> bool:
    # get_result() would wait without releasing the GIL, and the proxy's thread is in this process.
    connection.pgconn.consume_input()
    return not connection.pgconn.is_busy()


def test_the_proxy_freezes_cuts_refuses_and_retargets(
    own_postgres: PostgresServer, make_proxy: Callable[[str, int], Proxy]
) -> None:
    proxy = make_proxy("127.0.0.1", own_postgres.port)
    through = own_postgres.dsn(port=proxy.port)
    with psycopg.connect(through, autocommit=True) as connection:
        proxy.freeze()
        connection.pgconn.send_query(b"select 1")
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(through, connect_timeout=2)
        assert not answered(connection)
        proxy.resume()
        eventually(lambda: answered(connection), PATIENCE, "the answer that was held back")
        result = connection.pgconn.get_result()
        assert result is not None
        assert result.get_value(0, 0) == b"1"
        connection.pgconn.get_result()
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    proxy.refuse_new()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port), 2)
    proxy.resume()
    proxy.retarget(("127.0.0.1", 1))
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(through, connect_timeout=2)
    proxy.retarget(("127.0.0.1", own_postgres.port))
    psycopg.connect(through, connect_timeout=5).close()
    eventually(lambda: proxy.connections == 0, PATIENCE, "closed connections forgotten")
    assert proxy.bytes_to_server > 0


def publish_rows(server: Postgres, dbname: str, bootstrap: str, topic: str) -> None:
    """The simplest relay: what the table holds, in the order of its rows' commits."""
    producer = Producer({"bootstrap.servers": bootstrap})
    rows = server.execute("select id::text, aggregate_id, payload::text from outbox", dbname=dbname)
    for event_id, key, payload in rows:
        producer.produce(topic, payload.encode(), key.encode(), headers=[("id", event_id.encode())])
    producer.flush(20)


def test_the_books_agree_when_everything_arrives(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    make_writer: Callable[..., Writer],
    make_consumer: Callable[..., Consumer],
) -> None:
    kafka.create_topic(outbox_topic, 3)
    writer = make_writer(outbox.dsn)
    ids = writer.write(50, rows_per_transaction=7)
    consumer = make_consumer(kafka.bootstrap, outbox_topic)
    for _ in range(2):
        publish_rows(outbox.server, outbox.name, kafka.bootstrap, outbox_topic)
    consumer.wait_ids(ids)
    consumer.wait_count(100)
    assert len(verify(writer.stop(), consumer.records).duplicates) == 50
    in_order = sorted(consumer.records, key=lambda each: (each.partition, each.offset))
    assert read_all(kafka.bootstrap, outbox_topic) == in_order


def record(event_id: str, n: int, offset: int, *, partition: int = 0) -> Record:
    value = json.dumps({"n": n}).encode()
    return Record("t", partition, offset, b"k", value, (("id", event_id.encode()),), 0, 1)


BOOKS = {"a": Entry("k", 1, 0.0), "b": Entry("k", 2, 0.0)}
A, B = record("a", 1, 0), record("b", 2, 1)


@pytest.mark.parametrize(
    ("records", "complaint"),
    [
        ([A], "1 of 2 missing: b"),
        ([A, B, record("c", 3, 2)], "c at t/0/2 was never written"),
        ([A, B, record("d", 3, 2)], "d at t/0/2 was rolled back"),
        ([replace(A, offset=1), replace(B, offset=0)], "counter 1 at t/0/1 comes after 2 at t/0/0"),
        ([A, replace(B, partition=1)], "key k is in t/0 and at t/1/1"),
        ([A, replace(B, key=b"x")], "has the key 'x', its row 'k'"),
        ([A, replace(B, value=b'{"n": 7}')], "has the counter 7, its row 2"),
    ],
)
def test_the_books_say_what_is_wrong(records: list[Record], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        verify(BOOKS, records, rolled_back={"d"})


def test_a_second_delivery_may_come_after_later_events() -> None:
    assert verify(BOOKS, [A, B, replace(A, offset=2), replace(B, offset=3)]).duplicates == ("a", "b")
