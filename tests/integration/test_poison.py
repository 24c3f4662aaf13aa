"""Rows that can't be published (F16): everything before is published and confirmed, nothing is skipped or overtaken."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Record
from tests.servers.security import client_settings
from tests.servers.wait import eventually

SMALL_TOPIC = {"max.message.bytes": "2000"}
BIG = "BIG" + "x" * 5000


@pytest.fixture(params=["readable", "learnt"])
def limited(request: pytest.FixtureRequest, database: Database, slot: str, topics: str) -> Iterator[Passage]:
    """A cluster whose topic `small` takes 2000 bytes, with and without the right to read that limit."""
    if request.param == "readable":
        broker: Kafka = request.getfixturevalue("kafka")
        passage = Passage(database, broker, slot, topics)
    else:
        secure: KafkaBroker = request.getfixturevalue("secure_kafka")
        passage = Passage(
            *(database, secure, slot, topics),
            bootstrap=secure.address("SASL_PLAINTEXT"),
            client=client_settings("SASL_PLAINTEXT", "PLAIN"),
        )
        secure.allow("relay", "write", f"{topics}small")
    passage.topic("small", 2, SMALL_TOPIC)
    yield passage.table()
    if request.param == "learnt":
        secure.withdraw("relay", "write", f"{topics}small")


def of(key: str, records: list[Record]) -> list[str]:
    return [text[:3] for text in payloads([record for record in records if record.key == key.encode()])]


# By murmur2, `a` and `c` share a partition of two, and `b` has the other.
NEIGHBOURS = ("a", "c", "b")


def test_an_oversized_record_among_small_ones(limited: Passage) -> None:
    topic = f"{limited.topics}small"
    limited.insert(topic, ("a", "a1"), ("b", "b1"), ("c", "c1"))
    limited.insert(topic, ("a", "a2"), ("c", "c2"), ("a", BIG), ("a", "a4"), ("c", "c3"), ("b", "b2"))
    limited.insert(topic, *((key, f"{key}{n}") for n in range(5, 9) for key in NEIGHBOURS))

    error, remedy = last_words(limited.run(code=70))
    assert "event 6 " in error
    assert "max.message.bytes" in error
    assert f"raise max.message.bytes of topic {topic}" in remedy
    assert "or send only rows in which a column has a value, by --only" in remedy
    records = limited.read(topic)
    assert (of("a", records), of("c", records)) == (["a1", "a2"], ["c1", "c2"])
    # Rows for other partitions may have left before the broker refused this one; in their order, each once.
    assert of("b", records) == ["b1", "b2", "b5", "b6", "b7", "b8"][: len(of("b", records))]
    assert "b1" in of("b", records)

    # The first transaction was confirmed. What shared that of the poison comes again with each restart.
    limited.run(code=70)
    again = limited.read(topic)
    assert (of("a", again), of("c", again)) == (["a1", "a2", "a2"], ["c1", "c2", "c2"])

    limited.kafka.configure_topic(topic, {"max.message.bytes": None})
    limited.run()
    records = limited.read(topic)
    assert of("a", records)[-7:] == ["a2", "BIG", "a4", "a5", "a6", "a7", "a8"]
    assert of("c", records)[-6:] == ["c2", "c3", "c5", "c6", "c7", "c8"]
    assert list(dict.fromkeys(of("b", records))) == ["b1", "b2", "b5", "b6", "b7", "b8"]


@pytest.mark.parametrize("limited", ["learnt"], indirect=True)
def test_poison_with_which_a_session_begins_goes_alone_and_is_named(limited: Passage) -> None:
    """Its topic is looked up first then, and the row behind it has to wait all the same."""
    topic = f"{limited.topics}small"
    limited.insert(topic, ("a", BIG), ("c", "c2"))
    for _ in range(2):
        error, _ = last_words(limited.run(code=70))
        assert "event 1 " in error
    assert limited.read(topic) == []

    limited.kafka.configure_topic(topic, {"max.message.bytes": None})
    limited.run()
    assert [text[:3] for text in payloads(limited.read(topic))] == ["BIG", "c2"]


def test_a_batch_too_large_of_legal_records(limited: Passage) -> None:
    topic = f"{limited.topics}small"
    for start in range(0, 600, 200):
        limited.insert(topic, *(("a", f"{n:03}" + "x" * 300) for n in range(start, start + 200)))
    done = limited.run()
    assert of("a", limited.read(topic)) == [f"{n:03}" for n in range(600)]
    refused = [line for line in done.stderr.splitlines() if "refused a batch" in line]
    learnt = limited.bootstrap is not None
    assert bool(refused) is learnt, done.stderr


@pytest.mark.parametrize("limited", ["learnt"], indirect=True)
def test_halving_makes_no_duplicates_elsewhere(limited: Passage) -> None:
    topic = f"{limited.topics}small"
    rows = [(key, f"{n:03}" + "x" * 200) for n in range(150) for key in NEIGHBOURS]
    limited.insert(topic, *rows)
    limited.run()
    records = limited.read(topic)
    for key in NEIGHBOURS:
        assert of(key, records) == [f"{n:03}" for n in range(150)]


def test_a_record_over_the_clients_own_limit(passage: Passage) -> None:
    topic = passage.topic("own")
    passage.table()
    passage.insert(topic, ("a", "a1"))
    passage.insert(topic, ("a", "a2"), ("a", BIG), ("a", "a4"))
    error, remedy = last_words(passage.run("--kafka", "max.request.size=4000", code=70))
    assert "event 3 " in error
    assert "max.request.size is 4000" in error
    assert "raise max.request.size" in remedy
    assert payloads(passage.read(topic)) == ["a1", "a2"]
    passage.run()
    assert of("a", passage.read(topic)) == ["a1", "a2", "a2", "BIG", "a4"]


ROW = {"aggregate_type": "order", "aggregate_id": "k", "event_type": "t", "payload": "{}"}


@pytest.mark.parametrize(
    ("columns", "row", "flags", "complaint"),
    [
        ({}, {"topic": "no such/name"}, [], "topic name 'no such/name' is illegal"),
        ({}, {"topic": None, "aggregate_type": ""}, [], "it has no topic"),
        ({}, {"aggregate_id": None}, [], "aggregate_id"),
        ({"headers": "jsonb"}, {"headers": "[1]"}, [], "headers"),
        ({"shard": "int"}, {"shard": 5}, ["--column", "partition=shard"], "partition 5"),
        ({"available_at": "timestamptz"}, {"available_at": "2999-01-01"}, [], "available_at"),
        ({}, {"payload": "{}"}, ["--key", "payload:/id"], "payload:/id"),
    ],
    ids=["illegal topic", "no topic", "no key", "headers", "partition", "scheduled", "no member"],
)
def test_kinds_of_poison(
    passage: Passage, columns: dict[str, str], row: dict[str, object], flags: list[str], complaint: str
) -> None:
    topic = passage.topic("events", 3)
    passage.sql(
        "create table outbox (id uuid primary key, topic text, aggregate_type text, aggregate_id text,"
        " event_type text, payload json" + "".join(f", {name} {kind}" for name, kind in columns.items()) + ")"
    )
    passage.init()

    def insert(cells: dict[str, object]) -> tuple[str, tuple[object, ...]]:
        cells = {"id": str(uuid.uuid4()), "topic": topic, **ROW, **cells}
        names, marks = ", ".join(cells), ", ".join("%s" for _ in cells)
        return f"insert into outbox ({names}) values ({marks})", tuple(cells.values())

    good: dict[str, object] = {"payload": '{"id": 1}'}
    [(before_commit,)] = passage.transaction(insert(good), "select pg_current_wal_insert_lsn()::text")
    poison = insert({"id": "00000000-0000-4000-8000-000000000bad", **row})
    passage.transaction(insert(good), poison, insert(good))
    passage.transaction(insert(good))
    run = passage.run(*flags, code=70)
    error, remedy = last_words(run)
    assert "event 00000000-0000-4000-8000-000000000bad" in error
    assert complaint in error
    assert remedy
    assert len(passage.read(topic)) == 2
    # Everything before is confirmed, but not the row that shares its transaction.
    assert passage.confirmed() > LSN.parse(before_commit)
    assert json.loads(run.stderr.splitlines()[-1])["level"] == "error"


def test_a_compacted_topic_takes_nothing_without_a_key(passage: Passage) -> None:
    topic = passage.topic("compacted", 1, {"cleanup.policy": "compact"})
    passage.sql("create table outbox (id serial, topic text, payload text)")
    passage.init()
    passage.sql("insert into outbox (topic, payload) values (%s, '1')", topic)
    error, _ = last_words(passage.run("--key", "none", code=70))
    assert "event 1 " in error
    assert "without a key" in error


def test_a_timestamp_that_the_topic_refuses(passage: Passage) -> None:
    topic = passage.topic("fresh", 1, {"message.timestamp.before.max.ms": "3600000"})
    passage.sql("create table outbox (id serial, aggregate_id text, payload text, at timestamptz)")
    passage.init()
    passage.transaction(
        "insert into outbox (aggregate_id, payload, at) values ('k', '1', now()), ('k', '2', now())",
        "insert into outbox (aggregate_id, payload, at) values ('k', '3', '2001-01-01'), ('k', '4', now())",
    )
    error, _ = last_words(passage.run("--topic", topic, "--column", "timestamp=at", code=70))
    assert "event 3 " in error
    assert "timestamp" in error
    assert payloads(passage.read(topic)) == ["1", "2"]


def test_block_keeps_the_process_and_goes_on_when_the_limit_is_raised(limited: Passage) -> None:
    topic = f"{limited.topics}small"
    with limited.relay("--on-poison", "block", env={"CDC_OUTBOX_FAULT_BLOCKED_FOR": "0.5"}) as relay:
        relay.wait_state("streaming")
        limited.insert(topic, ("a", "a1"), ("b", "b1"))
        eventually(lambda: len(limited.read(topic)) == 2, 60, "the first transaction")
        limited.insert(topic, ("a", "a2"), ("a", BIG), ("a", "a4"), ("b", "b2"))
        relay.wait_state("blocked")
        held = limited.confirmed()
        code, body = relay.get("/readyz")
        assert (code, json.loads(body)["state"]) == (503, "blocked")
        assert "event 4 " in json.loads(body)["reason"]
        assert relay.get("/livez")[0] == 200
        limited.insert(topic, ("a", "a5"), ("b", "b5"))
        # It is tried again and again, and the state stays.
        tries: set[object] = set()

        def tried() -> bool:
            assert relay.state() == "blocked"
            tries.update(
                limited.sql("select active_pid from pg_replication_slots where slot_name = %s", limited.slot)
            )
            return len(tries - {(None,)}) > 3

        eventually(tried, 60, "several sessions")
        assert limited.confirmed() == held
        assert not [
            text for key in "ab" for text in of(key, limited.read(topic)) if text in {"a4", "a5", "b5"}
        ]
        limited.kafka.configure_topic(topic, {"max.message.bytes": None})
        relay.wait_state("streaming")
        eventually(lambda: "b5" in of("b", limited.read(topic)), 60, "what comes after it")
        assert relay.terminate()[0] == 0
        assert len([record for record in relay.records if record.get("event") == "blocked"]) == 1
    limited.run()
    records = limited.read(topic)
    assert (of("a", records), of("b", records)) == (["a1", "a2", "BIG", "a4", "a5"], ["b1", "b2", "b5"])


def test_a_blocked_relay_stops_when_told(passage: Passage) -> None:
    topic = passage.topic("events")
    passage.table()
    passage.insert(topic, ("a", "a1"))
    passage.insert(topic, (None, "a2"))
    with passage.relay("--on-poison", "block") as relay:
        relay.wait_state("blocked")
        code, seconds = relay.terminate()
    assert code == 0
    assert seconds < 10
    assert payloads(passage.read(topic)) == ["a1"]


def test_poison_waits_for_what_comes_before_it(
    database: Database, own_kafka: KafkaBroker, slot: str, topics: str
) -> None:
    passage = Passage(database, own_kafka, slot, topics)
    topic = passage.topic("events")
    passage.table()
    with passage.relay(env={"CDC_OUTBOX_LIMITS_DRAIN": "1s"}) as relay:
        passage.insert(topic, ("a", "a1"))
        relay.wait_state("streaming")
        eventually(lambda: len(passage.read(topic)) == 1, 60, "the first event")
        own_kafka.pause()
        passage.insert(topic, ("a", "a2"))
        passage.insert(topic, (None, "a3"))
        relay.wait_for(lambda record: "can't be published" in record.get("error", ""), 60)
        assert relay.running
        own_kafka.resume()
        assert relay.wait(60) == 70
    assert payloads(passage.read(topic))[-1] == "a2"
