"""Where is my event: each answer that there is, told from a real table, slot and topic."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka import Producer
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE, eventually

INSERT = (
    "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, %s, 'x') returning id::text"
)


def run(pipeline: Pipeline, event_id: str, *flags: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        *("find", event_id, "--slot", pipeline.slot, *flags),
        env={"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap},
    )


def find(pipeline: Pipeline, event_id: str, *flags: str, code: int = 0) -> list[dict[str, Any]]:
    done = run(pipeline, event_id, "--json", *flags)
    assert done.returncode == code, done.stdout + done.stderr
    events = json.loads(done.stdout)["events"]
    assert isinstance(events, list)
    return events


def insert(pipeline: Pipeline, key: str, more: str = "") -> str:
    """One row, and what else is to happen in its transaction; its id."""
    with psycopg.connect(pipeline.dsn) as connection:
        ((event_id,),) = connection.execute(INSERT.encode(), (pipeline.aggregate_type, key)).fetchall()
        if more:
            connection.execute(more.encode())
    return str(event_id)


def test_delivered(
    make_postgres: Callable[..., PostgresServer], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    server = make_postgres(settings={"track_commit_timestamp": "on"})
    pipeline = make_pipeline(server, kafka).prepare().init()
    pipeline.start()
    event_id = insert(pipeline, "k1")
    eventually(lambda: find(pipeline, event_id)[0]["delivery"] == "delivered", PATIENCE, "delivered")
    (event,) = find(pipeline, event_id)
    assert event["evidence"] == f"proven by the witness of slot {pipeline.slot}"
    assert event["row"]["aggregate_id"] == "k1"
    assert event["created_at"] <= event["committed_at"]
    assert (event["topic"], event["key"]) == (pipeline.topic, "k1")
    (record,) = pipeline.read()
    assert event["partition"] == record.partition
    assert event["position"] is event["offset"] is event["searched"] is None
    (event,) = find(pipeline, event_id, "--in-topic")
    assert (event["searched"], event["offset"]) == ("found", record.offset)
    shown = run(pipeline, event_id, "--in-topic").stdout
    assert f"{pipeline.topic}, partition {record.partition}, offset {record.offset}" in shown
    assert "delivered: proven by the witness" in shown


def test_on_its_way(pipeline: Pipeline) -> None:
    first, event_id = insert(pipeline, "a"), insert(pipeline, "b")
    (event,) = find(pipeline, event_id)
    assert event["delivery"] == "waiting"
    assert event["position"]["rows_before"] == 1
    assert event["next"] == f"cdc-outbox start --slot {pipeline.slot}"
    assert event["partition"] is not None
    gone = insert(pipeline, "c", "delete from outbox where aggregate_id = 'c'")
    (event,) = find(pipeline, gone)
    assert (event["delivery"], event["relation"]) == ("waiting", None)
    assert event["evidence"] == f"waits in the slot {pipeline.slot}, and is not in the table any more"
    done = run_command(
        *("start", "--slot", pipeline.slot, "--bootstrap-servers", pipeline.kafka.bootstrap),
        *("--until-caught-up", "--no-http"),
        env={"CDC_OUTBOX_DSN": pipeline.dsn},
    )
    assert done.returncode == 0, done.stderr
    pipeline.server.execute("update cdc_outbox_witness set snapshot = null", dbname=pipeline.dbname)
    (event,) = find(pipeline, first)
    assert event["delivery"] == "passed"
    assert event["next"] == f"cdc-outbox find --slot {pipeline.slot} --in-topic {first}"
    (event,) = find(pipeline, first, "--in-topic")
    assert (event["searched"], event["delivery"], event["next"]) == ("found", "delivered", None)
    assert event["evidence"] == f"found at offset {event['offset']}"
    assert find(pipeline, gone, code=1) == []


def test_a_time_that_no_calendar_has(pipeline: Pipeline) -> None:
    for at in ("infinity", "-infinity", "20000-01-01"):
        event_id = insert(pipeline, at, f"update outbox set created_at = '{at}' where aggregate_id = '{at}'")
        (event,) = find(pipeline, event_id)
        assert (event["delivery"], event["created_at"]) == ("waiting", None)
        assert event["row"]["created_at"].startswith(at)


def test_an_id_that_two_tables_share_has_a_story_in_each(
    database: Database, kafka: Kafka, topics: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Also where a row waits in the slot alone, whether the other one was delivered or waits as well."""
    pipeline = make_pipeline(database, kafka)
    topic = f"{topics}both"
    kafka.create_topic(topic, 1)
    tables = ("--table", "a", "--table", "b")
    with psycopg.connect(pipeline.dsn) as connection:
        for name in "ab":
            connection.execute(
                SQL(
                    "create table {} (id bigserial primary key, topic text default {}, aggregate_id text, payload text)"
                ).format(Identifier(name), Literal(topic))
            )
    assert (
        run_command("init", *tables, "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": pipeline.dsn}).returncode
        == 0
    )

    def put(table: str, *, kept: bool = True) -> None:
        with psycopg.connect(pipeline.dsn) as connection:
            name = Identifier(table)
            connection.execute(SQL("insert into {} (aggregate_id) values ('k')").format(name))
            if not kept:
                connection.execute(
                    SQL("delete from {} where id = currval({})").format(name, f"{table}_id_seq")
                )

    def stories(event_id: str) -> list[tuple[str, str, bool]]:
        found = find(pipeline, event_id, *tables)
        return [
            (each["table"], each["delivery"], each["row"] is not None and each["relation"] is not None)
            for each in found
        ]

    put("b")
    relay = pipeline.start(*tables)
    eventually(lambda: stories("1") == [("public.b", "delivered", True)], PATIENCE, "delivered")
    relay.terminate()
    put("a", kept=False)
    assert stories("1") == [("public.a", "waiting", False), ("public.b", "delivered", True)]
    put("a")
    put("b", kept=False)
    assert stories("2") == [("public.a", "waiting", True), ("public.b", "waiting", False)]
    put("b")
    put("a")
    assert stories("3") == [("public.a", "waiting", True), ("public.b", "waiting", True)]


