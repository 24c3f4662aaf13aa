"""`peek` as its users run it: it shows what would be sent, and afterwards everything is as it was before."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.peeked import TEMPORARY, Make, Place, lines_of
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox, read_all
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import RelayProcess, clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually

KEYS = {
    "schema_version",
    "lsn",
    "seq",
    "commit_time",
    "topic",
    "partition",
    "key",
    "headers",
    "payload",
    "row",
}


@pytest.fixture
def place(outbox: Database, slot: str) -> Place:
    return Place(outbox, slot, f"127.0.0.1:{free_port()}").init()


@pytest.fixture
def follow(place: Place, make_relay: Make) -> Callable[..., RelayProcess]:
    def start(*flags: str) -> RelayProcess:
        process = make_relay(
            place.database.dsn,
            place.bootstrap,
            slot=place.slot,
            command="peek",
            http=False,
            flags=["--follow", "--json", *flags],
        )
        process.wait_for(lambda record: record["event"] == "following", 60, message="peek follows")
        return process

    return start


@ALL_VERSIONS
def test_it_shows_what_would_be_sent_and_nothing_moves(place: Place) -> None:
    place.insert("a", "b")
    place.insert("c")
    before = place.positions()
    shown = place.peek()
    assert [(event["key"], event["seq"]) for event in shown] == [("a", 0), ("b", 1), ("c", 0)]
    assert shown[0]["lsn"] == shown[1]["lsn"] != shown[2]["lsn"]
    first = shown[0]
    assert first.keys() == KEYS
    assert first["topic"] == "outbox.event.order"
    assert first["partition"] is None
    assert first["payload"] == '{"a": 1}'
    assert first["headers"] == [["id", first["row"]["id"]], ["type", "placed"]]
    assert first["row"]["aggregate_id"] == "a"
    assert first["row"]["event_version"] is None
    assert first["commit_time"].endswith("Z")
    assert place.peek() == shown
    assert place.positions() == before


def test_the_relay_sends_afterwards_what_was_shown(place: Place, kafka: Kafka, slot: str) -> None:
    topic = f"peeked-{slot}"
    kafka.create_topic(topic, partitions=8)
    place.bootstrap = kafka.bootstrap
    place.insert("a", "b", "c", "ü", "")
    shown = place.peek("--topic", topic)
    done = place.run("start", "--topic", topic, "--until-caught-up", "--no-http")
    assert done.returncode == 0, done.stderr
    sent = {record.key: record for record in read_all(kafka.bootstrap, topic)}
    assert len(sent) == 5
    for event in shown:
        record = sent[event["key"].encode()]
        assert event["partition"] == record.partition
        assert event["payload"].encode() == record.value
        assert event["headers"] == [[name, (value or b"").decode()] for name, value in record.headers]
    assert place.peek("--topic", topic) == []


def test_a_limit_stops_in_the_midst_of_a_large_transaction(place: Place) -> None:
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type)"
        " select 'order', n::text, 'placed' from generate_series(1, 200000) n"
    )
    before = place.positions()
    assert [event["key"] for event in place.peek("--limit", "3")] == ["1", "2", "3"]
    assert place.positions() == before
    assert len(place.peek()) == 10


def test_only_what_was_committed_before_is_waited_for(place: Place) -> None:
    with psycopg.connect(place.database.dsn) as connection:
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', 'open', 'x')"
        )
        assert place.peek() == []
    assert [event["key"] for event in place.peek()] == ["open"]


def test_the_rest_of_a_record_of_an_open_transaction_is_not_waited_for(place: Place) -> None:
    """The server writes whole pages of WAL; a record that begins on one may stay without its end for 15 seconds."""
    place.insert("a")
    with psycopg.connect(place.database.dsn) as connection:

        def cut() -> bool:
            connection.execute(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
                " select 'order', n::text, 'x', to_jsonb(repeat('x', 1500)) from generate_series(1, 50) n"
            )
            ((flushed,),) = place.execute("select pg_current_wal_flush_lsn() - '0/0'::pg_lsn")
            return bool(flushed % 8192 == 0)

        eventually(cut, PATIENCE, "WAL is flushed to a page's end")
        began = time.monotonic()
        assert [event["key"] for event in place.peek()] == ["a"]
        assert time.monotonic() - began < 10


def test_a_large_transaction_on_other_tables_does_not_look_like_the_end(place: Place) -> None:
    place.execute("create table other (n int)")
    place.execute("insert into other select n from generate_series(1, 500000) n")
    place.insert("a")
    assert [event["key"] for event in place.peek()] == ["a"]


def test_nothing_to_show_is_fine_and_said(place: Place) -> None:
    done = place.run("peek")
    assert done.returncode == 0
    assert done.stdout == ""
    assert "nothing to show" in done.stderr
    assert "aggregate_id" in done.stderr  # what was recognised is said before the first row


def test_text_is_for_people_and_cannot_steer_their_terminal(place: Place) -> None:
    place.execute("alter table outbox alter payload type text")
    place.insert("a\x1b[2J", payload="line\nnext \x07")
    done = place.run("peek")
    assert done.returncode == 0, done.stderr
    assert "outbox.event.order" in done.stdout
    assert r"a\x1b[2J" in done.stdout
    assert r"line\nnext \x07" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


def test_bytes_that_are_no_text_come_as_base64(place: Place) -> None:
    place.execute("alter table outbox alter payload type bytea using null")
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        r" values ('order', '1', 'x', '\xff00'), ('order', '2', 'x', null)"
    )
    binary, tombstone = place.peek()
    assert binary["payload_base64"] == "/wA="
    assert "payload" not in binary
    assert tombstone["payload"] is None


def test_poison_is_shown_with_its_reason_and_the_rest_goes_on(place: Place) -> None:
    place.execute("alter table outbox alter aggregate_id drop not null")
    place.insert("a")
    place.execute("insert into outbox (aggregate_type, event_type) values ('order', 'keyless')")
    place.insert("b")
    good, poison, later = place.peek()
    assert (good["key"], later["key"]) == ("a", "b")
    assert poison["topic"] is None
    assert poison["row"]["event_type"] == "keyless"
    assert poison["poison"]["reason"] == "key"
    assert "NULL" in poison["poison"]["error"]
    assert "--key" in poison["poison"]["next"]
    shown = place.run("peek").stdout
    assert "poison" in shown
    assert poison["row"]["id"] in shown


def test_rows_that_are_left_out_are_counted_and_not_shown(place: Place) -> None:
    place.execute("alter table outbox add status text")
    place.insert("a")
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, status)"
        " values ('order', 'old', 'x', 'sent')"
    )
    done = place.run("peek", "--json")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["key"] == "a"
    assert "left out" in done.stderr
    assert "sent=1" in done.stderr


@ALL_VERSIONS
def test_a_slot_in_use_names_who_has_it(place: Place) -> None:
    stream = psycopg.connect(f"{place.database.dsn}?replication=database", autocommit=True)
    try:
        stream.pgconn.send_query(
            f"START_REPLICATION SLOT {place.slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'outbox_pub')".encode()
        )
        pid = eventually(
            lambda: place.execute(
                "select active_pid from pg_replication_slots where slot_name = %s", (place.slot,)
            )[0][0],
            PATIENCE,
            "the slot is in use",
        )
        error, remedy = place.refused(code=1)
        assert f"process {pid} " in error
        assert "--follow" in remedy
    finally:
        stream.pgconn.finish()


@ALL_VERSIONS
def test_following_shows_new_events_and_leaves_nothing(
    place: Place, follow: Callable[..., RelayProcess]
) -> None:
    place.insert("before")
    before = place.positions()
    process = follow()
    place.insert("a", "b")
    assert [event["key"] for event in lines_of(process, 2)] == ["a", "b"]
    place.insert("c")
    assert lines_of(process, 3)[2]["key"] == "c"
    assert len(place.execute(TEMPORARY)) == 1
    code, _ = process.terminate()
    assert code == 0
    eventually(lambda: not place.execute(TEMPORARY), PATIENCE, "the temporary slot is gone")
    assert place.positions() == before
    assert [event["key"] for event in place.peek()] == ["before", "a", "b", "c"]


def test_following_works_beside_a_relay_and_without_a_slot(
    place: Place, kafka: Kafka, follow: Callable[..., RelayProcess], slot: str
) -> None:
    topic = f"followed-{slot}"
    kafka.create_topic(topic, partitions=3)
    place.bootstrap = kafka.bootstrap
    pipeline = Pipeline(
        place.database.server,
        kafka,
        slot=slot,
        dbname=place.database.name,
        flags=["--topic", topic],
    )
    try:
        pipeline.start()
        process = follow("--topic", topic)
        place.insert("a")
        (event,) = lines_of(process, 1)
        assert event["partition"] is not None
        process.signal(signal.SIGINT)
        assert process.wait() == 0
    finally:
        pipeline.close()
    eventually(lambda: pipeline.walsender() is None, PATIENCE, "the slot free")
    place.execute("select pg_drop_replication_slot(%s)", (slot,))
    process = follow("--limit", "1")
    place.insert("b")
    assert lines_of(process, 1)[0]["key"] == "b"
    assert process.wait() == 0


def test_following_does_not_keep_wal(place: Place, follow: Callable[..., RelayProcess]) -> None:
    process = follow()
    start: LiteralString = (
        "select confirmed_flush_lsn::text from pg_replication_slots"
        " where temporary and database = current_database()"
    )
    before = place.execute(start)
    place.insert("a")
    lines_of(process, 1)
    eventually(lambda: place.execute(start) != before, PATIENCE, "the temporary slot follows")
    assert process.terminate()[0] == 0


def test_following_waits_for_open_transactions_by_name(place: Place, make_relay: Make) -> None:
    with psycopg.connect(place.database.dsn, application_name="somebody") as connection:
        connection.execute("create table other ()")
        process = make_relay(
            place.database.dsn,
            place.bootstrap,
            slot=place.slot,
            command="peek",
            http=False,
            flags=["--follow", "--json"],
        )
        named = process.wait_for(lambda record: "blockers" in record, message="the blocker is named")
        assert "somebody" in named["blockers"][0]
        connection.rollback()
        process.wait_for(lambda record: record["event"] == "following", message="peek follows")
    assert process.terminate()[0] == 0


def test_following_ends_when_the_publication_hides_rows(
    place: Place, follow: Callable[..., RelayProcess]
) -> None:
    process = follow()
    place.execute("drop publication outbox_pub")
    assert process.wait(60) == 78
    *_, error, _ = process.stray
    assert "publication outbox_pub does not exist" in error


def test_a_reader_that_has_seen_enough_is_no_error(place: Place) -> None:
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        " select 'order', n::text, 'x', to_jsonb(repeat('x', 1000)) from generate_series(1, 2000) n"
    )
    before = place.positions()
    environment = clean_environment(
        {"CDC_OUTBOX_DSN": place.database.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": place.bootstrap}
    )
    command = [sys.executable, "-m", "cdc_outbox", "peek", "--slot", place.slot, "--json", "--limit", "2000"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["key"] == "1"
        process.stdout.close()
        said = process.stderr.read()
        process.wait(60)
    assert "error:" not in said
    assert "Traceback" not in said
    assert "Exception" not in said
    assert place.positions() == before


def test_following_never_becomes_a_synchronous_standby(own_postgres: PostgresServer, slot: str) -> None:
    """It confirms on its own slot, and the application's commits would wait for that."""
    create_outbox(own_postgres.dsn())
    environment = {
        "CDC_OUTBOX_DSN": own_postgres.dsn(),
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}",
    }
    done = run_command("init", "--slot", slot, env=environment)
    assert done.returncode == 0, done.stderr
    own_postgres.reload({"synchronous_standby_names": "*"})
    done = run_command("peek", "--follow", "--slot", slot, env=environment)
    assert done.returncode == 78, done.stderr
    assert "synchronous_standby_names" in done.stderr
    done = run_command("peek", "--slot", slot, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.patient
def test_a_pager_that_pauses_costs_neither_the_stream_nor_the_rows(
    own_postgres: PostgresServer, slot: str
) -> None:
    """The server would give up on a peek that is silent for longer than this."""
    own_postgres.reload({"wal_sender_timeout": "6s"})
    create_outbox(own_postgres.dsn())
    environment = clean_environment(
        {"CDC_OUTBOX_DSN": own_postgres.dsn(), "CDC_OUTBOX_BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port()}"}
    )
    done = run_command("init", "--slot", slot, env=environment)
    assert done.returncode == 0, done.stderr
    own_postgres.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload) select 'order', n::text, 'x',"
        " to_jsonb(repeat('x', 2000)) from generate_series(1, 20000) n"
    )
    command = [sys.executable, "-m", "cdc_outbox", "peek", "--slot", slot, "--json", "--limit", "20000"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        since = own_postgres.value("select clock_timestamp()")
        eventually(
            lambda: own_postgres.value("select clock_timestamp() - interval '9 seconds'") > since,
            30,
            "a pause",
        )
        rest = process.stdout.readlines()
        assert process.wait(60) == 0
    assert [json.loads(line)["key"] for line in [first, *rest]] == [str(n) for n in range(1, 20_001)]


def test_a_server_that_stops_is_not_kept_waiting(
    own_postgres: PostgresServer, slot: str, make_relay: Make
) -> None:
    create_outbox(own_postgres.dsn())
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": own_postgres.dsn()})
    assert done.returncode == 0, done.stderr
    process = make_relay(
        own_postgres.dsn(),
        f"127.0.0.1:{free_port()}",
        slot=slot,
        command="peek",
        http=False,
        flags=["--follow"],
    )
    process.wait_for(lambda record: record["event"] == "following", 60, message="peek follows")
    assert own_postgres.stop("fast") < 2
    assert process.wait() == 1
    *_, error, remedy = process.stray
    assert error.startswith("error: ")
    assert remedy.startswith("next: ")


def test_a_role_without_any_right_on_the_table_may_peek(place: Place, slot: str) -> None:
    server = place.database.server
    server.execute(
        SQL("create role {} login replication password {}").format(Identifier(slot), Literal(PASSWORD))
    )
    try:
        place.insert("a")
        done = place.run("peek", "--json", dsn=server.dsn(place.database.name, user=slot))
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["key"] == "a"
    finally:
        server.execute(SQL("drop role {}").format(Identifier(slot)))


def test_what_start_refuses_peek_refuses(place: Place) -> None:
    place.execute("alter publication outbox_pub drop table outbox")
    error, remedy = place.refused()
    assert "lacks table public.outbox" in error
    assert "alter publication outbox_pub add table public.outbox;" in remedy
    error, _ = place.refused("--follow")
    assert "lacks table public.outbox" in error
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.execute("alter publication outbox_pub add table outbox")
    error, remedy = place.refused()
    assert "no replication slot" in error
    assert "cdc-outbox init" in remedy


def test_a_long_payload_is_cut_in_the_text_unless_all_is_asked_for(place: Place) -> None:
    place.insert("a", payload=json.dumps({"text": "x" * 3000}))
    whole = place.peek()[0]["payload"]
    assert len(whole) > 3000
    short = place.run("peek").stdout
    assert f"… ({len(whole)} bytes in all, --full shows them)" in short
    assert whole not in short
    assert whole in place.run("peek", "--full").stdout


def test_an_event_over_our_own_limit_is_flagged_without_kafka(place: Place) -> None:
    place.insert("a", payload=json.dumps("x" * 3000))
    place.insert("b")
    large, small = place.peek("--kafka", "max.request.size=2000")
    assert "obstacle" not in small
    assert large["obstacle"]["reason"] == "too_large"
    assert "max.request.size is 2000" in large["obstacle"]["error"]
    text = place.run("peek", "--kafka", "max.request.size=2000").stdout
    assert "  stuck (too_large)    it is 3" in text
    assert "max.message.bytes=3" in text


def test_what_is_in_the_way_of_an_event_in_kafka_is_flagged(place: Place, kafka: Kafka, slot: str) -> None:
    place.bootstrap = kafka.bootstrap
    place.insert("a", payload=json.dumps("x" * 3000))
    topic = f"peeked-{slot}"
    (missing,) = place.peek("--topic", topic)
    assert missing["obstacle"]["reason"] == "unknown_topic"
    assert f"no topic {topic}" in missing["obstacle"]["error"]
    assert "obstacle" not in place.peek("--topic", topic, "--create-topics")[0]
    assert topic not in kafka.topics(), "looking makes nothing"
    kafka.create_topic(topic)
    (fine,) = place.peek("--topic", topic)
    assert "obstacle" not in fine
    kafka.configure_topic(topic, {"max.message.bytes": "2000"})
    (large,) = place.peek("--topic", topic)
    assert large["obstacle"]["reason"] == "too_large"
    assert f"max.message.bytes of topic {topic} is 2000" in large["obstacle"]["error"]
    assert large["partition"] == 0


def test_a_poison_row_shows_its_null_columns(place: Place) -> None:
    place.execute("alter table outbox alter aggregate_id drop not null")
    place.execute("insert into outbox (aggregate_type, event_type) values ('order', 'placed')")
    shown = place.run("peek").stdout
    assert "poison (" in shown
    assert "  row aggregate_id     NULL" in shown
    assert "  row payload          NULL" in shown
