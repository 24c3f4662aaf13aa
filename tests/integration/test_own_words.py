"""A table with a status and words of its own, through the cut-over: what isn't said isn't guessed."""

from __future__ import annotations

from typing import LiteralString

from tests.integration.backfilled import Backfilled, place
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
