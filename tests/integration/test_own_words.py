"""A table with a status and words of its own, through the cut-over: what isn't said isn't guessed."""

from __future__ import annotations

import asyncio
import re
import secrets
import tracemalloc
from pathlib import Path
from typing import LiteralString

from confluent_kafka import Producer

from cdc_outbox.event import TableName
from cdc_outbox.postgres import by_value
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.settings import load
from cdc_outbox.table.values import INT8, field
from tests.integration.backfilled import TABLE_C, Backfilled, place
from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.ledger import read_all
from tests.servers.relay import run_command

__all__ = ["place"]

TABLE: LiteralString = (
    "create table outbox (event_uuid uuid primary key default gen_random_uuid(), seq bigserial, customer_id bigint,"
    " kind text, body jsonb, state text not null default 'NEW'"
    " check (state in ('NEW', 'DISPATCHED', 'GIVEN_UP')), created timestamptz default now())"
)
ROWS: LiteralString = (
    "insert into outbox (customer_id, body, state) select 7, jsonb_build_object('n', n), state"
    " from unnest(array['DISPATCHED', 'DISPATCHED', 'NEW', 'GIVEN_UP', 'NEW']) with ordinality s (state, n)"
)
NAMED = ("--status", "column=state", "--status", "sent=DISPATCHED", "--status", "given_up=GIVEN_UP")


def own(place: Backfilled) -> tuple[str, ...]:
    place.execute(TABLE)
    place.execute(ROWS)
    columns = ("--column", "id=event_uuid", "--column", "created_at=created")
    flags = (*columns, "--key", "customer_id", "--topic", place.topic)
    place.ok("--only", "publication", "--only", "witness")
    return flags


def numbers(place: Backfilled) -> list[int]:
    return [record.json()["n"] for record in place.records()]


def test_a_status_that_nobody_has_named_is_asked_about(place: Backfilled) -> None:
    flags = own(place)
    error, remedy = place.refused(*flags)
    assert "public.outbox holds 5 rows" in error
    assert "public.outbox by state: 2 DISPATCHED, 2 NEW, 1 GIVEN_UP" in error
    assert "--key customer_id" in remedy
    error, remedy = place.refuses(*flags)
    assert "its column state looks as if it did: 2 DISPATCHED, 2 NEW, 1 GIVEN_UP" in error
    assert "[outbox.status]" in remedy
    assert f"--topic {place.topic}" in remedy
    assert place.records() == []
    assert place.slots() == [f"{place.slot}_pending"]


def test_a_column_with_another_value_in_each_row_is_counted_by_the_server(database: Database) -> None:
    """Such as the number of a process: nothing says that it is no status."""

    async def counted() -> tuple[str, int]:
        settings = load("start", {"dsn": database.dsn}, {}, Path("/nonexistent"))
        conn = await connect_control(settings.postgres, application_name="test")
        try:
            column = field("process_id", 0, INT8)
            tracemalloc.start()
            told = await by_value.counted(conn, TableName("public", "outbox"), column, [])
            return told, tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            await conn.close()

    database.server.execute(
        "create table outbox as select greatest(n, 3) as process_id from generate_series(1, 100000) n",
        dbname=database.name,
    )
    told, peak = asyncio.run(counted())
    assert told.startswith("3 3, 1 10, 1 100, ")
    assert told.endswith(", 99988 others")
    assert peak < 2_000_000


def test_with_its_words_named_all_of_it_is_known(place: Backfilled) -> None:
    flags = (*own(place), *NAMED)
    error, _ = place.refused(*flags)
    assert "public.outbox holds 3 rows" in error
    error, remedy = place.refuses(*flags)
    assert "has failed to send 1 row of public.outbox" in error
    assert "--failed skip" in remedy
    assert "--status sent=DISPATCHED" in remedy
    said = place.asked("n\n", 1, *flags, "--failed", "skip")
    assert "public.outbox by state: 2 NEW" in said
    assert "read 2 rows, published 2, left out none" in place.backfill(*flags, "--failed", "skip")
    assert numbers(place) == [3, 5]
    place.execute("insert into outbox (customer_id, body) values (7, '{\"n\": 6}')")
    place.relay(*flags, "--mark", "update")
    assert place.value("select state from outbox where body ->> 'n' = '6'") == "DISPATCHED"


