"""Rows that no relay has sent are never taken for sent, whoever writes to them: marks are looked for in whole parts."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Database
from tests.integration.passage import Passage
from tests.servers.kafka import Kafka
from tests.servers.relay import run_command

TABLE = (
    "create table {} (id bigserial primary key, topic text, aggregate_id text, payload text,"
    " status text not null default 'pending', sent_at timestamptz)"
)
FILL = "insert into {}(topic, aggregate_id, payload, status) select %s, 'k', %s || i, %s from generate_series(1, 5) i"
BY_WORD = "select left(payload, 1), status, count(*)::int from {} group by 1, 2 order by 1, 2"
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


@pytest.mark.parametrize("how", ["--failed skip", "--no-backfill"])
def test_what_was_left_out_at_the_cut_over_stays_unsent_when_it_is_put_back(
    passage: Passage, how: str
) -> None:
    topic = passage.topic("t")
    passage.sql(TABLE.format("outbox"))
    passage.sql(FILL.format("outbox"), topic, "a", "failed")
    if how == "--no-backfill":
        passage.init(how)
    else:
        at = ("--slot", passage.slot)
        assert run_command("init", *at, env=passage.environment).returncode == 78
        way = ("--bootstrap-servers", passage.kafka.bootstrap)
        done = run_command("backfill", "--yes", *how.split(), *at, *way, env=passage.environment)
        assert done.returncode == 0, done.stderr
    passage.sql("update outbox set status = 'pending'")
    told = passage.run(*MARK).stderr
    assert passage.sql(BY_WORD.format("outbox")) == [("a", "pending", 5)]
    assert told.count("rows that were left unmarked can't be found") == 1


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
