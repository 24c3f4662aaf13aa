"""The fixtures do what their names say; everything else in this directory stands on them."""

from __future__ import annotations

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.postgres import Postgres, PostgresServer


def test_every_version_has_logical_replication(postgres_version: Postgres, database: Database) -> None:
    assert postgres_version.value("show wal_level") == "logical"
    assert database.server is postgres_version


def test_leftover_slots_go_with_their_database(postgres: Postgres, slot: str) -> None:
    dsn = postgres.create_database("leftover")
    assert dsn.endswith("/leftover")
    postgres.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,), dbname="leftover")
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
