"""Rows that are older than the slot: `init` counts those that may be unsent, and stops."""

from __future__ import annotations

import threading
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from tests.integration.initial import ROW, Set, place

__all__ = ["place"]

WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)
TABLE_A: LiteralString = (
    "create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text, topic text,"
    " payload jsonb, status text, attempts int, next_run_at timestamptz, locked_by text, locked_at timestamptz,"
    " last_error text, created_at timestamptz default now(), sent_at timestamptz)"
)
TABLE_B: LiteralString = (
    "create table outbox (id bigserial primary key, event_id uuid unique default gen_random_uuid(), bus text,"
    " topic text, payload jsonb, status text, attempts int, last_error text, created_at timestamptz default now(),"
    " sent_at timestamptz)"
)
TABLE_C: LiteralString = (
    "create table outbox (id bigserial primary key, topic text, payload jsonb, sent_at timestamptz)"
)
ENUM: LiteralString = (
    "create type state as enum ('pending', 'SENT');"
    " create table outbox (id int, topic text, payload json, status state)"
)


def test_rows_from_before_are_counted_and_stop_it(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    for _ in range(3):
        place.execute(ROW)
    error, remedy = place.refused()
    assert "public.outbox holds 3 rows" in error
    assert f"cdc-outbox backfill --slot {place.slot}" in remedy
    assert f"cdc-outbox init --no-backfill --slot {place.slot}" in remedy
    pending = f"{place.slot}_pending"
    assert place.slots() == [pending]
    assert place.execute("select slot from cdc_outbox_witness") == [(pending,)]
    start = place.start_of(pending)
    error, remedy = place.refused("--no-http", "--log-format", "text", command="start")
    assert f'only "{pending}" exists' in error
    assert f"cdc-outbox backfill --slot {place.slot}" in remedy
    assert place.steps("--no-backfill")["slot"] == "created"
    assert place.execute(WITNESS)[0][0] == place.start_of(place.slot) == start


def test_the_pending_slot_stays_where_it_is_until_the_rows_are_gone(place: Set) -> None:
    """Counted again each time, from the same position: nothing that was written since the first time is passed over."""
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.refused()
    start = place.start_of(f"{place.slot}_pending")
    place.execute(ROW)
    error, _ = place.refused()
    assert "public.outbox holds 2 rows" in error
    place.execute("truncate outbox")
    place.ok()
    assert place.slots() == [place.slot]
    assert place.start_of(place.slot) == start


def test_drop_removes_a_pending_slot(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.refused()
    assert f'removed slot "{place.slot}_pending"' in place.ok("--yes", command="drop")
    assert place.slots() == []


@pytest.mark.parametrize(
    ("table", "rows", "unsent", "flags"),
    [
        (
            TABLE_A,
            "(status) values ('pending'), ('processing'), ('sent'), ('Sent'), ('failed'), (null)",
            4,
            [],
        ),
        (TABLE_A, "(status, sent_at) values ('sent', now()), ('published', now())", 0, []),
        (TABLE_B, "(bus, status) values ('kafka', 'pending'), ('kafka', 'sent'), ('nats', 'pending')", 1, []),
        (TABLE_C, "(sent_at) values (null), (now()), (null)", 2, []),
        (TABLE_C, "(topic) values ('a'), ('b'), ('c')", 2, ["--only", "topic=a", "--only", "topic=b"]),
        (ENUM, "(status) values ('pending'), ('SENT')", 1, []),
    ],
)
def test_the_tables_own_columns_say_what_is_unsent(
    place: Set, table: LiteralString, rows: LiteralString, unsent: int, flags: list[str]
) -> None:
    for statement in table.split("; "):
        place.execute(statement)
    place.execute("insert into outbox " + rows)
    if unsent:
        error, _ = place.refused(*flags)
        assert f" {unsent} row" in error
        place.execute("truncate outbox")
    place.ok(*flags)


def test_rows_behind_a_row_policy_are_not_overlooked(place: Set, plain_role: str) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.execute("alter table outbox enable row level security")
    place.execute(SQL("grant select on outbox to {}").format(Identifier(plain_role)))
    place.ok("--only", "witness", "--only", "publication", "--role", plain_role)
    error, remedy = place.as_role(plain_role).refused()
    assert "can't be counted" in error
    assert "--admin-dsn" in remedy
    assert place.slots() == []


def test_no_row_falls_between_the_table_and_the_slot(place: Set) -> None:
    """While rows come in, either all of them come from the slot, or init says that some may not."""
    place.ok("--create-table", "--only", "table")
    outcomes = []
    for _ in range(6):
        place.execute("truncate outbox")
        stop = threading.Event()

        def insert(stop: threading.Event = stop) -> None:
            with psycopg.connect(place.dsn, autocommit=True) as connection:
                while not stop.wait(0.05):
                    connection.execute(ROW)

        writer = threading.Thread(target=insert)
        writer.start()
        try:
            done = place.run()
        finally:
            stop.set()
            writer.join()
        outcomes.append(done.returncode)
        if done.returncode == 0:
            ((streamed,),) = place.execute(
                "select count(*) from pg_logical_slot_peek_binary_changes(%s, null, null,"
                " 'proto_version', '1', 'publication_names', 'outbox_pub') where get_byte(data, 0) = 73",
                (place.slot,),
            )
            assert streamed == place.value("select count(*) from outbox")
            place.ok("--yes", command="drop")
        else:
            assert done.returncode == 78
            assert place.slots() == [f"{place.slot}_pending"]
            place.ok("--yes", command="drop")
    assert set(outcomes) <= {0, 78}
