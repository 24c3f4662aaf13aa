"""What `doctor` says of Kafka's side, each failure made for real."""

from __future__ import annotations

import json
from contextlib import closing

import pytest

from tests.integration.consultation import ROW, Doctor, as_relay, doctor
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.relay import RelayProcess
from tests.servers.security import USERS, client_settings

__all__ = ["as_relay", "doctor"]


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


def test_a_topic_for_all_rows_is_looked_at_without_a_mapping(doctor: Doctor, topics: str) -> None:
    doctor.execute("create table outbox (id int primary key, payload jsonb)")
    checks = doctor.look("--topic", f"{topics}all", code=78)
    assert checks["postgres.mapping"]["status"] == "failed"
    assert f"the cluster has no topic {topics}all" in checks["kafka.topics"]["message"]


@pytest.mark.parametrize(("policy", "code"), [("hold", 1), ("poison", 78)])
def test_topics_that_rows_name(
    doctor: Doctor, kafka: Kafka, outbox_topic: str, aggregate_type: str, policy: str, code: int
) -> None:
    doctor.init("--create-table")
    doctor.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    check = doctor.look(code=code, CDC_OUTBOX_KAFKA_UNKNOWN_TOPIC=policy)["kafka.topics"]
    assert check["status"] == "failed"
    assert outbox_topic in check["message"]
    assert ("poison" in check["message"]) == (policy == "poison")
    assert outbox_topic not in kafka.topics()
    assert doctor.look("--create-topics")["kafka.topics"]["status"] == "ok"


def test_a_topic_of_rows_that_only_the_slot_shows(
    as_relay: Doctor, kafka: Kafka, outbox_topic: str, aggregate_type: str
) -> None:
    """The relay's role need not read the table; what waits in the slot is shown to it all the same."""
    as_relay.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    checks = as_relay.look(code=1)
    assert "may not read" in checks["postgres.rows"]["message"]
    assert checks["postgres.waiting"]["message"] == "1 row waits in the slot"
    assert f"the cluster has no topic {outbox_topic}" in checks["kafka.topics"]["message"]
    dsn, bootstrap = as_relay.environment["CDC_OUTBOX_DSN"], kafka.bootstrap
    with closing(RelayProcess(dsn, bootstrap, slot=as_relay.slot)) as relay:
        relay.wait_state("held")
        at = ("--http", f"127.0.0.1:{relay.http_port}")
        checks = as_relay.look(*at, code=1)
        assert "a relay has the slot" in checks["postgres.waiting"]["message"]
        running = checks["relay.running"]
        assert f"is held: the cluster has no topic {outbox_topic}" in running["message"]
        kafka.create_topic(outbox_topic)
        relay.wait_state("streaming")
        assert as_relay.look(*at)["relay.running"]["message"] == "the relay that runs here is streaming"
        assert relay.terminate()[0] == 0
    assert as_relay.look()["postgres.waiting"]["message"] == "no rows wait in the slot"


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
    assert (
        f"--command-config FILE --add --allow-principal User:relay --producer --topic {topic}"
        in hidden["remedy"]
    )
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