def test_what_lies_in_a_gap_that_was_accepted_is_not_in_the_topic(pipeline: Pipeline) -> None:
    pipeline.start().terminate()
    event_id = insert(pipeline, "a")
    pipeline.value("select pg_replication_slot_advance(%s, pg_current_wal_lsn())::text", (pipeline.slot,))
    pipeline.start("--accept-gap", "--until-caught-up", state=None).wait()
    proven = f"proven by the witness of slot {pipeline.slot}"
    eventually(lambda: find(pipeline, event_id)[0]["evidence"] == proven, PATIENCE, proven)
    (event,) = find(pipeline, event_id, "--in-topic")
    assert event["searched"] == "not in the topic"
    assert event["next"].startswith(
        "if the topic keeps its messages for that long, it was passed over, as in a gap"
    )
    assert event["next"].endswith(f"cdc-outbox replay --slot {pipeline.slot} --id {event_id}")


def test_a_message_is_found_in_the_partition_that_its_key_had_before(pipeline: Pipeline) -> None:
    event_id = insert(pipeline, "a")
    pipeline.start("--until-caught-up", state=None).wait()
    (record,) = pipeline.read()
    for partitions in range(4, 12):
        pipeline.kafka.create_partitions(pipeline.topic, partitions)
        if find(pipeline, event_id)[0]["partition"] != record.partition:
            break
    (event,) = find(pipeline, event_id, "--in-topic")
    assert (event["partition"], event["offset"], event["searched"]) == (
        record.partition,
        record.offset,
        "found",
    )


