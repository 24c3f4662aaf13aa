"""Every type of column as key, header, id and payload: what PostgreSQL prints is what arrives, bytes as bytes."""

from __future__ import annotations

from tests.integration.passage import Passage
from tests.servers.postgres import Postgres

# Type → what is inserted, and what arrives.
PRINTED = {
    "text": ("Zürich 'x'", "Zürich 'x'"),
    "varchar(9)": ("x y", "x y"),
    "char(5)": ("ab", "ab   "),
    "name": ("n", "n"),
    "uuid": ("A0EEBC999C0B4EF8BB6D6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "smallint": ("-7", "-7"),
    "integer": ("7", "7"),
    "bigint": ("9223372036854775807", "9223372036854775807"),
    "numeric(20,4)": ("1.5", "1.5000"),
    "numeric": ("NaN", "NaN"),
    "boolean": ("true", "t"),
    "json": ('{"a" :  1.0}', '{"a" :  1.0}'),
    "jsonb": ('{"b":1,  "a" :1.0}', '{"a": 1.0, "b": 1}'),
    "timestamp": ("2024-01-17 13:14:10.25", "2024-01-17 13:14:10.25"),
    "timestamptz": ("2024-01-17 14:14:10.25+01", "2024-01-17 13:14:10.25+00"),
    "hstore": ("a=>1, b=>NULL", '"a"=>"1", "b"=>NULL'),
    "mood": ("so so", "so so"),
    "text[]": ('{a,"b c",NULL}', '{a,"b c",NULL}'),
    "mood[]": ('{"so so",ok}', '{"so so",ok}'),
    "bytea[]": ('{"\\\\x00ff"}', '{"\\\\x00ff"}'),
    "email": ("a@b.c", "a@b.c"),
    "flag": ("yes", "t"),
    "moment": ("2024-01-17 14:14:10+01", "2024-01-17 13:14:10+00"),
    "pair": ("(1,x)", "(1,x)"),
    "int4range": ("[1,3)", "[1,3)"),
    "information_schema.yes_or_no": ("YES", "YES"),
}
BYTES = {"bytea": b"\x00\xff\\", "blob": b"\x00\xff\\", "thumbnail": b"\x01\x02"}
"""Domains over bytea, and over such a domain, among them: they are bytes, not text that begins with a backslash."""

TYPES = """
    create extension hstore;
    create type mood as enum ('ok', 'so so');
    create type pair as (a int, b text);
    create domain email as text check (value like '%@%');
    create domain flag as boolean;
    create domain moment as timestamptz;
    create domain blob as bytea;
    create domain thumbnail as blob check (octet_length(value) < 100);
"""


def test_each_type_as_key_header_id_and_payload(passage: Passage) -> None:
    passage.sql(TYPES)
    kinds = [*PRINTED, *BYTES]
    flags = [flag for n in range(len(kinds)) for flag in ("--table", f"outbox_{n}")]
    for n, kind in enumerate(kinds):
        passage.sql(
            f"create table outbox_{n} (id {kind}, aggregate_id {kind}, payload {kind}, mark {kind}, place int)"
        )
    topic = passage.topic("types")
    passage.init(*flags)
    for n, kind in enumerate(kinds):
        given = PRINTED[kind][0] if kind in PRINTED else f"\\x{BYTES[kind].hex()}"
        passage.sql(
            f"insert into outbox_{n} select v, v, v, v, {n} from (select cast(%s as {kind}) as v) s", given
        )
    passage.run(*flags, "--topic", topic, "--header", "mark=mark", "--header", "place=place")
    records = {int(record.header("place") or -1): record for record in passage.read(topic)}
    assert len(records) == len(kinds)
    for n, kind in enumerate(kinds):
        expected = PRINTED[kind][1].encode() if kind in PRINTED else BYTES[kind]
        record = records[n]
        assert (record.key, record.value) == (expected, expected), kind
        assert record.headers == (("id", expected), ("mark", expected), ("place", b"%d" % n)), kind


def test_types_under_domains_play_the_roles_of_what_they_are_made_of(
    postgres_version: Postgres, passage: Passage
) -> None:
    """The stream names the type under a domain, on every version."""
    passage.sql(
        """
        create extension hstore;
        create domain blob as bytea; create domain members as jsonb; create domain shard as smallint;
        create domain moment as timestamptz; create domain state as text; create domain kind as char(8);
        create domain live as boolean;
        create table outbox (id serial, aggregate_id blob, payload blob, headers members, at moment, place shard,
                             status state, bus kind, live live);
        create table hashed (id serial, aggregate_id text, payload text, headers hstore, status char(9), live boolean,
                             at timestamptz, place smallint);
        """
    )
    topic = passage.topic("domains", 2)
    tables = ("--table", "outbox", "--table", "hashed")
    passage.init(*tables)
    row = "insert into outbox values (%s, '\\x6b00', '\\xff', '{\"a\": 1.50}', '2024-01-17 14:00+01', 1, %s, %s, %s)"
    passage.sql(row, 1, "pending", "kafka", True)
    passage.sql(row, 2, "SENT", "kafka", True)
    passage.sql(row, 3, "pending", "rabbit", True)
    passage.sql(row, 4, "pending", "kafka", False)
    hashed = """insert into hashed values (%s, 'k', 'v', 'a=>1, "b ""c"=>"d\\\\e", n=>NULL, id=>x', %s, true,
                                           '2024-01-17 13:00+00', 1)"""
    passage.sql(hashed.replace('""c', '\\"c'), 5, "pending")
    passage.sql("insert into hashed values (6, 'k', 'v', '', 'sent', true, now(), 1)")
    # A domain that is made while the relay's slot is there already.
    passage.sql("create domain later as blob; alter table outbox alter payload type later")
    passage.sql(row, 7, None, "kafka", True)
    passage.run(
        *tables,
        "--topic",
        topic,
        "--column",
        "timestamp=at",
        "--column",
        "partition=place",
        "--only",
        "live=true",
    )
    records = {str(record.id): record for record in passage.read(topic)}
    assert sorted(records) == ["1", "5", "7"]
    for number in ("1", "7"):
        record = records[number]
        assert (record.key, record.value) == (b"k\x00", b"\xff")
        assert (record.partition, record.timestamp) == (1, 1_705_496_400_000)
        assert record.headers == (("id", number.encode()), ("a", b"1.50"))
    assert records["5"].headers == (("id", b"5"), ("a", b"1"), ('b "c', b"d\\e"))
