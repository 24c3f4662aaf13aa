"""`backfill`: which rows of each table it publishes, in which order, what it refuses, and the slot's name then."""

from __future__ import annotations

from itertools import product
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cdc_outbox.postgres.unsent import among, unsent
from cdc_outbox.table import selection, sent
from cdc_outbox.table.values import BPCHAR, TEXT, TIMESTAMPTZ, field
from tests.integration.backfilled import TABLE_A, TABLE_B, TABLE_C, Backfilled, place
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually

__all__ = ["place"]

ROW_C: LiteralString = (
    "insert into outbox (topic, payload) select %s, jsonb_build_object('n', n) from generate_series(1, %s) n"
)
KEYLESS = ("--key", "none")


def numbers(place: Backfilled) -> list[int]:
    return [record.json()["n"] for record in place.records()]


def rows_of_c(place: Backfilled, count: int) -> None:
    place.execute(TABLE_C)
    place.execute(ROW_C, (place.topic, count))
    place.ok("--only", "publication", "--only", "witness")


@ALL_VERSIONS
def test_rows_of_table_a(place: Backfilled) -> None:
    """Pending, stale in processing, failed (to be tried again) and of unknown states; in the order of the sequence."""
    place.execute(TABLE_A)
    place.execute(
        "insert into outbox (aggregate_id, topic, payload, status, locked_at)"
        " select 'k', %s, jsonb_build_object('n', n), status, now() - interval '1 h'"
        " from unnest(array['pending', 'sent', 'processing', 'failed', null]) with ordinality s (status, n)",
        (place.topic,),
    )
    error, remedy = place.refused()
    assert "public.outbox holds 4 rows from before the slot" in error
    assert f"cdc-outbox backfill --slot {place.slot}" in remedy
    assert place.slots() == [f"{place.slot}_pending"]
    start = place.start_of(f"{place.slot}_pending")
    said = place.backfill()
    assert "read 4 rows, published 4, left out none" in said
    assert place.start_of(place.slot) == start
    if place.database.major >= 17:
        assert place.value(
            "select bool_and(failover) from pg_replication_slots where database = current_database()"
        )
    assert numbers(place) == [1, 3, 4, 5]
    place.execute(
        "insert into outbox (aggregate_id, topic, payload) values ('k', %s, '{\"n\": 6}')", (place.topic,)
    )
    place.relay()
    first, *_, last = place.records()
    assert last.json()["n"] == 6
    assert (first.header("cdc.source"), last.header("cdc.source")) == ("backfill", None)
    created = place.value("select (extract(epoch from created_at) * 1000)::int8 from outbox limit 1")
    assert abs(first.timestamp - created) <= 1


def test_rows_that_were_given_up_have_to_be_spoken_of(place: Backfilled) -> None:
    """Table B; rows for another bus are left out, and counted."""
    place.execute(TABLE_B)
    place.execute(
        "insert into outbox (bus, topic, payload, status) select bus, %s, jsonb_build_object('n', n), status"
        " from unnest(array['kafka', 'kafka', 'nats', 'kafka'], array['pending', 'failed', 'pending', 'sent'])"
        " with ordinality s (bus, status, n)",
        (place.topic,),
    )
    place.refused(*KEYLESS)
    error, remedy = place.refuses(*KEYLESS)
    assert "has failed to send 1 row of public.outbox and has given up" in error
    assert "--failed publish" in remedy
    assert "--failed skip" in remedy
    assert place.records() == []
    assert "read 2 rows, published 1, left out 1 bus" in place.backfill(*KEYLESS, "--failed", "skip")
    assert numbers(place) == [1]
    event_id = place.value("select event_id::text from outbox where id = 1")
    assert place.ids() == [event_id]


def test_what_the_stream_would_bring_late_is_not_left_out(place: Backfilled) -> None:
    """Given up, or beside a condition, since the slot was made; from before it that is left out.

    Another slot, which is older, says nothing of ours.
    """
    older = f"{place.slot}_older"
    place.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (older,))
    place.execute(
        "create table outbox (id bigserial primary key, topic text, payload text, status text default 'pending')"
    )
    row = "insert into outbox (topic, payload, status) values (%s, %s, %s)"
    for payload, status in (("0", "failed"), ("1", "pending")):
        place.execute(row, (place.topic, payload, status))
    place.refused(*KEYLESS)
    for payload, status in (("2", "failed"), ("3", "sent"), ("4", "pending")):
        place.execute(row, (place.topic, payload, status))
    done = place.command(*KEYLESS, "--failed", "skip")
    assert "published 3" in done.stdout, done.stderr
    assert "left out, and published all the same" in done.stderr
    assert [record.value for record in place.records()] == [b"1", b"2", b"4"]
    place.relay(*KEYLESS)
    assert [record.value for record in place.records()] == [b"1", b"2", b"4", b"2", b"4"]
    place.ok("--yes", command="drop")
    place.ok("--only", "publication", "--only", "witness")
    assert "published 1" in place.backfill(*KEYLESS, "--where", "payload = '2'")
    assert place.records()[-1].value == b"2"
    place.execute("select pg_drop_replication_slot(%s)", (older,))


