"""What `doctor` says of the table, its columns and its rows."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.integration.consultation import ROW, Doctor, as_relay, doctor
from tests.servers.kafka import Kafka

__all__ = ["as_relay", "doctor"]


GENERATED: LiteralString = (
    "id bigint primary key, topic text, payload jsonb,"
    " aggregate_id text generated always as (payload ->> 'a') stored"
)


@pytest.mark.parametrize(
    ("columns", "status", "words"),
    [
        (
            "id bigint primary key, payload jsonb, topic text",
            "failed",
            "no key; its payloads have the members a, order_id",
        ),
        (
            "id bigint primary key, aggregate_id text, payload jsonb, topic text",
            "ok",
            "key from aggregate_id",
        ),
        ("id bigint primary key, aggregate_id text, topic text", "failed", "recognised as payload"),
        ("aggregate_id text, payload jsonb, topic text", "failed", "recognised as id"),
        (
            GENERATED,
            "failed",
            "is generated",
        ),
    ],
)
def test_columns(doctor: Doctor, columns: LiteralString, status: str, words: str) -> None:
    doctor.execute(SQL("create table outbox ({})").format(SQL(columns)))
    if "payload" in columns and columns.startswith("id"):
        doctor.execute('insert into outbox (id, payload) values (1, \'{"order_id": 1, "a": "x"}\')')
    doctor.init("--no-backfill")
    mapping = doctor.look(code=78 if status == "failed" else 0)["postgres.mapping"]
    assert mapping["status"] == status
    assert words in mapping["message"]


def test_marks(as_relay: Doctor) -> None:
    """Only where rows are to be marked; what `start` would refuse, with what `init` grants as a way out."""
    place = as_relay
    place.execute("alter table outbox add column status text")
    assert "postgres.marks" not in place.look()
    marks = place.look("--mark", "update", code=78)["postgres.marks"]
    assert "it lacks select (id), select (status)" in marks["message"]
    statement = str(marks["remedy"]).partition("as its owner: ")[2].partition(" or leave")[0]
    place.execute(SQL(statement))  # type: ignore[arg-type]
    marks = place.look("--mark", "update")["postgres.marks"]
    assert (marks["status"], marks["message"]) == ("ok", "public.outbox: status = 'sent', found by id")
    place.execute(
        "create function f() returns trigger language plpgsql as 'begin return new; end';"
        " create trigger told before update on outbox for each row execute function f()"
    )
    marks = place.look("--mark", "update")["postgres.marks"]
    assert (marks["status"], "triggers told run" in marks["message"]) == ("warning", True)


def test_cleanup(as_relay: Doctor) -> None:
    """Only where the relay is to remove old rows; whatever is in the way, it can deliver."""
    place = as_relay
    assert "postgres.cleanup" not in place.look()
    cleanup = place.look("--cleanup-older-than", "7d")["postgres.cleanup"]
    assert (cleanup["status"], "may not remove rows of public.outbox" in cleanup["message"]) == (
        "warning",
        True,
    )
    statement = str(cleanup["remedy"]).partition("as its owner: ")[2].partition(" or name")[0]
    place.execute(SQL(statement))  # type: ignore[arg-type]
    cleanup = place.look("--cleanup-older-than", "7d")["postgres.cleanup"]
    assert cleanup["message"] == (
        "public.outbox: rows that are older than 7d go once they are acknowledged, by created_at"
    )
    place.execute("alter table outbox drop column created_at")
    cleanup = place.look("--cleanup-older-than", "7d")["postgres.cleanup"]
    assert "no column that says how old a row is" in cleanup["message"]


def test_what_is_no_table(doctor: Doctor) -> None:
    doctor.execute("create view outbox as select 1 as id")
    assert "is a view" in doctor.look(code=78)["postgres.table"]["message"]
    doctor.execute("create unlogged table unlogged (id int)")
    unlogged = doctor.look("--table", "unlogged", code=78)["postgres.table"]
    doctor.follow(unlogged)
    assert doctor.look("--table", "unlogged", code=78)["postgres.table"]["status"] == "ok"


def test_rows_that_could_never_be_sent(doctor: Doctor, kafka: Kafka, topics: str) -> None:
    doctor.execute("create table outbox (id int primary key, topic text, aggregate_id text, payload text)")
    doctor.init()
    doctor.execute(
        "insert into outbox values (1, %s, 'k', 'v'), (2, 'no topic!', 'k', 'v'), (3, %s, null, 'v')",
        (f"{topics}a", f"{topics}a"),
    )
    kafka.create_topic(f"{topics}a")
    checks = doctor.look()
    rows, waiting = checks["postgres.rows"], checks["postgres.waiting"]
    assert rows["status"] == waiting["status"] == "warning"
    assert "event 2 of public.outbox" in waiting["message"]
    assert (
        "3 of the newest rows of public.outbox: 2 can't be published, the first (2) because"
        in rows["message"]
    )
    assert "'no topic!' is illegal" in rows["message"]


def test_rows_of_one_size_are_as_good_a_sample(doctor: Doctor) -> None:
    doctor.execute("create table outbox (id int primary key, topic text, aggregate_id text, payload text)")
    doctor.execute("alter table outbox alter column payload set storage external")
    doctor.init()
    doctor.execute(
        "insert into outbox select g, 'nowhere', 'k', repeat('x', 200000) from generate_series(1, 30) g"
    )
    # As many as there is room for in the 4 MiB that are looked at.
    assert "20 of the newest rows" in doctor.look(code=1)["postgres.rows"]["message"]


def test_a_table_that_is_locked_is_no_fault(doctor: Doctor) -> None:
    """As by VACUUM FULL, or by a migration."""
    doctor.execute("create table outbox (id int primary key, topic text, aggregate_id text, payload text)")
    doctor.init()
    with psycopg.connect(doctor.owner) as migration:
        migration.execute("lock table outbox in access exclusive mode")
        found = doctor.look()
    assert found["postgres.rows"]["message"] == (
        "not looked at: another session has public.outbox to itself just now"
    )
    assert found["postgres.mapping"]["status"] == found["postgres.publication"]["status"] == "ok"


BY_STATE: LiteralString = "list (status); create table pending partition of outbox for values in ('pending')"
BELOW: LiteralString = (
    "range (id); create table first partition of outbox for values from (1) to (9) partition by list (status);"
    " create table pending partition of first for values in ('pending')"
)
BY_EXPRESSION: LiteralString = (
    "list ((sent_at is null)); create table unsent partition of outbox for values in (true)"
)


@pytest.mark.parametrize(
    ("partitions", "moves"),
    [(BY_STATE, "status"), (BELOW, "status"), (BY_EXPRESSION, "sent_at")],
    ids=["state", "below", "expression"],
)
def test_a_partition_by_state(partitions: LiteralString, moves: str, doctor: Doctor) -> None:
    doctor.execute(
        "create table outbox (id int, aggregate_id text, topic text, payload text, status text, sent_at timestamptz)"
        " partition by " + partitions
    )
    doctor.init()
    doctor.execute("insert into outbox values (1, 'k', 'nowhere', 'v', 'pending')")
    checks = doctor.look(code=1)
    assert checks["kafka.topics"]["message"].startswith("the cluster has no topic nowhere, where rows go")
    assert f"partitioned by {moves}" in checks["postgres.partitioning"]["message"]
    assert "1 would be sent" in checks["postgres.rows"]["message"]


def test_hidden_rows_are_no_sample(as_relay: Doctor, outbox_topic: str, aggregate_type: str) -> None:
    as_relay.execute(SQL("grant select on outbox to {}").format(Identifier(as_relay.slot)))
    as_relay.execute("alter table outbox enable row level security")
    as_relay.execute(f"{ROW} values (%s, '1', 'placed', '{{}}')", (aggregate_type,))
    checks = as_relay.look(code=1)
    assert "not looked at" in checks["postgres.rows"]["message"]
    assert f"no topic {outbox_topic}" in checks["kafka.topics"]["message"]


def test_a_suggestion_is_no_warning(as_relay: Doctor) -> None:
    rows = as_relay.look()["postgres.rows"]
    assert rows["status"] == "ok"
    assert "may not read public.outbox" in rows["message"]
    as_relay.follow(rows)
    assert "is empty" in as_relay.look()["postgres.rows"]["message"]
