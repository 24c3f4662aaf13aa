"""The Kafka message, as wire.md has it: rows go in by SQL, records come out by another client."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from itertools import pairwise

import psycopg
import pytest
from confluent_kafka import Producer

from tests.integration.conftest import Database
from tests.integration.passage import Passage, payloads
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, create_outbox
from tests.servers.postgres import Postgres


def keys(records: list[Record]) -> list[bytes | None]:
    return [record.key for record in records]


def values(records: list[Record]) -> list[bytes | None]:
    return [record.value for record in records]


def test_the_default_table(passage: Passage) -> None:
    create_outbox(passage.database.dsn)
    passage.init()
    order, invoice = f"{passage.topics}Order", f"{passage.topics}invoice"
    for name in (order, invoice):
        passage.kafka.create_topic(f"outbox.event.{name}")
    insert = (
        "insert into outbox (id, aggregate_type, aggregate_id, event_type, event_version, payload, headers)"
        " values (%s, %s, %s, %s, %s, %s, %s)"
    )
    ids = [f"00000000-0000-4000-8000-00000000000{n}" for n in range(5)]
    payload = '{"b": [1,  2.50, 1e3], "a": "Zürich \\u00fc \\n", "n": null}'
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    members = (
        f'{{"traceparent": "{parent}", "tracestate": "a=1,b=2", "baggage": "k=v", "text": "Grüße", "number": 1.50,'
        ' "yes": true, "object": {"a": [1, "x"]}, "list": [1, {"b": null}], "nothing": null, "id": "mine",'
        ' "type": "mine", "cdc.mine": "x"}'
    )
    before = time.time()
    passage.sql(insert, ids[0], order, "order-17", "OrderPlaced", 2, payload, members)
    passage.sql(insert, ids[1], order, "", "OrderPlaced", None, '"text"', None)
    passage.sql(insert, ids[2], order, "Zürich 日本", "OrderGone", None, None, "{}")
    passage.sql(insert, ids[3], order, "order-17", "", 0, "[]", '{"version": "mine"}')
    passage.sql(insert, ids[4], invoice, "order-17", "Billed", None, "{}", None)
    after = time.time()
    [(stored,)] = passage.sql("select payload::text from outbox where id = %s", ids[0])
    passage.run()

    records = passage.read(f"outbox.event.{order}")
    assert [record.id for record in records] == ids[:4]
    assert keys(records) == [b"order-17", b"", "Zürich 日本".encode(), b"order-17"]
    assert values(records) == [stored.encode(), b'"text"', None, b"[]"]
    assert records[0].headers == (
        ("id", ids[0].encode()),
        ("type", b"OrderPlaced"),
        ("version", b"2"),
        # jsonb keeps its members by length, then by bytes.
        ("yes", b"true"),
        ("list", b'[1,{"b":null}]'),
        ("text", "Grüße".encode()),
        ("number", b"1.50"),
        ("object", b'{"a":[1,"x"]}'),
        ("baggage", b"k=v"),
        ("tracestate", b"a=1,b=2"),
        ("traceparent", parent.encode()),
    )
    assert records[1].headers == (("id", ids[1].encode()), ("type", b"OrderPlaced"))
    assert records[2].headers == (("id", ids[2].encode()), ("type", b"OrderGone"))
    assert records[3].headers == (("id", ids[3].encode()), ("type", b""), ("version", b"0"))
    stamps = [record.timestamp for record in records]
    assert stamps == sorted(stamps)
    assert int(before * 1000) <= stamps[0] <= stamps[-1] <= int(after * 1000)
    assert [record.id for record in passage.read(f"outbox.event.{invoice}")] == ids[4:]


LONG = "".join(chr(0x20 + n * 7919 % 0x2F00) for n in range(60_000))
PAYLOADS: dict[str, list[str | bytes]] = {
    "json": [
        '{"a" :  1,\n "a":1, "b":"\\u00e9"}',
        " [1.0,2e0] ",
        "null",
        json.dumps({"long": LONG}, ensure_ascii=False),
    ],
    "jsonb": ['{"a": {"b": [1, 2]}, "zz": 1.10}', "1", '"x"'],
    "text": ["not json", "", "tab\tnewline\nbackslash\\quote'", LONG],
    "varchar(20)": ["short"],
    "bytea": [bytes(range(256)), b"", b"\\x00", b"\xff" * 100_000],
}


def test_the_value_is_the_payload_byte_for_byte(passage: Passage) -> None:
    flags: list[str] = []
    topics: dict[str, str] = {}
    for n, kind in enumerate(PAYLOADS):
        passage.sql(
            f"create table outbox_{n} (id bigserial primary key, aggregate_id int not null default 42,"
            f" topic text not null, payload {kind})"
        )
        flags += ["--table", f"outbox_{n}"]
        topics[kind] = passage.topic(str(n))
    passage.init(*flags)
    for n, (kind, texts) in enumerate(PAYLOADS.items()):
        for payload in (*texts, None):
            passage.sql(
                f"insert into outbox_{n} (topic, payload) values (%s, %s::{kind})", topics[kind], payload
            )
    passage.run(*flags)
    for kind, texts in PAYLOADS.items():
        expected = [each.encode() if isinstance(each, str) else each for each in texts]
        records = passage.read(topics[kind])
        assert values(records) == [*expected, None], kind
        assert keys(records) == [b"42"] * len(records)
        assert [record.headers for record in records] == [
            (("id", str(n + 1).encode()),) for n in range(len(records))
        ]


KEYS = {
    "text": ("a b", b"a b"),
    "varchar(10)": ("x", b"x"),
    "char(5)": ("ab", b"ab   "),
    "uuid": ("{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "bigint": ("-9223372036854775808", b"-9223372036854775808"),
    "smallint": ("7", b"7"),
    "bytea": ("\\x00ff5c", b"\x00\xff\\"),
    "date": ("2024-01-17", b"2024-01-17"),
}


def test_kinds_of_keys(passage: Passage) -> None:
    flags: list[str] = []
    for n, kind in enumerate(KEYS):
        passage.sql(f"create table outbox_{n} (id int, aggregate_id {kind}, payload text)")
        flags += ["--table", f"outbox_{n}"]
    topic = passage.topic("keys")
    passage.init(*flags)
    for n, (text, _) in enumerate(KEYS.values()):
        passage.sql(f"insert into outbox_{n} values ({n}, %s, '')", text)
    passage.run(*flags, "--topic", topic)
    assert keys(passage.read(topic)) == [key for _, key in KEYS.values()]


Run = Callable[..., list[Record]]


@pytest.fixture
def run(passage: Passage) -> Run:
    """A table `outbox` of id, key `k`, text payload and topic; runs the relay, answers what the topic holds."""
    topic = passage.topic("events")
    passage.sql(
        "create table outbox (id bigserial primary key, aggregate_id text default 'k', payload text,"
        f" topic text default '{topic}')"
    )
    passage.init()

    def relayed(*flags: str) -> list[Record]:
        passage.run(*flags)
        return passage.read(topic)

    return relayed


def test_what_a_transaction_sends(passage: Passage, run: Run) -> None:
    insert = "insert into outbox (payload) values ('{}')"
    passage.transaction(
        insert.format("a1"), insert.format("a2"), "insert into outbox (payload) values ('a3'), ('a4')"
    )
    passage.transaction(insert.format("b1"), "delete from outbox where payload = 'b1'")
    passage.transaction(
        *(insert.format("c1"), "savepoint s", insert.format("lost"), "rollback to s", insert.format("c2")),
        *("savepoint t", insert.format("c3"), "release t"),
    )
    passage.transaction(insert.format("lost"), "rollback")
    passage.sql("update outbox set payload = 'lost'")
    passage.sql("delete from outbox where id = 1")
    passage.transaction(insert.format("d1"), "truncate outbox")
    passage.sql("insert into outbox (payload) select 'e' || n from generate_series(1, 3) n")
    with psycopg.connect(passage.database.dsn) as connection:
        with connection.cursor().copy("copy outbox (payload) from stdin") as copy:
            copy.write("f1\nf2\n")
        connection.commit()
        # A prepared transaction is sent when it commits, after those that committed meanwhile.
        connection.tpc_begin(connection.xid(1, "prepared", passage.slot))
        connection.execute(insert.format("h1").encode())
        connection.tpc_prepare()
        passage.sql(insert.format("g1"))
        connection.tpc_commit()
    expected = "a1 a2 a3 a4 b1 c1 c2 c3 d1 e1 e2 e3 f1 f2 g1 h1"
    assert payloads(run()) == expected.split()


def test_transactions_follow_in_commit_order(passage: Passage, run: Run) -> None:
    insert = b"insert into outbox (payload) values (%s)"
    with psycopg.connect(passage.database.dsn) as first, psycopg.connect(passage.database.dsn) as second:
        first.execute(insert, ["first 1"])
        second.execute(insert, ["second 1"])
        first.execute(insert, ["first 2"])
        second.execute(insert, ["second 2"])
        second.commit()
        first.commit()
    assert payloads(run()) == ["second 1", "second 2", "first 1", "first 2"]


def test_provenance_is_unique_and_ordered(passage: Passage, run: Run) -> None:
    left_out = "insert into outbox (payload, topic, aggregate_id) values ('no', 'x', 'left-out')"
    insert = "insert into outbox (payload) values ('yes')"
    passage.transaction(insert, left_out, insert, insert)
    for _ in range(9):
        passage.transaction(*[insert] * 12)
    records = run("--provenance-headers", "--only", "aggregate_id=k")
    assert [name for name, _ in records[0].headers] == [
        "id",
        "cdc.lsn",
        "cdc.seq",
        "cdc.commit_ts",
        "cdc.slot",
    ]
    places = [(record.header("cdc.lsn") or "", int(record.header("cdc.seq") or "")) for record in records]
    # Rows that are left out have their place, too.
    assert [seq for _, seq in places] == [0, 2, 3, *[*range(12)] * 9]
    assert all(a < b for a, b in pairwise(places))
    assert all(len(lsn) == 16 and lsn == lsn.lower() and int(lsn, 16) for lsn, _ in places)
    assert {record.header("cdc.slot") for record in records} == {passage.slot}
    assert all(record.header("cdc.commit_ts") == str(record.timestamp) for record in records)


def test_the_timestamp_is_the_commit_time_floored(
    own_tracking: Postgres, kafka: Kafka, slot: str, topics: str
) -> None:
    own_tracking.create_database("tracked")
    passage = Passage(Database(own_tracking, "tracked"), kafka, slot, topics)
    topic = passage.topic("t")
    passage.sql(
        "create table outbox (id bigserial, aggregate_id int, payload xid8 default pg_current_xact_id())"
    )
    passage.init()
    for _ in range(20):  # with a pause in each, so that they commit at any part of a millisecond
        passage.transaction("insert into outbox values (default, 1)", "select pg_sleep(0.003)")
    passage.run("--topic", topic)
    records = passage.read(topic)
    committed = passage.sql(
        "select floor(extract(epoch from pg_xact_commit_timestamp(payload::xid)) * 1000)::bigint"
        " from outbox order by id"
    )
    assert [(record.timestamp,) for record in records] == committed
    assert {record.timestamp_kind for record in records} == {1}


@pytest.fixture
def own_tracking(make_postgres: Callable[..., Postgres]) -> Postgres:
    return make_postgres(settings={"track_commit_timestamp": "on"})


def test_a_partitioned_outbox_arrives_by_its_root(passage: Passage) -> None:
    passage.sql(
        "create table outbox (id bigserial, aggregate_id text, payload text, day date not null)"
        " partition by range (day)"
    )
    passage.sql("create table outbox_old partition of outbox for values from (minvalue) to ('2024-01-01')")
    passage.sql("create table outbox_rest partition of outbox default")
    topic = passage.topic("partitioned")
    passage.init()
    insert = "insert into {} (aggregate_id, payload, day) values ('k', '{}', '{}')"
    passage.sql(insert.format("outbox", "old", "2023-05-01"))
    passage.sql(insert.format("outbox", "rest", "2024-05-01"))
    passage.sql(insert.format("outbox_old", "straight", "2023-05-01"))
    # The columns of a partition that is made later may be in another order.
    passage.transaction(
        "create table outbox_new (day date not null, payload text, aggregate_id text, id bigserial)",
        "alter table outbox attach partition outbox_new for values from ('2025-01-01') to (maxvalue)",
        insert.format("outbox", "new", "2025-05-01"),
    )
    passage.transaction("alter table outbox detach partition outbox_new", "drop table outbox_new")
    passage.run("--topic", topic)
    assert payloads(passage.read(topic)) == ["old", "rest", "straight", "new"]


def test_quoted_names(passage: Passage) -> None:
    topic = passage.topic("quoted")
    passage.sql('create schema "Sales"')
    passage.sql(
        """create table "Sales"."Out ""Box""'s" ("Event_ID" uuid, "AggregateID" text, "Message Body" text,"""
        """ "Type" text, "Größe" text)"""
    )
    flags = ["--table", """"Sales"."Out ""Box""'s\""""]
    passage.init(*flags)
    passage.sql(
        """insert into "Sales"."Out ""Box""'s" values ('00000000-0000-4000-8000-000000000001', 'k', 'v', 't', 'XL')"""
    )
    passage.run(*flags, "--topic", topic, "--column", "payload=Message Body", "--header", "size=Größe")
    [record] = passage.read(topic)
    assert (record.key, record.value) == (b"k", b"v")
    assert record.headers == (
        ("id", b"00000000-0000-4000-8000-000000000001"),
        ("type", b"t"),
        ("size", b"XL"),
    )


