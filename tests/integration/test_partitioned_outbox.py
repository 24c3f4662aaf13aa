"""A partitioned outbox: its rows are ours under whatever name the publication sends them.

The root's name is what `init` asks for. A publication that doesn't for a moment sends rows under their partition's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka
from tests.servers.postgres import PostgresServer
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE, eventually

BY_LEAF = "alter publication outbox_pub set (publish_via_partition_root = false)"
BY_ROOT = "alter publication outbox_pub set (publish_via_partition_root = true)"


def insert(text: str, day: int, table: str = "outbox") -> str:
    return f"insert into {table} (aggregate_id, payload, day) values ('k', '{text}', {day})"


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    """Days 0 to 9 are in a partition of a partition, later ones in one whose columns have another order."""
    return outbox_of(Passage(database, kafka, slot, topics))


def outbox_of(passage: Passage) -> Passage:
    """Make the table, its topic, publication and slot."""
    passage.transaction(
        "create table outbox (id bigserial, aggregate_id text, payload text, day int) partition by range (day)",
        "create table early partition of outbox for values from (0) to (10) partition by range (day)",
        "create table earliest partition of early for values from (0) to (10)",
        "create table late (day int, payload text, aggregate_id text, id bigserial)",
        "alter table outbox attach partition late for values from (10) to (20)",
    )
    passage.topic("events")
    return passage.init()


def test_rows_that_came_under_their_partitions_name_while_the_relay_was_away(passage: Passage) -> None:
    flags = ("--topic", f"{passage.topics}events")
    passage.sql(insert("0", 1))
    passage.run(*flags)
    passage.sql(BY_LEAF)
    passage.sql(insert("1", 1))
    passage.sql(insert("2", 11))
    passage.sql(insert("3", 1, "earliest"))
    passage.sql(BY_ROOT)
    passage.sql(insert("4", 1))
    passage.run(*flags)
    assert payloads(passage.read(f"{passage.topics}events")) == ["0", "1", "2", "3", "4"]


def test_rows_that_came_under_their_partitions_name_between_two_looks_of_the_guard(passage: Passage) -> None:
    """It sees a publication that was altered, and nothing wrong with it."""
    topic = f"{passage.topics}events"
    with passage.relay("--topic", topic) as relay:
        passage.sql(insert("0", 1))
        eventually(lambda: payloads(passage.read(topic)) == ["0"], 60, relay.text)
        passage.transaction(
            insert("1", 1), BY_LEAF, insert("2", 1), insert("3", 11), BY_ROOT, insert("4", 11)
        )
        eventually(lambda: len(passage.read(topic)) == 5, 60, relay.text)
        relay.wait_for(lambda record: record.get("event") == "incident", 60)
        assert relay.state() == "streaming"
        assert relay.terminate()[0] == 0
    assert payloads(passage.read(topic)) == ["0", "1", "2", "3", "4"]


def test_rows_that_came_under_the_name_of_a_partition_made_meanwhile(passage: Passage) -> None:
    """The session began before there was that partition, so the server is asked whose it is."""
    topic = f"{passage.topics}events"
    with passage.relay("--topic", topic) as relay:
        passage.sql(insert("0", 1))
        eventually(lambda: payloads(passage.read(topic)) == ["0"], 60, relay.text)
        passage.transaction(
            *("create table newest partition of outbox for values from (20) to (30)", BY_LEAF),
            *(insert("1", 21), insert("2", 1), BY_ROOT, insert("3", 21)),
        )
        eventually(lambda: "1" in payloads(passage.read(topic)), 60, relay.text)
        passage.sql(insert("4", 21))
        eventually(lambda: len(passage.read(topic)) == 5, 60, relay.text)
        assert relay.terminate()[0] == 0
    assert payloads(passage.read(topic)) == ["0", "1", "2", "3", "4"]


def test_rows_of_a_partition_whose_making_nobody_is_shown_yet(
    make_postgres: Callable[..., PostgresServer], kafka: Kafka, slot: str, topics: str
) -> None:
    """Its commit is on disk, and so in the stream, and waits for a synchronous standby."""
    server = make_postgres(settings={"synchronous_standby_names": "nobody", "synchronous_commit": "local"})
    server.create_database("app")
    passage = outbox_of(Passage(Database(server, "app"), kafka, slot, topics))
    topic = f"{passage.topics}events"
    with passage.relay("--topic", topic) as relay, ThreadPoolExecutor(1) as application:
        passage.sql(insert("0", 1))
        eventually(lambda: payloads(passage.read(topic)) == ["0"], PATIENCE, relay.text)
        committed = application.submit(
            passage.transaction,
            *("set local synchronous_commit = on", BY_LEAF),
            *("create table newest partition of outbox for values from (20) to (30)",),
            *(insert("1", 1), insert("2", 21), BY_ROOT, insert("3", 21)),
        )
        try:
            eventually(lambda: "1" in payloads(passage.read(topic)), PATIENCE, relay.text)
            assert not committed.done()
        finally:
            server.reload({"synchronous_standby_names": ""})
        committed.result(PATIENCE)
        passage.sql(insert("4", 21))
        eventually(lambda: len(passage.read(topic)) == 5, PATIENCE, relay.text)
        assert relay.terminate()[0] == 0
    assert payloads(passage.read(topic)) == ["0", "1", "2", "3", "4"]


def test_a_partition_that_is_locked_keeps_no_start_waiting(passage: Passage, database: Database) -> None:
    """As by VACUUM FULL of an old one, which may take its time."""
    passage.sql(insert("0", 11))
    with psycopg.connect(database.dsn) as keeper:
        keeper.execute("lock table earliest in access exclusive mode")
        passage.run("--topic", f"{passage.topics}events")
    assert payloads(passage.read(f"{passage.topics}events")) == ["0"]


@pytest.mark.usefixtures("postgres_version")
def test_a_partition_that_the_publication_names_too_is_no_other_table(passage: Passage) -> None:
    """Its rows bear the root's name all the same, and none of them is passed over."""
    passage.sql("alter publication outbox_pub add table late")
    passage.sql("alter publication outbox_pub add table earliest")
    flags = ("--topic", f"{passage.topics}events")
    for slot in (passage.slot, f"{passage.slot}_2"):
        done = run_command("init", "--slot", slot, env=passage.environment)
        assert done.returncode == 0, done.stderr
    for number, day in enumerate((1, 11)):
        passage.sql(insert(str(number), day))
    passage.run(*flags)
    assert payloads(passage.read(f"{passage.topics}events")) == ["0", "1"]
    passage.sql(BY_LEAF)
    _, remedy = last_words(passage.run(*flags, code=78))
    assert "publish_via_partition_root = true" in remedy