def test_which_rows_and_in_which_order(place: Backfilled) -> None:
    rows_of_c(place, 3)
    place.execute("update outbox set sent_at = now() where id = 1")
    place.backfill(*KEYLESS)
    arrived = [2, 3]
    assert numbers(place) == arrived
    for flags, more in (
        (("--all",), [1, 2, 3]),
        (("--where", "id % 2 = 1 -- odd"), [1, 3]),
        (("--order-by", "id desc"), [3, 2]),
    ):
        place.backfill(*KEYLESS, "--overlap", *flags)
        arrived += more
        assert numbers(place) == arrived


def test_without_a_sequence_the_time_of_creation_says_the_order(place: Backfilled, topics: str) -> None:
    """The default table; nothing says what was sent, so all rows are."""
    create_outbox(place.dsn)
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at)"
        " select 'orders', 'k', 'e', jsonb_build_object('n', n), now() - make_interval(secs => n)"
        " from generate_series(1, 5) n"
    )
    place.ok("--only", "publication")
    place.backfill("--topic", topics + "{aggregate_type}")
    assert numbers(place) == [5, 4, 3, 2, 1]


def test_numbers_from_a_cache_say_less_than_the_time_of_creation(place: Backfilled) -> None:
    """Each session has a block of its own: what came later may have a lower number."""
    place.execute(
        "create sequence numbers cache 50;"
        "create table outbox (id bigint primary key default nextval('numbers'), topic text, payload text,"
        " created_at timestamptz not null default clock_timestamp());"
        "create table untimed (id bigint generated always as identity (cache 2), topic text, payload text)"
    )
    row: LiteralString = "insert into outbox (topic, payload) values (%s, %s)"
    with (
        psycopg.connect(place.dsn, autocommit=True) as first,
        psycopg.connect(place.dsn, autocommit=True) as other,
    ):
        first.execute(row, (place.topic, "1"))
        for payload, session in (("2", other), ("3", first), ("4", other)):
            session.execute(row, (place.topic, payload))
    assert [id_ for (id_,) in place.execute("select id from outbox order by created_at")] == [1, 51, 2, 52]
    tables = ("--table", "outbox", "--table", "untimed")
    place.ok("--only", "publication", "--only", "witness", *tables)
    error, remedy = place.refuses(*KEYLESS, *tables)
    assert "public.untimed" in error
    assert "the sequence of id gives each session a block of 2 numbers" in error
    assert remedy.endswith("--order-by id")
    place.execute("alter publication outbox_pub drop table untimed")
    place.backfill(*KEYLESS)
    assert [record.value for record in place.records()] == [b"1", b"2", b"3", b"4"]


@ALL_VERSIONS
@pytest.mark.parametrize(
    ("column", "sequence", "doubt"),
    [
        ("bigint", "", "the numbers in id are the application's own"),
        (
            "bigint default nextval('numbers')",
            "alter sequence numbers owned by outbox.id",
            "the sequence of id counts in steps of 50 (INCREMENT 50)",
        ),
    ],
    ids=["its own", "steps"],
)
def test_numbers_that_the_application_takes_in_blocks_say_less_than_the_time_of_creation(
    place: Backfilled, column: LiteralString, sequence: LiteralString, doubt: str
) -> None:
    """As Hibernate does: two instances, each with fifty numbers from one call of the sequence."""
    place.execute("create sequence numbers increment 50")
    place.execute(
        f"create table outbox (id {column} primary key, topic text, payload text,"
        " created_at timestamptz not null default clock_timestamp());" + sequence
    )
    for payload, id_ in enumerate([51, 1, 52, 2], 1):
        place.execute(
            "insert into outbox (id, topic, payload) values (%s, %s, %s)", (id_, place.topic, str(payload))
        )
    place.ok("--only", "publication", "--only", "witness")
    place.backfill(*KEYLESS)
    assert [record.value for record in place.records()] == [b"1", b"2", b"3", b"4"]
    place.execute("alter table outbox drop column created_at")
    error, remedy = place.refuses(*KEYLESS, "--overlap")
    assert doubt in error
    assert remedy.endswith("--order-by id")
    place.backfill(*KEYLESS, "--overlap", "--order-by", "id")
    assert [record.value for record in place.records()][4:] == [b"2", b"4", b"1", b"3"]


