"""The blocks of `docs/how-to/write-events.md` and `docs/how-to/consume-once.md`, run as they stand there.

Only the address of the broker and the topic are those of the test.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from psycopg.conninfo import conninfo_to_dict

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.process import Process
from tests.servers.relay import clean_environment
from tests.servers.shell import blocks
from tests.servers.wait import eventually

PAGES = {
    name: (CHECKOUT / "docs" / "how-to" / f"{name}.md").read_text()
    for name in ("write-events", "consume-once")
}
BLOCKS = {name: blocks(page) for name, page in PAGES.items()}
WRITE, CONSUME = BLOCKS["write-events"], BLOCKS["consume-once"]

WRITERS = ["psycopg", "psycopg-async", "asyncpg", "sqlalchemy", "sqlalchemy-async", "django"]
LOOPS = ["psycopg", "asyncpg"]
FUNCTIONS = ["sqlalchemy", "django"]

TWICE = """

class Message:
    def headers(self):
        return [("id", b"17")]

    def key(self):
        return b"7"


apply(Message())
apply(Message())
"""


def test_each_block_is_marked_and_has_a_test() -> None:
    assert [*WRITE] == ["tables", *WRITERS, "many", "own-table", "own"]
    assert [*CONSUME] == ["create", *LOOPS, *FUNCTIONS, "sql", "cleanup"]
    for name, page in PAGES.items():
        assert sum(line.lstrip().startswith("```") for line in page.splitlines()) == 2 * len(BLOCKS[name])


class Pages:
    """A database, and scripts that find it as the pages say, by libpq's variables."""

    def __init__(self, database: Database) -> None:
        self.database = database
        parts = {name: str(value) for name, value in conninfo_to_dict(database.dsn).items()}
        names = {"dbname": "DATABASE", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
        self.environment = clean_environment({f"PG{names[name]}": value for name, value in parts.items()})

    def command(self, block: str) -> list[str]:
        """Python on a block, and an error where it gives cause for a warning."""
        return [
            sys.executable,
            "-W",
            "error",
            "-c",
            block.replace('"NAME": "shop"', f'"NAME": "{self.database.name}"'),
        ]

    def run(self, *command: str) -> None:
        """Run a command to its end, which has to be a good one."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr

    def sql(self, statements: str) -> None:
        with psycopg.connect(self.database.dsn) as connection:
            connection.execute(statements.encode())

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.dsn) as connection:
            return connection.execute(query.encode()).fetchall()


@pytest.fixture
def pages(outbox: Database) -> Pages:
    return Pages(outbox)


def test_writing(pages: Pages) -> None:
    pages.sql(WRITE["tables"])
    for name in WRITERS:
        pages.run(*pages.command(WRITE[name]))
    written = "select aggregate_type, aggregate_id, event_type, payload->>'total' from outbox order by created_at, ctid"
    expected = [("order", str(number), "OrderPlaced", "12.5") for number in range(1, len(WRITERS) + 1)]
    assert pages.ask(written) == expected
    assert pages.ask("select count(*) from orders where total = 12.5") == [(len(WRITERS),)]

    pages.run(*pages.command(WRITE["many"]))
    assert pages.ask(written)[-2:] == [
        ("order", "7", "OrderPlaced", "12.5"),
        ("order", "7", "OrderPaid", "12.5"),
    ]

    pages.sql(WRITE["own-table"])
    pages.run(*pages.command(WRITE["own"]))
    [row] = pages.ask("select id, topic, order_id, body::text, tenant from shop.events")
    assert row == (1, "orders", 7, '{"total":12.5}', "north")


@pytest.fixture
def billing(pages: Pages) -> Pages:
    """With the inbox, made as the page says, and the table that the consumers write."""
    pages.environment["PATH"] = f"{Path(sys.executable).parent}:{pages.environment['PATH']}"
    pages.run("bash", "-ec", CONSUME["create"])
    pages.sql("create table invoices (order_id text)")
    return pages


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_applies_an_event_once(name: str, billing: Pages) -> None:
    billing.run(*billing.command(CONSUME[name] + TWICE))
    assert billing.ask("select order_id from invoices") == [("7",)]
    assert billing.ask("select consumer, event_id from cdc_outbox_inbox") == [("billing", "17")]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_applies_each_event_once(
    name: str, billing: Pages, kafka: Kafka, topics: str, tmp_path: Path, processes: list[Process]
) -> None:
    topic, group = f"{topics}order", f"{topics}billing"
    kafka.create_topic(topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for id_, key in (("1", "a"), ("1", "a"), ("2", "b"), ("1", "a"), ("3", "c")):
        producer.produce(topic, "{}", key, headers={"id": id_})
    assert producer.flush(30) == 0
    block = CONSUME[name].replace("outbox.event.order", topic).replace("localhost:9092", kafka.bootstrap)
    block = re.sub(r'(group.id"?[:=] ?)"billing"', rf'\1"{group}"', block)
    log = tmp_path / "log"
    process = Process(billing.command(block), env=billing.environment, log=log)
    processes.append(process)

    observer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
    try:

        def done() -> bool:
            assert process.running, log.read_text()
            return committed(observer, topic) == 5

        eventually(done, 60, log.read_text)
    finally:
        observer.close()
    assert billing.ask("select order_id from invoices order by order_id") == [("a",), ("b",), ("c",)]


def committed(observer: Consumer, topic: str) -> int | None:
    """The offset that the observer's group goes on from; None while the broker is still making a place for groups."""
    try:
        [place] = observer.committed([TopicPartition(topic, 0)], 10)
    except KafkaException:
        return None
    return place.offset


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    """Processes that end with the test."""
    started: list[Process] = []
    yield started
    for each in started:
        each.kill()


def test_the_statement_for_other_languages_and_old_marks(billing: Pages) -> None:
    with psycopg.connect(billing.database.dsn) as connection:
        assert [connection.execute(CONSUME["sql"].encode()).rowcount for _ in range(2)] == [1, 0]
        connection.execute(CONSUME["sql"].replace("5f0c", "old").encode())
        connection.execute(
            "update cdc_outbox_inbox set processed_at = now() - interval '31 days' where event_id = 'old'"
        )
    billing.run("bash", "-ec", CONSUME["cleanup"])
    assert billing.ask("select event_id from cdc_outbox_inbox") == [("5f0c",)]
