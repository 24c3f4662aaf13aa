"""Several outbox tables behind one slot and publication: each by its own columns, all of them guarded."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka
from tests.servers.wait import PATIENCE, eventually

TABLES = ("--table", "orders", "--table", "Parts")
"""The second is folded to `parts`."""

ORDERS = """
    create table orders (id bigserial primary key, topic text, customer text, body bytea, kind char(8),
                         status text default 'pending')
"""
PARTS = """
    create table parts (day date not null, data jsonb, event_id uuid default gen_random_uuid(), destination text,
                        part int, sent_at timestamptz) partition by range (day);
    create table parts_old partition of parts for values from (minvalue) to ('2024-01-01');
    create table parts_new partition of parts default
"""


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    passage = Passage(database, kafka, slot, topics)
    passage.sql(ORDERS)
    passage.sql(PARTS)
    return passage.init(*TABLES)


def test_tables_of_other_columns_stream_side_by_side_and_none_leaves_unseen(passage: Passage) -> None:
    topics = [passage.topic("orders"), passage.topic("parts")]
    order = "insert into orders (topic, customer, body, kind) values (%s, %s, %s, 'placed')"
    part = "insert into parts (destination, part, data, day) values (%s, %s, %s, %s)"
    with passage.relay(*TABLES, "--key", "customer,payload:/part", "--header", "kind=kind,part") as relay:
        relay.wait_state("streaming")
        for n in range(10):
            passage.transaction(
                (order, (topics[0], "blue", b"\x00%d" % n)),
                (part, (topics[1], 7, f'{{"n": {n}, "part": 7}}', f"202{n % 2 + 3}-05-01")),
            )
        passage.sql("insert into orders (topic, customer, status) values (%s, 'blue', 'sent')", topics[0])
        passage.sql(
            part.replace("day)", "day, sent_at)").replace("%s)", "%s, now())"),
            topics[1],
            7,
            "null",
            "2024-05-01",
        )
        end = passage.end_of_wal()
        # It may lie behind the relay's own witness row, which is confirmed only with more that comes.
        passage.sql("select pg_logical_emit_message(false, 'noise', repeat('x', 70000))")
        eventually(lambda: passage.confirmed() >= end, PATIENCE, lambda: f"all confirmed\n{relay.text()}")
        orders, parts = (passage.read(topic) for topic in topics)
        assert payloads(orders) == [f"\x00{n}" for n in range(10)]
        assert payloads(parts) == [f'{{"n": {n}, "part": 7}}' for n in range(10)]
        assert {(record.key, record.header("kind")) for record in orders} == {(b"blue", "placed  ")}
        assert {(record.key, record.header("kind")) for record in parts} == {(b"7", "7")}
        # One of them leaves the publication: nothing is confirmed any more, and the log says which.
        passage.sql("alter publication outbox_pub drop table parts")
        held = relay.wait_for(lambda record: record.get("event") == "waiting", PATIENCE)
        assert "publication outbox_pub lacks table public.parts" in str(held["error"])
        assert "alter publication outbox_pub add table public.parts;" in str(held["next"])


def test_a_column_that_one_of_them_lacks_is_named_with_the_way_to_name_both(passage: Passage) -> None:
    error, remedy = last_words(passage.run(*TABLES, "--key", "customer", code=78))
    assert error == "table public.parts has no column 'customer', which outbox.key names"
    assert remedy.startswith(
        "name one for each table, with commas between, as in customer,COLUMN; here arrive: day,"
    )
    error, _ = last_words(passage.run("--table", "orders", "--key", "customer", code=78))
    assert "the slot" in error
    assert "feeds public.parts too" in error