def test_bytes_are_those_of_the_stream(place: Backfilled) -> None:
    place.execute(
        "create table outbox (id bigserial, topic text, aggregate_id bytea, payload text, headers jsonb)"
    )
    insert: LiteralString = (
        "insert into outbox (topic, aggregate_id, payload, headers) values"
        " (%(t)s, '\\x00ff5c0a', E'a\\tb\\nc\\\\N\\r\\\\', '{\"h\": \"ü \\\"q\\\"\"}'), (%(t)s, '', '', null),"
        " (%(t)s, 'k', null, '{}'), (%(t)s, 'k', '\\N', '{\"a\": [1, 2.50]}')"
    )
    with psycopg.connect(place.dsn) as connection:
        connection.execute(insert, {"t": place.topic})
    place.ok("--only", "publication")
    place.backfill()
    with psycopg.connect(place.dsn) as connection:
        connection.execute(insert, {"t": place.topic})
    place.relay()
    table, stream = place.records()[:4], place.records()[4:]
    assert [(each.key, each.value, each.headers[1:-1]) for each in table] == [
        (each.key, each.value, each.headers[1:]) for each in stream
    ]
    assert table[0].value == b"a\tb\nc\\N\r\\"


ICU: LiteralString = "select exists (select from pg_collation where collname = 'tr-x-icu')"
"""Whether the server was built with it: the wheel's PostgreSQL wasn't."""


@ALL_VERSIONS
def test_table_and_stream_agree_on_what_is_sent(database: Database) -> None:
    """What was left out of the stream as sent is what isn't counted as unsent, whatever the status is like."""
    words = sorted(
        sent.SENT_WORDS | sent.FAILED_WORDS | sent.TAKEN_WORDS | {"", "pending", "unsent", "\u017fent", "\t"}
    )
    spelled = [*words, *map(str.upper, words), *map(str.title, words), *(f" {word}" for word in words)]
    spelled += [f"{word} " for word in words] + [f"{word}\n" for word in words]
    times = (None, field("sent_at", 1, TIMESTAMPTZ))
    # A Turkish I becomes another small letter than the stream's.
    turkish = [('text collate "tr-x-icu"', TEXT)] if database.server.value(ICU) else []
    types = (("text", TEXT), ("char(20)", BPCHAR), *turkish)
    for (of_type, oid), beside in product(types, times):
        status = sent.Sent(field("status", 0, oid), "word", beside=beside)
        rule = selection.sent(status, {})
        with psycopg.connect(database.dsn) as connection:
            connection.execute(
                SQL("create temp table t (status {}, sent_at timestamptz)").format(SQL(of_type))
            )
            connection.execute("insert into t values (null)")
            connection.cursor().executemany("insert into t values (%s)", [(text,) for text in spelled])
            connection.execute("insert into t select status, now() from t")
            query = SQL("select format('%s', status), status is null, sent_at is null, {} from t").format(
                unsent(status)
            )
            rows = connection.execute(query).fetchall()
            connection.execute("drop table t")
        assert len(rows) == 2 * len(spelled) + 2
        for text, null, timeless, waits in rows:
            values = [None if null else text.encode(), None if timeless else b"2024-01-17 13:14:10+00"]
            assert (rule(values, 0) is None) == waits, text