def test_templates_pointer_and_placed_headers(passage: Passage) -> None:
    passage.sql(
        "create table outbox (id int, aggregate_type text, event_type text, payload json, tenant text, headers json,"
        " at timestamptz)"
    )
    topics = [passage.topic("order.Placed"), passage.topic("order.Gone")]
    passage.init()
    insert = "insert into outbox values (%s, 'order', %s, %s, %s, %s, '1999-12-31 23:59:59.1239+00')"
    passage.sql(insert, 1, "Placed", '{"order": {"id/no": 17}}', "blue", '{"b": 1, "a": 2, "tenant": "lost"}')
    passage.sql(insert, 2, "Gone", '{"order": {"id/no": "x y"}}', None, '{"tenant": "lost", "a": "\\u00fc"}')
    passage.run(
        *("--topic", passage.topics + "{aggregate_type}.{event_type}", "--key", "payload:/order/id~1no"),
        *("--header", "tenant=tenant", "--column", "timestamp=at"),
    )
    placed, gone = (passage.read(topic) for topic in topics)
    assert keys(placed + gone) == [b"17", b"x y"]
    assert placed[0].headers == (
        *(("id", b"1"), ("type", b"Placed"), ("tenant", b"blue")),
        *(("b", b"1"), ("a", b"2")),
    )
    assert gone[0].headers == (("id", b"2"), ("type", b"Gone"), ("a", "ü".encode()))
    assert {record.timestamp for record in placed + gone} == {946_684_799_123}


