"""Rows that no relay has sent are never taken for sent, whoever writes to them and whatever they say by then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL

from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import connect_control, execute
from cdc_outbox.postgres.whole import LIMIT, Rows, parts, place
from cdc_outbox.settings import load
from tests.integration.conftest import Database
from tests.integration.passage import Passage, payloads
from tests.servers.postgres import Postgres
from tests.servers.relay import run_command

TABLE = (
    "create table {} (id bigserial primary key, topic text, aggregate_id text, payload text,"
    " status text not null default 'pending', sent_at timestamptz, attempts int not null default 0)"
)
PARTITIONED = (
    "create table {} (tenant text not null default 'a,\"b', id bigserial, topic text, aggregate_id text, payload text,"
    " status text not null default 'pending', sent_at timestamptz, attempts int not null default 0,"
    " day int not null default 1, primary key (tenant, id, day)) partition by range (day);"
    " create table o1 partition of outbox for values from (1) to (2);"
    " create table o2 partition of outbox for values from (2) to (3)"
)
FILL = "insert into {}(topic, aggregate_id, payload, status) select %s, 'k', %s || i, %s from generate_series(1, 5) i"
BY_WORD = "select rtrim(payload, '0123456789'), status, count(*)::int from {} group by 1, 2 order by 1, 2"
MARK = ("--mark", "update")


def test_a_table_that_joins_with_rows_of_its_old_relay_keeps_them(passage: Passage) -> None:
    topic = passage.topic("t")
    for table in ("outbox", "orders"):
        passage.sql(TABLE.format(table))
    passage.init()
    both = (*MARK, "--table", "public.outbox", "--table", "public.orders")
    passage.sql(FILL.format("outbox"), topic, "a", "pending")
    passage.run(*MARK)
    passage.sql(FILL.format("orders"), topic, "o", "pending")
    passage.sql("alter publication outbox_pub add table public.orders")
    told = passage.run(*both).stderr
    passage.sql("update orders set status = 'pending'")
    passage.sql("update outbox set status = 'pending', sent_at = null")
    passage.run(*both)
    assert passage.sql(BY_WORD.format("orders")) == [("o", "pending", 5)], told
    assert passage.sql(BY_WORD.format("outbox")) == [("a", "sent", 5)]  # it stayed whole, and they were sent


@pytest.mark.parametrize("how", ["--failed skip", "--no-backfill", "--where id > 5"])
@pytest.mark.parametrize(
    "table",
    [TABLE, PARTITIONED, TABLE[:-1] + ", bus char(8) default 'kafka')"],
    ids=["by a key of one column", "by one of three", "beside a bus with blanks"],
)
def test_what_was_left_out_at_the_cut_over_is_never_taken_for_sent(
    passage: Passage, how: str, table: str
) -> None:
    """What the backfill and a relay without marks have sent is; whenever a person puts the others back."""
    topic = passage.topic("t")
    passage.sql(table.format("outbox"))
    passage.sql(FILL.format("outbox"), topic, "left", "failed")
    if how == "--no-backfill":
        passage.init(how)
    else:
        passage.sql(FILL.format("outbox"), topic, "old", "pending")
        passage.backfill(*how.split(" ", 1))
    passage.sql(FILL.format("outbox"), topic, "new", "pending")
    passage.run()
    expected = [
        ("left", "failed", 5),
        ("new", "sent", 5),
        *([] if how == "--no-backfill" else [("old", "sent", 5)]),
    ]
    told = passage.run(*MARK).stderr
    assert passage.sql(BY_WORD.format("outbox")) == expected
    assert "can't be found" not in told
    passage.sql("update outbox set status = 'pending', attempts = attempts + 1 where payload like 'left%%'")
    expected[0] = ("left", "pending", 5)
    passage.run(*MARK)
    assert passage.sql(BY_WORD.format("outbox")) == expected
    # What the stream brings is marked by its key: another row has it.
    passage.sql("delete from outbox where id = 3")
    passage.sql("insert into outbox (id, topic, aggregate_id, payload) values (3, %s, 'k', 'again')", topic)
    passage.run(*MARK)
    expected[0] = ("left", "pending", 4)
    assert passage.sql(BY_WORD.format("outbox")) == [("again", "sent", 1), *expected]


def test_a_row_that_was_left_out_and_moves_is_sent_and_marked_and_the_others_stay(passage: Passage) -> None:
    """It arrives in the stream as an INSERT."""
    topic = passage.topic("t")
    passage.sql(PARTITIONED.format("outbox"))
    passage.sql(FILL.format("outbox"), topic, "left", "failed")
    passage.backfill("--failed", "skip")
    passage.sql("update outbox set status = 'pending', day = 2 where id = 1")
    passage.sql("update outbox set status = 'pending' where id > 1")
    passage.run(*MARK)
    assert passage.sql("select id, day, status from outbox where status = 'sent'") == [(1, 2, "sent")]
    assert payloads(passage.read(topic)) == ["left1"]


def test_more_rows_than_are_remembered_keep_their_part_from_being_searched(passage: Passage) -> None:
    topic = passage.topic("t")
    passage.sql(PARTITIONED.format("outbox"))
    passage.sql(FILL.format("outbox").replace("5)", str(LIMIT + 1) + ")"), topic, "left", "failed")
    passage.sql(
        FILL.format("o2").replace("(topic", "(day, topic").replace("select", "select 2,"), topic, "two", "x"
    )
    told = passage.backfill("--where", "day = 2").stderr
    assert told.count("more rows are left behind than are remembered") == 1
    passage.sql(FILL.format("outbox"), topic, "new", "pending")
    passage.run()
    passage.sql("update outbox set status = 'pending'")
    passage.run(*MARK)
    assert passage.sql(BY_WORD.format("outbox")) == [
        ("left", "pending", LIMIT + 1),
        ("new", "pending", 5),  # they lie beside the others
        ("two", "sent", 5),
    ]


def test_what_lies_in_a_gap_is_never_taken_for_sent(passage: Passage) -> None:
    topic = passage.topic("t")
    passage.sql(TABLE.format("outbox"))
    passage.init()
    passage.sql(FILL.format("outbox"), topic, "first", "pending")
    passage.run()
    passage.sql(FILL.format("outbox"), topic, "gap", "pending")
    passage.sql("select pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", passage.slot)
    passage.run("--accept-gap")
    passage.sql(FILL.format("outbox"), topic, "new", "pending")
    passage.run()
    passage.run(*MARK)  # all that waits is left behind
    passage.sql("update outbox set status = 'pending'")
    passage.sql(FILL.format("outbox"), topic, "last", "pending")
    passage.run()
    passage.run(*MARK)
    assert passage.sql(BY_WORD.format("outbox")) == [
        ("first", "pending", 5),
        ("gap", "pending", 5),
        ("last", "sent", 5),
        ("new", "pending", 5),
    ]


@pytest.mark.parametrize("column", [None, "text[] not null default '{}'"], ids=["no column", "its old type"])
def test_a_witness_table_of_another_version_keeps_nothing_and_nothing_is_searched(
    passage: Passage, column: str | None
) -> None:
    topic = passage.topic("t")
    passage.sql(TABLE.format("outbox"))
    passage.init("--only", "witness")
    passage.sql("alter table cdc_outbox_witness drop column whole")
    if column is not None:
        passage.sql("alter table cdc_outbox_witness add column whole " + column)
    passage.init()
    passage.sql(FILL.format("outbox"), topic, "old", "pending")
    passage.run()
    passage.sql(FILL.format("outbox"), topic, "new", "pending")
    told = passage.run(*MARK, "--accept-gap").stderr
    assert told.count("rows that were left unmarked can't be found") == 1
    assert passage.sql(BY_WORD.format("outbox")) == [("new", "sent", 5), ("old", "pending", 5)]


REWRITES = [
    "vacuum full outbox",
    "cluster outbox using {key}",
    "alter table outbox alter topic type varchar(200), alter id type integer",
]


def rewrite(passage: Passage, statement: str) -> None:
    """Outside of a transaction, as VACUUM wants it."""
    [(key,)] = passage.sql(
        "select indexrelid::regclass::text from pg_index where indrelid = 'outbox'::regclass"
    )
    with psycopg.connect(passage.database.dsn, autocommit=True) as connection:
        connection.execute(statement.format(key=key).encode())


@pytest.mark.parametrize("statement", REWRITES, ids=["vacuum", "cluster", "alter"])
@pytest.mark.parametrize("table", [TABLE, PARTITIONED], ids=["plain", "partitioned"])
def test_a_table_that_is_rewritten_keeps_the_way_back(passage: Passage, table: str, statement: str) -> None:
    """But for partitions whose rows ALTER TABLE writes again, for so it would if they were unlogged; that is said."""
    topic = passage.topic("t")
    passage.sql(table.format("outbox"))
    passage.init()
    passage.sql(FILL.format("outbox"), topic, "a", "pending")
    passage.run()
    rewrite(passage, statement)
    told = passage.run(*MARK).stderr
    lost = table == PARTITIONED and statement.startswith("alter")
    assert passage.sql(BY_WORD.format("outbox")) == [("a", "pending" if lost else "sent", 5)]
    assert told.count("rows stay unmarked in a table that isn't what it was") == lost
    assert ('"rows":5' in told.replace(" ", "")) or not lost


def test_rows_of_a_partition_that_was_unlogged_for_a_time_are_never_taken_for_sent(passage: Passage) -> None:
    topic = passage.topic("t")
    passage.sql(PARTITIONED.format("outbox"))
    passage.init()
    passage.sql(FILL.format("outbox"), topic, "a", "pending")
    passage.run()
    passage.sql("alter table o1 set unlogged")
    passage.sql(FILL.format("o1"), topic, "u", "pending")
    rewrite(passage, "vacuum full o1")
    passage.sql("alter table o1 set logged")
    passage.run(*MARK)
    assert passage.sql(BY_WORD.format("outbox")) == [("a", "pending", 5), ("u", "pending", 5)]
    assert payloads(passage.read(topic)) == [f"a{n}" for n in range(1, 6)]


def test_on_each_version_a_part_keeps_its_name_unless_it_may_have_been_unlogged(
    postgres_version: Postgres, database: Database
) -> None:
    assert database.server is postgres_version

    async def scene() -> None:
        conn = await connect_control(
            load("start", {"dsn": database.dsn}, {}, Path("/nonexistent")).postgres, application_name="test"
        )
        try:
            await execute(conn, "set search_path = public")
            for statement in (*PARTITIONED.format("outbox").split(";"), TABLE.format("plain")):
                await execute(conn, SQL(statement))
            await execute(conn, "create table narrow (id int primary key, sent_at timestamptz)")
            await execute(conn, "create publication p for table outbox, plain")
            for name, statement, kept in SAME:
                of = Rows(TableName("public", name), (), None, (), "digest")
                before = await parts(conn, of)
                await execute(conn, statement)
                now = await parts(conn, of)
                assert (before == now) is kept, (statement, before, now)
                assert {*map(place, before)} == {*map(place, now)}
        finally:
            await conn.close()

    asyncio.run(scene())
    with psycopg.connect(database.dsn) as conn, pytest.raises(psycopg.Error, match="part of a publication"):
        conn.execute("alter table plain set unlogged")


SAME: list[tuple[str, LiteralString, bool]] = [
    ("plain", "vacuum full plain", True),
    ("plain", "cluster plain using plain_pkey", True),
    ("plain", "alter table plain alter topic type varchar(200)", True),
    ("plain", "create publication another for table plain", True),
    ("plain", "truncate plain", True),
    ("plain", "alter publication p drop table plain", False),
    ("outbox", "vacuum full outbox", True),
    ("outbox", "cluster o1 using o1_pkey", True),
    ("outbox", "alter table o1 set logged", True),
    ("outbox", "alter table outbox alter topic type varchar(200)", False),
    ("narrow", "vacuum full narrow", False),
]
"""A table, what is done to it, and whether the names of its parts stay."""


def test_a_row_that_was_sent_and_is_set_back_is_sent_again_by_a_replay_alone(passage: Passage) -> None:
    """Whoever sent it: the old relay, the backfill, or the stream."""
    topic = passage.topic("t")
    passage.sql(TABLE.format("outbox"))
    passage.sql(FILL.format("outbox"), topic, "old", "sent")
    passage.sql(FILL.format("outbox"), topic, "filled", "pending")
    passage.backfill()
    passage.sql(FILL.format("outbox"), topic, "new", "pending")
    passage.run(*MARK)
    back = passage.sql("select id::text from outbox where payload in ('old1', 'filled1', 'new1') order by id")
    passage.sql(
        "update outbox set status = 'pending', payload = 'mended ' || payload where payload like '%%1'"
    )
    passage.run(*MARK)
    assert passage.sql("select count(*)::int from outbox where status = 'sent'") == [(15,)]
    assert len(payloads(passage.read(topic))) == 10
    ids = [word for (id_,) in back for word in ("--id", id_)]
    at = ("--slot", passage.slot, "--bootstrap-servers", passage.kafka.bootstrap)
    done = run_command("replay", "--yes", *ids, *at, env=passage.environment)
    assert done.returncode == 0, done.stderr
    assert payloads(passage.read(topic))[10:] == ["mended old1", "mended filled1", "mended new1"]


def test_a_partition_that_is_attached_keeps_its_unsent_rows(passage: Passage) -> None:
    topic = passage.topic("t")
    passage.sql(
        "create table outbox (id bigserial, topic text, aggregate_id text, payload text,"
        " status text not null default 'pending', sent_at timestamptz, day int not null default 1,"
        " primary key (id, day)) partition by range (day);"
        " create table o1 partition of outbox for values from (1) to (2);"
        " create table o2 partition of outbox for values from (2) to (3)"
    )
    passage.init()
    passage.sql(FILL.format("outbox"), topic, "a", "pending")
    passage.run()
    passage.sql(
        "alter table outbox detach partition o2; alter table o2 alter day set default 2;"
        " create table o3 (like outbox including all); alter table o3 alter day set default 3"
    )
    passage.sql(FILL.format("o2"), topic, "y", "pending")
    passage.sql(FILL.format("o3"), topic, "z", "pending")
    passage.sql("alter table outbox attach partition o2 for values from (2) to (3)")
    passage.sql("alter table outbox attach partition o3 for values from (3) to (4)")
    passage.run(*MARK)
    assert passage.sql(BY_WORD.format("outbox")) == [
        ("a", "sent", 5),  # these were sent before there were marks
        ("y", "pending", 5),
        ("z", "pending", 5),
    ]