def test_words_and_columns_that_can_not_be(place: Backfilled) -> None:
    flags = own(place)
    for named, words in (
        (("--status", "column=state", "--status", "sent=SENT"), "names the word 'SENT'"),
        (("--status", "column=stat"), "has no column 'stat'"),
    ):
        for refuse in (place.refused, place.refuses):
            error, _ = refuse(*flags, *named)
            assert words in error
    assert place.slots() == []


def test_a_word_without_a_meaning_ends_it(place: Backfilled) -> None:
    flags = (*own(place), "--status", "column=state", "--status", "sent=DISPATCHED")
    error, remedy = place.refuses(*flags)
    assert "column state of public.outbox holds words whose meaning nobody has said: 1 GIVEN_UP" in error
    assert "--status sent=WORD (or failed, given_up, taken, waiting)" in remedy
    assert "left out none" in place.backfill(*flags, "--status", "waiting=NEW", "--status", "failed=GIVEN_UP")
    assert numbers(place) == [3, 4, 5]


def test_a_condition_that_leaves_rows_out(place: Backfilled) -> None:
    flags = (*own(place), *NAMED)
    place.refused(*flags)
    error, remedy = place.refuses(*flags, "--where", "state = 'new'")
    assert error == "no row of public.outbox fulfils --where, and 3 rows are unsent by state"
    assert "cdc-outbox init" in remedy
    assert "--no-backfill" in remedy
    assert place.slots() == [f"{place.slot}_pending"]
    said = place.backfill(*flags, "--where", "seq = 3")
    assert "published 1, left out 2 of public.outbox by --where, though unsent by state" in said
    assert numbers(place) == [3]


def test_marking_a_time_alone_is_warned_of(place: Backfilled) -> None:
    flags = own(place)
    place.execute("alter table outbox add published_at timestamptz")
    place.ok("--no-backfill", *flags)
    marking = (*flags, "--mark", "update")
    done = run_command(
        *("start", "--slot", place.slot, "--bootstrap-servers", place.kafka.bootstrap, "--no-http"),
        *("--until-caught-up", *marking),
        env={"CDC_OUTBOX_DSN": place.dsn},
    )
    assert done.returncode == 0, done.stderr
    assert "marks leave a column as it is that looks like a status" in done.stderr
    done = run_command(
        *("doctor", "--slot", place.slot, "--bootstrap-servers", place.kafka.bootstrap, *marking),
        env={"CDC_OUTBOX_DSN": place.dsn},
    )
    assert "--status column=state" in done.stdout


def test_a_status_that_is_the_orders(place: Backfilled) -> None:
    """The old relay goes by `sent_at`; whether an order is completed says nothing of its event."""
    place.execute(
        "create table outbox (id bigserial primary key, aggregate_id text, topic text, status text not null,"
        " payload jsonb, created_at timestamptz default now(), sent_at timestamptz)"
    )
    insert: LiteralString = (
        "insert into outbox (aggregate_id, topic, status, payload) select 'k', %s, status, jsonb_build_object('n', %s)"
        " from unnest(array['new', 'completed']) status"
    )
    place.execute(insert, (place.topic, 1))
    place.execute("update outbox set sent_at = now()")
    place.execute(insert, (place.topic, 2))
    error, _ = place.refused()
    assert "public.outbox holds 3 rows" in error
    assert "public.outbox by status: 2 new, 1 completed" in error
    error, remedy = place.refuses()
    assert error == (
        "column status of public.outbox looks as if it said that rows were sent whose sent_at is NULL: 1 completed"
    )
    assert "--column sent_at=sent_at" in remedy
    assert place.records() == []
    named = ("--column", "sent_at=sent_at")
    assert "published 2, left out none" in place.backfill(*named)
    place.execute(insert, (place.topic, 3))
    place.relay()
    assert numbers(place) == [2, 2, 3, 3]
    place.relay("--mark", "update", *named)
    assert place.value("select count(*) from outbox where sent_at is null") == 0
    assert place.value("select count(*) from outbox where status = 'completed'") == 3


def test_a_status_without_its_time_is_believed_once_it_is_named(place: Backfilled) -> None:
    place.execute(
        "create table outbox (id bigserial primary key, aggregate_id text, topic text, status text default 'new',"
        " payload jsonb, processed_at timestamptz)"
    )
    place.execute("insert into outbox (status) values ('done'), ('done')")
    error, _ = place.refused()
    assert "public.outbox by status: 2 done" in error
    place.ok("--status", "column=status")