def test_a_topic_column_without_a_value_falls_back_to_the_aggregate_type(passage: Passage) -> None:
    passage.sql(
        "create table outbox (id serial, topic text, aggregate_type text, aggregate_id text, payload text)"
    )
    topic = passage.topic("named")
    fallback = f"outbox.event.{passage.topics}Order"
    passage.kafka.create_topic(fallback)
    passage.init()
    insert = "insert into outbox (topic, aggregate_type, aggregate_id, payload) values (%s, %s, 'k', %s)"
    for name, payload in ((topic, "named"), (None, "null"), ("", "empty")):
        passage.sql(insert, name, f"{passage.topics}Order", payload)
    passage.run()
    assert payloads(passage.read(topic)) == ["named"]
    assert payloads(passage.read(fallback)) == ["null", "empty"]


def test_events_without_a_key_are_spread(passage: Passage) -> None:
    passage.sql("create table outbox (id serial, topic text, payload text)")
    topic = passage.topic("keyless", 3)
    passage.init()
    passage.sql(
        "insert into outbox (topic, payload) select %s, n::text from generate_series(1, 300) n", topic
    )
    passage.run("--key", "none")
    records = passage.read(topic)
    assert sorted(int(text) for text in payloads(records)) == [*range(1, 301)]
    assert keys(records) == [None] * 300
    passage.sql("insert into outbox (topic) values (%s)", topic)
    passage.run("--key", "none")
    assert [record for record in passage.read(topic) if record.value is None]
    counts = [sum(record.partition == number for record in records) for number in range(3)]
    assert min(counts) > 50, counts


