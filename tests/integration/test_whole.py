"""Rows that no relay has sent are never taken for sent, whoever writes to them and whatever they say by then."""

from __future__ import annotations

import pytest

from cdc_outbox.postgres.whole import LIMIT
from tests.integration.conftest import Database
from tests.integration.passage import Passage, payloads
from tests.servers.kafka import Kafka

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


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    return Passage(database, kafka, slot, topics)


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