def test_what_another_relay_has_sent(pipeline: Pipeline) -> None:
    pipeline.server.execute("alter table outbox add sent_at timestamptz", dbname=pipeline.dbname)
    event_id = insert(pipeline, "a", "update outbox set sent_at = now()")
    other = insert(pipeline, "b")
    pipeline.start("--until-caught-up", state=None).wait()
    pipeline.kafka.delete_topic(pipeline.topic)
    pipeline.kafka.create_topic(pipeline.topic, 3)
    producer = Producer({"bootstrap.servers": pipeline.kafka.bootstrap})
    producer.produce(pipeline.topic, key="a", value="{}", partition=2, headers=[("message-id", event_id)])
    assert producer.flush(30) == 0
    (event,) = find(pipeline, event_id, "--in-topic")
    assert (event["delivery"], event["evidence"]) == (
        "delivered",
        "the table marks it as sent by another relay",
    )
    assert event["next"] == (
        f"say where its messages have the id: cdc-outbox find --slot {pipeline.slot} --in-topic"
        f" --id-from header:NAME {event_id}"
    )
    (event,) = find(pipeline, event_id, "--in-topic", "--id-from", "header:message-id")
    assert (event["partition"], event["offset"], event["next"]) == (2, 0, None)
    assert event["evidence"] == "the table marks it as sent by another relay, and found at offset 0"
    (event,) = find(pipeline, event_id, "--in-topic", "--header", "message-id=id")
    assert (event["partition"], event["offset"], event["next"]) == (2, 0, None)
    (event,) = find(pipeline, other)
    assert event["evidence"] == f"proven by the witness of slot {pipeline.slot}"
    assert "neither header:NAME nor" in run(pipeline, other, "--id-from", "id").stderr