def test_a_partition_column_decides(passage: Passage) -> None:
    passage.sql("create table outbox (id serial, aggregate_id text, payload text, shard int)")
    topic = passage.topic("sharded", 3)
    passage.init()
    for shard in (2, 0, 1, 2, None):
        passage.sql("insert into outbox (aggregate_id, payload, shard) values ('k', '', %s)", shard)
    passage.run("--topic", topic, "--column", "partition=shard")
    records = passage.read(topic)
    assert sorted((int(record.id or ""), record.partition) for record in records)[:4] == [
        (1, 2),
        (2, 0),
        (3, 1),
        (4, 2),
    ]
    # Without a number the key decides, as it does for everybody else.
    [fifth] = [record.partition for record in records if record.id == "5"]
    assert fifth == partitions_of(passage, [b"k"], "murmur2_random", 3)[b"k"]


def partitions_of(passage: Passage, chosen: list[bytes], partitioner: str, count: int) -> dict[bytes, int]:
    """Where librdkafka puts keys."""
    topic = passage.topic(f"of-{partitioner}", count)
    producer = Producer({"bootstrap.servers": passage.kafka.bootstrap, "partitioner": partitioner})
    for key in chosen:
        producer.produce(topic, b"", key)
    assert producer.flush(30) == 0
    return {record.key: record.partition for record in passage.read(topic) if record.key is not None}