def test_a_time_that_is_there_from_the_insert_on_is_no_mark(place: Backfilled) -> None:
    """`published_at` is the article's, and the old relay deletes what it has sent."""
    place.execute(
        "create table outbox (id bigserial primary key, topic text, aggregate_id text, payload jsonb,"
        " published_at timestamptz default now())"
    )
    row: LiteralString = "insert into outbox (topic, aggregate_id, payload) values (%s, 'k', '{\"n\": 1}')"
    place.execute(row, (place.topic,))
    for refuse in (place.refused, place.refuses):
        error, remedy = refuse()
        assert (
            "column published_at of public.outbox can't be the time that is NULL until a row was sent"
            in error
        )
        assert "it has the default now()" in error
        assert "--column created_at=published_at" in remedy
        assert "--column sent_at=published_at" in remedy
    assert "public.outbox holds 1 row from before the slot" in place.refused()[0]
    place.ok("--column", "sent_at=published_at")
    place.ok("--yes", command="drop")
    place.execute("alter table outbox alter published_at set not null, alter published_at drop default")
    for flags in ((), ("--column", "sent_at=published_at")):
        error, remedy = place.refused(*flags)
        assert "it is NOT NULL" in error
        assert "--column sent_at=published_at" not in remedy
    assert place.slots() == []
    named = ("--column", "created_at=published_at")
    assert "published 1, left out none" in place.backfill(*named)
    place.execute("alter table outbox alter published_at set default now()")
    place.execute(row, (place.topic,))
    place.relay(*named)
    assert numbers(place) == [1, 1]


def test_rows_that_are_inserted_as_sent_are_told_once(place: Backfilled) -> None:
    place.execute(TABLE_C)
    place.ok("--key", "none")
    for _ in range(2):
        place.execute("insert into outbox (topic, sent_at) values (%s, now())", (place.topic,))
    done = run_command(
        *("start", "--slot", place.slot, "--bootstrap-servers", place.kafka.bootstrap, "--no-http"),
        *("--until-caught-up", "--key", "none"),
        env={"CDC_OUTBOX_DSN": place.dsn},
    )
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "inserted as sent are left out" in line]
    assert "public.outbox" in line
    assert "sent_at" in line


def test_the_example_file_of_a_table_with_names_of_its_own_leads_through_the_cut_over(
    place: Backfilled,
) -> None:
    file = CHECKOUT / "docs" / "examples" / "table-own.toml"
    written = re.findall(r"^#   (.*)$", file.read_text(), re.MULTILINE)
    place.execute("\n".join(written))
    kind, config = f"order-{secrets.token_hex(4)}", ("--config", str(file))
    place.execute(
        'insert into "Sales"."OutboxEvents" ("entityKind", "entityRef", "eventKind", document, "deliveryState")'
        " select %s, '7', 'Placed', jsonb_build_object('n', n), state from unnest(array['DISPATCHED', 'RETRYING',"
        " 'NEW']) with ordinality s (state, n)",
        (kind,),
    )
    sent, *unsent = [
        str(id_)
        for (id_,) in place.execute('select "eventUuid" from "Sales"."OutboxEvents" order by "seqNo"')
    ]
    with place.kafka.without(topic := f"sales.{kind}"):
        place.kafka.create_topic(topic, 3)
        producer = Producer({"bootstrap.servers": place.kafka.bootstrap, "partitioner": "murmur2"})
        producer.produce(topic, '{"n": 1}', "7", headers=[("message-id", sent.encode())])
        assert producer.flush(30) == 0
        error, remedy = place.refused(*config)
        assert "holds 2 rows" in error
        assert remedy.startswith("stop the old relay, then publish them: cdc-outbox backfill ")
        assert "published 2" in place.backfill(*config)
        place.execute(
            'insert into "Sales"."OutboxEvents" ("entityKind", "entityRef", "eventKind", document)'
            " values (%s, '7', 'Placed', '{\"n\": 4}')",
            (kind,),
        )
        place.relay(*config)
        first, *ours = sorted(read_all(place.kafka.bootstrap, topic), key=lambda record: record.offset)
        assert first.id is None
        assert [record.json()["n"] for record in ours] == [2, 3, 4]
        assert [record.id for record in ours][:2] == unsent
        assert all(dict(record.headers)["type"] == b"Placed" for record in ours)
        assert all(record.key == b"7" and record.partition == first.partition for record in ours)
        done = run_command(
            *(
                "audit",
                "--twice-ok",
                "--slot",
                place.slot,
                "--bootstrap-servers",
                place.kafka.bootstrap,
                *config,
            ),
            env={"CDC_OUTBOX_DSN": place.dsn},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rows         4 read, 4 delivered" in done.stdout