@ALL_VERSIONS
def test_table_and_stream_agree_on_whose_rows_are_sent(database: Database) -> None:
    """What the stream sends of a bus is what is counted, marked and removed as ours, however a column compares."""
    bus = field("bus", 0, TEXT)
    rule = selection.bus(bus, ("kafka",), {})
    with psycopg.connect(database.dsn) as connection:
        collation: LiteralString = '"C"'
        if database.server.value(ICU):
            collation = "any_case"
            connection.execute(
                "create collation any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        connection.execute(f"create temp table t (bus text collate {collation})")
        connection.execute(
            "insert into t values ('kafka'), ('Kafka'), ('KAFKA'), ('rabbitmq'), ('ka\uff46ka')"
        )
        (ours,) = among([(bus, ("kafka",))])
        rows = connection.execute(SQL("select bus, {} from t").format(ours)).fetchall()
    assert [(text, rule([text.encode()], 0) is None) for text, _ in rows] == rows
    assert [text for text, is_ours in rows if is_ours] == ["kafka"]


def test_rows_in_the_old_relays_hands(place: Backfilled) -> None:
    place.execute(TABLE_A)
    place.execute(
        "insert into outbox (aggregate_id, topic, payload, status, locked_at, locked_by)"
        " values ('k', %s, '{}', 'processing', now(), 'worker-7')",
        (place.topic,),
    )
    place.refused()
    error, remedy = place.refuses(code=1)
    assert "still at work: 1 row of public.outbox was taken by worker-7 less than 300 s ago" in error
    assert "--stale-after 0s" in remedy
    assert place.slots() == [f"{place.slot}_pending"]
    place.execute("update outbox set locked_at = now() - interval '1 h'")
    error, _ = place.refuses("--stale-after", "999999999999d", code=1)
    assert "was taken by worker-7" in error
    with psycopg.connect(place.dsn, application_name="worker-8") as connection:
        connection.execute("select from outbox for update skip locked")
        error, _ = place.refuses(code=1)
        assert f"pid {connection.info.backend_pid} (worker-8) has locked rows of public.outbox" in error
    place.execute("update outbox set locked_at = now()")
    assert "published 1" in place.backfill("--stale-after", "0s")


def test_rows_that_are_for_later(place: Backfilled) -> None:
    """Unless they only wait for another attempt."""
    place.execute(TABLE_A)
    place.execute(
        "insert into outbox (aggregate_id, topic, payload, next_run_at, status, attempts) select 'k', %s, '{}',"
        " now() + interval '1 h', status, attempts"
        " from unnest(array['pending', 'failed', 'pending'], array[0, 0, 2]) s (status, attempts)",
        (place.topic,),
    )
    place.ok("--only", "publication")
    error, remedy = place.refuses()
    assert (
        "1 row of public.outbox that nobody has tried to send yet is to be sent later, by next_run_at"
        in error
    )
    assert "CDC_OUTBOX_OUTBOX_SCHEDULED=ignore cdc-outbox backfill" in remedy
    done = place.command(env={"CDC_OUTBOX_OUTBOX_SCHEDULED": "ignore"})
    assert "published 3" in done.stdout, done.stderr


@pytest.mark.parametrize("zone", ["America/New_York", "UTC", "Asia/Tokyo"])
def test_times_without_a_zone_may_go_by_the_clock_of_utc_or_of_the_database(
    place: Backfilled, zone: str
) -> None:
    """What is fresh, or for later, by either of them is: behind UTC, ahead of it, and as one."""
    place.execute(SQL("alter database {} set timezone = {}").format(Identifier(place.database.name), zone))
    place.execute(TABLE_A.replace("timestamptz", "timestamp"))
    row: LiteralString = (
        "insert into outbox (aggregate_id, topic, payload, status, locked_at, locked_by, next_run_at)"
        " select 'k', %s, '{}', %s, at - %s::interval, 'worker-7', at + %s::interval - interval '1 day'"
        " from (select case when %s then now() at time zone 'UTC' else now()::timestamp end) s (at)"
    )
    for utc in (False, True):
        place.execute("truncate outbox")
        place.execute(row, (place.topic, "processing", "1 min", "0", utc))
        place.ok("--only", "publication")
        error, remedy = place.refuses(code=1)
        assert (
            "1 row of public.outbox was taken by worker-7 less than 300 s ago, by locked_at, whose times have"
            in error
        )
        assert "--stale-after 0s" in remedy
        place.execute("truncate outbox")
        place.execute(row, (place.topic, "pending", "1 day", "1 day 1 h", utc))
        error, remedy = place.refuses()
        assert (
            "yet is to be sent later, by next_run_at, whose times have no time zone: by UTC, or by" in error
        )
        assert "CDC_OUTBOX_OUTBOX_SCHEDULED=ignore" in remedy
    place.execute("update outbox set next_run_at = next_run_at - interval '1 day', locked_at = null")
    assert "published 1" in place.backfill()
    assert ("times without a zone are read as UTC" in place.relay()) is (zone != "UTC")


def test_a_table_that_would_be_left_behind(place: Backfilled) -> None:
    """The slot feeds all tables of the publication, so its name must not come before the rows of each."""
    rows_of_c(place, 1)
    place.execute("create table other (like outbox including all)")
    place.execute("alter publication outbox_pub add table other")
    error, remedy = place.refuses(*KEYLESS)
    assert "would pass over rows of those for good" in error
    assert f"cdc-outbox backfill --slot {place.slot} --table public.outbox --table public.other" in remedy


def test_it_asks_first(place: Backfilled) -> None:
    error, remedy = place.refuses(code=2, yes=False)
    assert "no terminal to ask on" in error
    assert f"cdc-outbox backfill --yes --slot {place.slot}" in remedy
    rows_of_c(place, 1)
    for answer, code in (("n\n", 1), ("\x03", 130), ("y\n", 0)):
        said = place.asked(answer, code, *KEYLESS)
        assert "public.outbox: rows whose sent_at is NULL, in the order of id." in said
        assert "Is the old relay stopped? [y/N]" in said
        assert (place.slots() == []) == (code != 0)
    assert numbers(place) == [1]


def test_a_condition_that_is_none(place: Backfilled) -> None:
    rows_of_c(place, 2)
    place.execute(
        "create function drawn(bigint) returns bigint stable language plpgsql as"
        " 'begin return nextval(''outbox_id_seq''); end'"
    )
    for where, code, words in (
        ("sent_at is", 2, "is not a condition in SQL: syntax error at its end"),
        ("topic = 'open", 2, 'unterminated quoted string at or near "\'open"'),
        ("true); drop table outbox; --", 2, "is not a condition in SQL"),
        ("true) or (true", 2, "is not a condition in SQL"),
        ("id = $1", 2, "holds a parameter, such as $1"),
        ("count(*) > 1", 78, "aggregate functions are not allowed in WHERE"),
        ("nothing = 1", 78, 'column "nothing" does not exist'),
        ("id", 78, "must be type boolean"),
        ("nextval('outbox_id_seq') > 0", 78, "(VOLATILE)"),
        ("public.drawn(id) > 0", 78, "read-only transaction"),
        ("1 / (id - 1) > 0", 78, "division by zero"),
    ):
        error, remedy = place.refuses(*KEYLESS, "--where", where, code=code)
        assert words in error
        assert "mend" in remedy
        assert place.value("select count(*) from outbox") == 2
    assert place.records() == []
    assert place.slot not in place.slots()


@ALL_VERSIONS
def test_a_condition_that_may_change_its_mind(place: Backfilled) -> None:
    """Rows could be left out and then be marked as sent, since they weren't known to be left out."""
    place.execute(TABLE_C)
    place.execute(ROW_C, (place.topic, 3))
    place.execute(
        "create table other (id bigint);"
        "create function own(bigint) returns boolean language plpgsql as 'begin return $1 > 1; end'"
    )
    place.ok("--only", "publication", "--only", "witness")
    for condition in (
        "clock_timestamp() > now()",
        "id > 1 and random() < 0.5",
        "id in (select id from other where clock_timestamp() > now())",
        "own(id)",
    ):
        error, remedy = place.refuses(*KEYLESS, "--where", condition)
        assert "may say something else of a row each time (VOLATILE)" in error
        assert "now()" in remedy
    assert place.records() == []
    assert place.slots() == []
    place.execute("alter function own stable")
    for condition in (
        "own(id) and now() > 'epoch' and id not in (select id from other)",
        "outbox.id = (select max(id) from outbox)",
    ):
        place.backfill(*KEYLESS, "--overlap", "--where", condition)
    assert numbers(place) == [2, 3, 3]


def test_flags_that_can_not_be(place: Backfilled) -> None:
    rows_of_c(place, 1)
    for flags, code, words in (
        (("--where", "true", "--all"), 2, "choose one"),
        (("--failed", "dead-letter"), 2, "comes with a later version"),
        (("--order-by", "nothing"), 78, "has no column 'nothing'"),
        (("--order-by", "id; drop"), 2, "is not a list of columns"),
        (("--bootstrap-servers", "127.0.0.1:1"), 1, "Kafka"),
    ):
        error, _ = place.refuses(*KEYLESS, *flags, code=code)
        assert words in error
    assert place.slots() == []


def test_tables_that_can_not_be(place: Backfilled) -> None:
    """Each is named before anything is made, and nothing is sent."""
    place.execute("create table plain (id uuid, topic text, payload jsonb)")
    place.execute("create publication outbox_pub for all tables with (publish = 'insert')")
    error, remedy = place.refuses("--table", "plain", *KEYLESS)
    assert "nothing says in which order the rows of public.plain were written" in error
    assert "--order-by id" in remedy
    error, _ = place.refuses("--table", "absent", *KEYLESS)
    assert "absent" in error
    error, remedy = place.refuses("--table", "plain", "--publication", "nowhere", *KEYLESS)
    assert error == "publication nowhere does not exist"
    assert remedy.startswith(
        f"cdc-outbox init --publication nowhere --table public.plain --slot {place.slot}"
    )
    assert place.slots() == []


def test_a_slot_that_is_there(place: Backfilled) -> None:
    """Refused, unless the rows are to be sent beside it; and then only while no relay streams."""
    rows_of_c(place, 2)
    place.backfill(*KEYLESS)
    error, remedy = place.refuses(*KEYLESS)
    assert f'the slot "{place.slot}" exists' in error
    assert "--overlap" in remedy
    start = place.start_of(place.slot)
    done = place.command(*KEYLESS, "--overlap")
    assert "published 2" in done.stdout, done.stderr
    assert done.stderr.count("info    mapping\n") == 1, done.stderr
    assert numbers(place) == [1, 2, 1, 2]
    assert place.start_of(place.slot) == start
    relay = RelayProcess(place.dsn, place.kafka.bootstrap, slot=place.slot, flags=KEYLESS)
    try:
        relay.wait_state("streaming")
        error, _ = place.refuses(*KEYLESS, "--overlap", code=1)
        assert f'streams from the slot "{place.slot}"' in error
    finally:
        relay.close()


def test_several_tables_in_turn(place: Backfilled) -> None:
    rows_of_c(place, 2)
    place.execute("create table other (like outbox including all)")
    place.execute("insert into other select id + 10, topic, '{\"n\": 11}', null from outbox where id = 1")
    place.execute("alter publication outbox_pub add table other")
    said = place.backfill(*KEYLESS, "--table", "outbox", "--table", "other")
    assert "read 3 rows, published 3" in said
    assert numbers(place) == [1, 2, 11]


def test_a_row_that_can_not_be_published(place: Backfilled) -> None:
    """What comes before it is published, nothing is decided, and the way out works."""
    place.execute(
        "create table outbox (id bigserial primary key, topic text, aggregate_id text, payload text)"
    )
    place.execute(
        "insert into outbox (topic, aggregate_id, payload) select %s, nullif(n, 3)::text, n::text"
        " from generate_series(1, 4) n",
        (place.topic,),
    )
    place.ok("--only", "publication")
    error, _ = place.refuses(code=70)
    assert "event 3 of public.outbox in the table, row 3 in order, can't be published: it has no key" in error
    assert [record.value for record in place.records()] == [b"1", b"2"]
    assert place.slots() == [f"{place.slot}_pending"]
    assert "published 3" in place.backfill("--where", "aggregate_id is not null")


def test_records_that_the_topic_refuses_go_out_in_halves(
    place: Backfilled, topics: str, kafka: Kafka
) -> None:
    """A limit of the topic for batches: all rows that fit alone arrive, and the one that doesn't is named."""
    topic = f"{topics}small"
    kafka.create_topic(topic, 1, {"max.message.bytes": "2000"})
    place.topic = topic
    rows_of_c(place, 60)
    place.execute(
        "update outbox set payload = jsonb_build_object('n', id, 'x', repeat('x', 1900)) where id = 50"
    )
    error, _ = place.refuses(*KEYLESS, code=70)
    assert "event 50 in the table, row 50 in order, can't be published" in error
    assert sorted(set(numbers(place))) == [*range(1, 50)]


def test_the_rate_limit(place: Backfilled) -> None:
    rows_of_c(place, 50)
    said = place.backfill(*KEYLESS, "--max-events-per-second", "100")
    seconds = float(said.partition(" in ")[2].partition(" s ")[0])
    assert 0.4 < seconds < 10


def test_what_is_left_of_it_is_told_and_logged(place: Backfilled) -> None:
    """A stop is a clean end, which says that it wasn't finished."""
    rows_of_c(place, 500)
    process = place.under_way(*KEYLESS, "--max-events-per-second", "50")
    eventually(lambda: len(place.records()) > 5, PATIENCE, process.text)
    code, _ = process.terminate()
    assert code == 0
    assert any("stopped before it was finished" in line for line in process.stray), process.text()
    assert place.slots() == [f"{place.slot}_pending"]
    assert numbers(place)[:5] == [1, 2, 3, 4, 5]
