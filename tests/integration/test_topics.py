"""Topics that aren't there, that go and come back, that grow: held, named, and never made by accident."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    ConfigResource,
    ResourceType,
)

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.kafka import publisher as publisher_module
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.publisher import Deliveries
from cdc_outbox.settings import load
from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.security import client_settings
from tests.servers.wait import eventually


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    return Passage(database, kafka, slot, topics).table()


def creation(passage: Passage, topic: str) -> str:
    """The step that makes a topic."""
    where = f"--bootstrap-server {passage.kafka.bootstrap}"
    return (
        f"kafka-topics.sh {where} --create --topic {topic} --partitions 12; or have it made: --create-topics"
    )


def test_an_unknown_topic_is_waited_for(passage: Passage) -> None:
    known, unknown = passage.topic("known"), f"{passage.topics}unknown"
    with passage.relay() as relay:
        relay.wait_state("streaming")
        passage.insert(known, ("a", "1"))
        passage.insert(unknown, ("a", "2"))
        passage.insert(known, ("a", "3"))
        relay.wait_state("held")
        said = relay.wait_for(lambda record: record.get("event") == "held")
        assert said["error"] == f"the cluster has no topic {unknown}"
        assert said["next"] == creation(passage, unknown)
        code, body = relay.get("/readyz")
        assert (code, unknown in json.loads(body)["reason"]) == (503, True)
        eventually(lambda: payloads(passage.read(known)) == ["1"], 60, relay.text)
        assert unknown not in passage.kafka.topics()
        passage.kafka.create_topic(unknown)
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(known)) == ["1", "3"], 60, relay.text)
        assert relay.terminate()[0] == 0
        assert len([record for record in relay.records if record.get("event") == "held"]) == 1
    assert payloads(passage.read(unknown)) == ["2"]


def test_a_stop_while_a_topic_is_awaited(passage: Passage) -> None:
    known, unknown = passage.topic("known"), f"{passage.topics}unknown"
    with passage.relay() as relay:
        relay.wait_state("streaming")
        passage.insert(known, ("a", "1"))
        passage.insert(known, ("a", "2"))
        passage.insert(unknown, ("a", "3"), ("a", "4"))
        relay.wait_state("held")
        code, seconds = relay.terminate()
        assert (code, seconds < 10) == (0, True), f"{code} after {seconds:.1f} s\n{relay.text()}"
    passage.kafka.create_topic(unknown)
    passage.run()
    assert payloads(passage.read(known)) == ["1", "2"]
    assert payloads(passage.read(unknown)) == ["3", "4"]


def test_an_unknown_topic_can_be_poison(passage: Passage) -> None:
    known, unknown = passage.topic("known"), f"{passage.topics}unknown"
    passage.insert(known, ("a", "1"))
    passage.insert(unknown, ("a", "2"))
    passage.insert(known, ("a", "3"))
    error, remedy = last_words(passage.run(env={"CDC_OUTBOX_KAFKA_UNKNOWN_TOPIC": "poison"}, code=70))
    assert "event 2 at" in error
    assert f"the cluster has no topic {unknown}" in error
    assert remedy.startswith(f"{creation(passage, unknown)}; each way out")
    assert payloads(passage.read(known)) == ["1"]
    assert unknown not in passage.kafka.topics()


def test_topics_are_created_where_that_is_asked_for(passage: Passage) -> None:
    first, second = f"{passage.topics}first", f"{passage.topics}second"
    passage.insert(first, *(("a", str(n)) for n in range(5)))
    passage.insert(second, ("a", "x"))
    passage.run("--create-topics", env={"CDC_OUTBOX_KAFKA_TOPICS_PARTITIONS": "3"})
    assert payloads(passage.read(first)) == ["0", "1", "2", "3", "4"]
    assert payloads(passage.read(second)) == ["x"]
    assert passage.kafka.topics()[first] == 3


def test_topics_are_created_as_configured(passage: Passage, tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(
        "[kafka.topics]\ncreate = true\npartitions = 2\nreplication_factor = 1\n"
        '[kafka.topics.config]\n"cleanup.policy" = "compact"\n"max.message.bytes" = "5000"\n'
    )
    topic = f"{passage.topics}configured"
    passage.insert(topic, ("a", "1"))
    passage.run("--config", str(file))
    admin = passage.kafka.admin()
    [described] = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    config = {name: entry.value for name, entry in described.result(20).items()}
    assert (config["cleanup.policy"], config["max.message.bytes"]) == ("compact", "5000")
    assert passage.kafka.topics()[topic] == 2


def test_creation_takes_a_right(
    database: Database, secure_kafka: KafkaBroker, slot: str, topics: str
) -> None:
    passage = Passage(
        *(database, secure_kafka, slot, topics),
        bootstrap=secure_kafka.address("SASL_PLAINTEXT"),
        client=client_settings("SASL_PLAINTEXT", "PLAIN"),
    ).table()
    topic = f"{topics}new"
    secure_kafka.allow("relay", "write", topic)
    passage.insert(topic, ("a", "1"))
    with passage.relay("--create-topics") as relay:
        said = relay.wait_for(lambda record: record.get("event") == "held", 60)
        assert f"topic {topic} can't be created" in said["error"]
        secure_kafka.allow("relay", "create", topic)
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(topic)) == ["1"], 60, relay.text)


def test_a_topic_that_cant_be_created_is_held(passage: Passage) -> None:
    passage.insert(f"{passage.topics}wide", ("a", "1"))
    with passage.relay("--create-topics", env={"CDC_OUTBOX_KAFKA_TOPICS_REPLICATION_FACTOR": "3"}) as relay:
        relay.wait_state("held")
        said = relay.wait_for(lambda record: record.get("event") == "held")
        assert "can't be created" in said["error"]
        assert "replication" in said["error"].lower()
        passage.topic("wide")
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(f"{passage.topics}wide")) == ["1"], 60, relay.text)


def test_a_fixed_topic_that_is_missing_at_start(passage: Passage) -> None:
    error, remedy = last_words(passage.run("--topic", f"{passage.topics}fixed", code=78))
    assert error == f"the cluster has no topic {passage.topics}fixed"
    assert remedy == creation(passage, f"{passage.topics}fixed")


def test_a_topic_deleted_and_made_again(
    database: Database, make_kafka: Callable[..., KafkaBroker], slot: str, topics: str
) -> None:
    broker = make_kafka(settings={"auto.create.topics.enable": "true"})
    passage = Passage(database, broker, slot, topics).table()
    topic, other = passage.topic("deleted", 3), passage.topic("other")
    with passage.relay("--kafka", "metadata.max.age.ms=1000") as relay:
        passage.insert(topic, ("a", "1"), ("b", "1"))
        relay.wait_state("streaming")
        eventually(lambda: len(passage.read(topic)) == 2, 60, relay.text)
        broker.delete_topic(topic)
        for n in range(2, 6):
            passage.insert(topic, ("a", str(n)), ("b", str(n)))
        passage.insert(other, ("a", "later"))
        relay.wait_state("held")
        eventually(lambda: "no topic" in json.loads(relay.get("/readyz")[1])["reason"], 60, relay.text)
        # Nobody makes it, however often the relay asks; the broker would, for others.
        looks = [topic in broker.topics() for _ in range(30)]
        assert not any(looks)
        assert relay.state() == "held"
        Producer({"bootstrap.servers": broker.bootstrap}).list_topics("made-by-name", timeout=10)
        eventually(lambda: "made-by-name" in broker.topics(), 20, "a topic made by its name")
        assert topic not in broker.topics()
        passage.insert(topic, ("a", "6"))
        broker.create_topic(topic, 2)
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(other)) == ["later"], 60, relay.text)
        eventually(lambda: len(passage.read(topic)) >= 9, 60, relay.text)
        assert relay.terminate()[0] == 0
    records = passage.read(topic)
    for key, last in ((b"a", 7), (b"b", 6)):
        seen = list(dict.fromkeys(payloads([record for record in records if record.key == key])))
        assert seen[-(last - 2) :] == [str(n) for n in range(2, last)]


def test_partitions_that_are_added_are_noticed(passage: Passage) -> None:
    topic = passage.topic("growing", 1)
    with passage.relay("--kafka", "metadata.max.age.ms=1000") as relay:
        relay.wait_state("streaming")
        for n in range(20):
            passage.insert(topic, *((key, f"{n}") for key in "abcdef"))
        eventually(lambda: len(passage.read(topic)) == 120, 60, relay.text)
        passage.kafka.create_partitions(topic, 4)
        said = relay.wait_for(lambda record: "4 partitions instead of 1" in str(record.get("error")), 60)
        assert said["level"] == "warning"
        relay.wait_state("streaming")
        for n in range(20, 40):
            passage.insert(topic, *((key, f"{n}") for key in "abcdef"))
        eventually(
            lambda: {record.partition for record in passage.read(topic)} == {0, 1, 2, 3}, 60, relay.text
        )
        assert relay.terminate()[0] == 0
    records = passage.read(topic)
    for key in "abcdef":
        mine = [record for record in records if record.key == key.encode()]
        homes = {record.partition for record in mine if int(payloads([record])[0]) >= 20}
        assert len(homes) == 1
        # First in its old partition, then in its new one: in both in order.
        old = [int(text) for text in payloads([record for record in mine if record.partition == 0])]
        new = [int(text) for text in payloads([record for record in mine if record.partition in homes])]
        assert list(dict.fromkeys(old))[:20] == [*range(20)]
        assert list(dict.fromkeys(new))[-20:] == [*range(20, 40)]


def test_added_partitions_are_seen_before_the_next_batch(
    kafka: Kafka, topics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as the client knows of them: a key that has moved doesn't go to its old partition any more."""
    monkeypatch.setattr(publisher_module, "WATCH", 1000.0)
    topic = f"{topics}growing"
    kafka.create_topic(topic, 1)
    settings = load("start", {}, {"CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap}, Path.cwd()).kafka

    async def run() -> CdcOutboxError:
        ledger = Ledger()
        publisher = KafkaPublisher(settings, ledger, Deliveries())
        await publisher.start()
        try:
            await publisher.prepare(topic)
            publisher.publish((topic, None, b"a", b"1", 0, []), 100, 0)
            await publisher.settled()
            await asyncio.to_thread(kafka.create_partitions, topic, 4)
            async with asyncio.timeout(30):
                known = publisher._producer.client
                while len(known.cluster.partitions_for_topic(topic) or ()) < 4:
                    await known.force_metadata_update()  # type: ignore[no-untyped-call]  # aiokafka has no types
                publisher.publish((topic, None, b"a", b"2", 0, []), 200, 0)
                publisher.flush()
                return await publisher.failed
        finally:
            await publisher.stop(within=5)

    assert f"topic {topic} has 4 partitions instead of 1" in str(asyncio.run(run()))
    assert payloads(read_all(kafka.bootstrap, topic)) == ["1"]


def test_added_partitions_can_end_the_relay(passage: Passage) -> None:
    topic = passage.topic("growing", 1)
    environment = {"CDC_OUTBOX_KAFKA_ON_PARTITION_CHANGE": "stop"}
    with passage.relay("--kafka", "metadata.max.age.ms=1000", env=environment) as relay:
        relay.wait_state("streaming")
        passage.insert(topic, ("a", "1"))
        eventually(lambda: len(passage.read(topic)) == 1, 60, relay.text)
        passage.kafka.create_partitions(topic, 2)
        assert relay.wait(60) == 78
        assert "2 partitions instead of 1" in relay.records[-1]["error"]
    passage.insert(topic, ("a", "2"))
    passage.run()
    assert sorted(payloads(passage.read(topic))) == ["1", "2"]