@pytest.mark.parametrize(("partitioner", "others"), [("murmur2", "murmur2_random"), ("crc32", "consistent")])
def test_keys_go_where_other_producers_put_them(passage: Passage, partitioner: str, others: str) -> None:
    randomly = random.Random(7)
    chosen = [
        *(b"order-%d" % n for n in range(200)),
        *(randomly.randbytes(length) for length in range(1, 70)),
        "Zürich 日本".encode(),
    ]
    passage.sql("create table outbox (id serial, aggregate_id bytea, payload text)")
    topic = passage.topic("keys", 7)
    passage.init()
    with psycopg.connect(passage.database.dsn) as connection:
        connection.cursor().executemany(
            "insert into outbox (aggregate_id) values (%s)", [(key,) for key in (*chosen, b"")]
        )
    passage.run("--topic", topic, "--partitioner", partitioner)
    ours = {record.key or b"": record.partition for record in passage.read(topic)}
    assert ours.keys() == {*chosen, b""}
    theirs = partitions_of(passage, chosen, others, 7)
    assert {key: ours[key] for key in chosen} == theirs


def test_an_sql_ascii_database_passes_bytes_as_they_are(passage: Passage) -> None:
    server = passage.database.server
    server.execute(f"create database ascii_{passage.slot} encoding 'SQL_ASCII' locale 'C' template template0")
    ascii_passage = Passage(
        Database(server, f"ascii_{passage.slot}"), passage.kafka, passage.slot, passage.topics
    )
    topic = ascii_passage.topic("ascii")
    ascii_passage.sql("create table outbox (id serial, aggregate_id text, payload text, tag text)")
    ascii_passage.init()
    ascii_passage.sql(
        "insert into outbox (aggregate_id, payload, tag) values (E'k\\xff', E'\\xe9t\\xe9', E'\\x80')"
    )
    ascii_passage.run("--topic", topic, "--header", "tag=tag")
    [record] = ascii_passage.read(topic)
    assert (record.key, record.value) == (b"k\xff", b"\xe9t\xe9")
    assert record.headers == (("id", b"1"), ("tag", b"\x80"))
    server.drop_database(f"ascii_{passage.slot}")