def test_not_confirmed_by_the_relay_at_work(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    relay.signal(signal.SIGSTOP)
    event_id = insert(pipeline, "a")
    (event,) = find(pipeline, event_id)
    assert event["delivery"] == "unconfirmed"
    assert event["next"] == f"cdc-outbox health --slot {pipeline.slot}"
    relay.signal(signal.SIGCONT)
    eventually(lambda: find(pipeline, event_id)[0]["delivery"] == "delivered", PATIENCE, "delivered")


def test_found_in_the_topic_before_the_relay_has_proof(pipeline: Pipeline) -> None:
    pipeline.start()
    with psycopg.connect(pipeline.dsn) as connection:
        witness = "select from cdc_outbox_witness where slot = %s for update"
        connection.execute(witness, (pipeline.slot,))
        event_id = insert(pipeline, "a")
        eventually(pipeline.read, PATIENCE, "published")
        (event,) = find(pipeline, event_id, "--in-topic")
    assert (event["delivery"], event["evidence"], event["next"]) == ("delivered", "found at offset 0", None)


def test_what_can_not_be_found_and_what_will_not_be_sent(pipeline: Pipeline) -> None:
    done = run(pipeline, "no uuid")
    assert done.returncode == 2
    error, remedy = done.stderr.splitlines()[-2:]
    assert error.startswith(
        "error: 'no uuid' can't be an id of public.outbox, by the type of its column id: invalid"
    )
    assert remedy.startswith("next: give the id as PostgreSQL prints it")
    done = run(pipeline, "00000000-0000-0000-0000-000000000000")
    assert done.returncode == 1
    error, remedy = done.stderr.splitlines()[-2:]
    assert error.startswith(
        "error: no event with the id '00000000-0000-0000-0000-000000000000' is in public.outbox"
    )
    assert "--table" in remedy

    create_outbox(pipeline.dsn, "bare")
    pipeline.server.execute(
        "alter table bare drop constraint bare_pkey, alter id type text", dbname=pipeline.dbname
    )
    pipeline.server.execute(
        "insert into bare (id, aggregate_type, aggregate_id, event_type) values ('1', 'a b', 'k', 'x')",
        dbname=pipeline.dbname,
    )
    done = run(pipeline, "1", "--table", "outbox", "--table", "bare")
    assert done.returncode == 0, done.stderr
    assert "column id of public.bare has no index" in done.stderr
    assert "poison     event 1 of public.bare" in done.stdout
    assert "unknown: publication outbox_pub lacks table public.bare" in done.stdout
    (event,) = find(pipeline, "1", "--table", "bare", "--only", "event_type=y")
    assert event["left_out"] == "only"


def test_what_keeps_an_event_from_being_sent_is_named_by_what_the_relay_would_be_given(
    pipeline: Pipeline,
) -> None:
    """An UPDATE of the row mends nothing: the stream has it as it was inserted."""
    poison = insert(pipeline, "k", "update outbox set aggregate_type = 'a b' where aggregate_id = 'k'")
    (event,) = find(pipeline, poison)
    assert (event["delivery"], event["poison"], event["obstacle"]) == ("waiting", None, None)
    assert event["row"]["aggregate_type"] == "a b"
    assert event["topic"] == pipeline.topic
    query = "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, 'k', 'x') returning id::text"
    stuck = pipeline.value(query, ("a b",))
    pipeline.sql(SQL("update outbox set aggregate_type = 'x'"))
    (event,) = find(pipeline, stuck)
    assert (event["delivery"], event["poison"]["reason"]) == ("waiting", "topic")
    assert event["evidence"].endswith("; as things are it can't be sent")
    assert event["next"] == f"{event['poison']['next']}; then cdc-outbox start --slot {pipeline.slot}"
    shown = run(pipeline, stuck).stdout
    assert shown.count(event["poison"]["next"]) == 1
    missing = pipeline.value(query, (f"{pipeline.aggregate_type}-none",))
    (event,) = find(pipeline, missing)
    assert event["obstacle"]["reason"] == "unknown_topic"
    assert f"the cluster has no topic {pipeline.topic}-none" in run(pipeline, missing).stdout
    assert event["next"].startswith(event["obstacle"]["next"])


def test_a_topics_limit_is_for_what_is_sent(pipeline: Pipeline) -> None:
    """A record that is larger may be smaller once it is compressed, as the relay does."""
    pipeline.kafka.configure_topic(pipeline.topic, {"max.message.bytes": "500"})
    query = (
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        " values (%s, 'k', 'x', to_jsonb(repeat('x', 1000))) returning id::text"
    )
    large = pipeline.value(query, (pipeline.aggregate_type,))
    (event,) = find(pipeline, large)
    assert event["obstacle"]["reason"] == "too_large"
    compressed = ("--kafka", "compression.type=gzip")
    (event,) = find(pipeline, large, *compressed)
    assert (event["delivery"], event["obstacle"]) == ("waiting", None)
    assert pipeline.start("--until-caught-up", *compressed, state=None).wait() == 0
    assert [record.id for record in pipeline.read()] == [large]


def test_a_row_that_is_due_later_blocks_a_relay_and_says_so(
    database: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(database, kafka)
    kafka.create_topic(pipeline.topic, 1)
    pipeline.sql(
        SQL(
            "create table outbox"
            " (id int primary key, topic text, aggregate_id text, payload text, next_run_at timestamptz)"
        )
    )
    pipeline.init()
    relay = pipeline.start("--on-poison", "block")
    pipeline.sql(
        SQL("insert into outbox values (7, {}, 'k', '', now() + interval '1 hour')").format(pipeline.topic)
    )
    relay.wait_state("blocked")
    (event,) = find(pipeline, "7")
    assert (event["delivery"], event["poison"]["reason"]) == ("unconfirmed", "scheduled")
    assert event["next"].startswith("send such rows at once with outbox.scheduled = ")


def test_the_event_that_blocks_a_relay_is_told_with_its_way_out(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka)
    kafka.create_topic(pipeline.topic, 1, {"max.message.bytes": "2000"})
    pipeline.init()
    relay = pipeline.start("--on-poison", "block")
    sent = insert(pipeline, "a")
    query = (
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        " values (%s, 'c', 'x', to_jsonb(repeat('x', 5000))) returning id::text"
    )
    large = pipeline.value(query, (pipeline.aggregate_type,))
    relay.wait_state("blocked")
    (event,) = find(pipeline, large)
    assert (event["delivery"], event["obstacle"]["reason"]) == ("unconfirmed", "too_large")
    assert event["partition"] == 0
    assert event["next"].startswith("raise max.request.size under [kafka.client] to ")
    assert event["next"].endswith(f"; then cdc-outbox health --slot {pipeline.slot}")
    shown = run(pipeline, large).stdout
    assert (
        f"stuck      too_large: it is {event['obstacle']['error'].split()[2]} bytes as a Kafka record"
        in shown
    )
    (event,) = find(pipeline, sent)
    assert event["obstacle"] is None


def test_what_was_left_out_is_not_called_delivered(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka).prepare()
    left = insert(pipeline, "a")
    done = run_command("init", "--no-backfill", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert done.returncode == 0, done.stderr
    pipeline.start("--until-caught-up", state=None).wait()
    sent = insert(pipeline, "a")
    pipeline.start("--until-caught-up", state=None).wait()
    eventually(lambda: find(pipeline, left)[0]["delivery"] == "left out", PATIENCE, "left out")
    (event,) = find(pipeline, left)
    assert "--no-backfill" in event["evidence"]
    assert f"cdc-outbox find --slot {pipeline.slot} --in-topic {left}; " in event["next"]
    assert f"cdc-outbox replay --slot {pipeline.slot} --id {left}" in event["next"]
    (event,) = find(pipeline, sent)
    assert event["delivery"] == "delivered"
    (event,) = find(pipeline, left, "--in-topic")
    assert (event["delivery"], event["searched"]) == ("left out", "not in the topic")
    assert event["next"] == f"to send it after all: cdc-outbox replay --slot {pipeline.slot} --id {left}"


def test_a_key_with_a_per_cent_sign_that_was_left_out(
    database: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(database, kafka)
    kafka.create_topic(pipeline.topic, 1)
    pipeline.sql(
        SQL(
            'create table outbox (id text, topic text default {}, aggregate_id text, payload text, "%(no)s" text,'
            ' primary key (id, "%(no)s"))'
        ).format(pipeline.topic),
        SQL(
            "insert into outbox (id, aggregate_id, \"%(no)s\") values ('100%s', 'k', '5%'), ('%', 'k', '%%')"
        ),
    )
    done = run_command("init", "--no-backfill", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert done.returncode == 0, done.stderr
    pipeline.start("--until-caught-up", state=None).wait()
    eventually(lambda: find(pipeline, "100%s")[0]["delivery"] == "left out", PATIENCE, "left out")


def test_a_key_that_was_left_out_and_is_used_again(
    database: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Only the topic tells the new row from the one that was left out."""
    pipeline = make_pipeline(database, kafka)
    kafka.create_topic(pipeline.topic, 1)
    named = ("--table", "outbox", "--table", "another")
    columns = "(id bigserial primary key, topic text default {}, aggregate_id text, payload text)"
    pipeline.sql(
        *(SQL(f"create table {name} {columns}").format(pipeline.topic) for name in named[1::2]),
        SQL("insert into outbox (aggregate_id) values ('old')"),
    )
    at = ("--slot", pipeline.slot)
    done = run_command("init", "--no-backfill", *named, *at, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert done.returncode == 0, done.stderr
    pipeline.sql(
        SQL("truncate outbox restart identity"), SQL("insert into outbox (aggregate_id) values ('new')")
    )
    pipeline.start(*named)
    eventually(lambda: find(pipeline, "1", *named)[0]["delivery"] == "left out", PATIENCE, "proven")
    (event,) = find(pipeline, "1", *named)
    assert event["evidence"].startswith("a row with its key was there before the slot")
    assert f"cdc-outbox find --slot {pipeline.slot} " in event["next"]
    assert " --in-topic 1; to send it after all: " in event["next"]
    assert event["next"].endswith(f"cdc-outbox replay --slot {pipeline.slot} --table public.outbox --id 1")
    (event,) = find(pipeline, "1", "--in-topic", *named)
    assert (event["delivery"], event["searched"], event["next"]) == ("delivered", "found", None)