OTHERS = {
    "timestamptz": ("2024-01-17 14:14:10.25+01", b"2024-01-17 13:14:10.25+00"),
    "timestamp": ("2024-01-17 14:14:10.25", b"2024-01-17 14:14:10.25"),
    "date": ("2024-01-17", b"2024-01-17"),
    "interval": ("1 year 2 mons 3 days 04:05:06", b"1 year 2 mons 3 days 04:05:06"),
    "double precision": ("0.1", b"0.1"),
    "real": ("0.1", b"0.1"),
    "numeric": ("1.50", b"1.50"),
    "boolean": ("yes", b"t"),
    "int[]": ("{1,2}", b"{1,2}"),
    "bytea": ("\\x00ff", b"\x00\xff"),
    "uuid": ("A0EEBC999C0B4EF8BB6D6BB9BD380A11", b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "inet": ("10.0.0.1", b"10.0.0.1"),
}


def test_values_are_printed_alike_whatever_the_defaults(passage: Passage) -> None:
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(OTHERS))
    passage.sql(f"create table outbox (id serial, aggregate_id timestamptz, payload text, {columns})")
    topic = passage.topic("printed")
    defaults = (
        *("datestyle = 'German, DMY'", "timezone = 'Asia/Tokyo'", "intervalstyle = 'iso_8601'"),
        *("bytea_output = 'escape'", "extra_float_digits = -3", "default_transaction_read_only = on"),
        *("statement_timeout = 100", "lock_timeout = 1", "idle_in_transaction_session_timeout = 1"),
        *("search_path = 'nowhere'", "quote_all_identifiers = on", "standard_conforming_strings = off"),
    )
    passage.init()
    passage.transaction(*(f"alter database {passage.database.name} set {each}" for each in defaults))
    placeholders = ", ".join("%s" for _ in OTHERS)
    with psycopg.connect(
        passage.database.dsn,
        options="-c default_transaction_read_only=off -c idle_in_transaction_session_timeout=0"
        " -c statement_timeout=0 -c lock_timeout=0",
    ) as connection:
        connection.execute(
            f"insert into public.outbox values (1, '2024-01-17T00:00:00Z', '', {placeholders})".encode(),
            [text for text, _ in OTHERS.values()],
        )
    flags = [flag for n in range(len(OTHERS)) for flag in ("--header", f"h{n}=c{n}")]
    passage.run("--topic", topic, *flags)
    [record] = passage.read(topic)
    assert record.key == b"2024-01-17 00:00:00+00"
    assert dict(record.headers) == {
        "id": b"1",
        **{f"h{n}": printed for n, (_, printed) in enumerate(OTHERS.values())},
    }


def test_rows_that_are_left_out(passage: Passage) -> None:
    passage.sql(
        "create table outbox (id serial, event_id uuid default gen_random_uuid(), bus text, topic text, payload jsonb,"
        " status text default 'pending', attempts int default 0, sent_at timestamptz)"
    )
    topic = passage.topic("chosen")
    passage.init()
    insert = "insert into outbox (bus, topic, payload, status) values (%s, %s, %s, %s)"
    for bus, payload, status in (
        ("kafka", "1", "pending"),
        ("rabbitmq", "2", "pending"),
        ("kafka", "3", "sent"),
        ("kafka", "4", "failed"),
        ("kafka", "5", "pending"),
    ):
        passage.sql(insert, bus, topic, payload, status)
    passage.run("--key", "none")
    assert payloads(passage.read(topic)) == ["1", "4", "5"]
