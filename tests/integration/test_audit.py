"""The audit on real servers: clean where all is well, under load too, and each planted fault told by its id."""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import LiteralString

import pytest
from confluent_kafka import Producer, TopicPartition
from psycopg.sql import SQL, Identifier

from tests.integration.audited import Audited, audited, ids
from tests.integration.conftest import Database
from tests.polling.table import A
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import clean_environment, run_command
from tests.servers.shell import Shell, blocks, path_of
from tests.servers.wait import PATIENCE, eventually

__all__ = ["audited"]


def test_under_load_nothing_is_wrong(audited: Audited) -> None:
    """Rows commit and are on their way while both sides are read: none is missing, none foreign."""
    pipeline = audited.pipeline
    pipeline.start()
    writer = pipeline.writer(rate=None, threads=2, rows_per_transaction=3, rollback_share=0.1).start()
    consumer = pipeline.consumer()
    for round_ in range(2):
        consumer.wait_count(2_000 * (round_ + 1))
        report = audited.audit()
        assert report["faults"] == {}
        assert report["rows"]["read"] >= 2_000 * (round_ + 1)
        assert report["rows"]["read"] == report["rows"]["delivered"] + report["rows"]["under_way"]
        assert report["messages"]["order_not_judged"] == 0
    committed = writer.stop()
    pipeline.wait_confirmed()
    report = audited.audit("--settled")
    assert report["rows"]["delivered"] == report["rows"]["read"] == len(committed)
    assert report["notes"] == []


def test_each_planted_fault_is_told_by_its_id(audited: Audited) -> None:
    pipeline = audited.pipeline
    relay = pipeline.start()
    writer = pipeline.writer(rate=None)
    good = writer.write(40)
    pipeline.wait_confirmed()
    assert audited.audit("--settled")["faults"] == {}

    relay.terminate()
    lost = audited.insert("lost")
    waiting = audited.audit()
    assert (waiting["faults"], ids(waiting, "under_way")) == ({}, [lost])
    assert ids(audited.audit("--settled", code=1), "missing") == [lost]

    # Somebody moves the slot: nothing will bring what lies behind it.
    early = audited.insert("order", ago="1s")
    later = audited.insert("order")
    commits = [
        audited.pipeline.value(
            "select (extract(epoch from created_at) * 1000)::int8 from outbox where id = %s", (each,)
        )
        for each in (early, later)
    ]
    audited.put(later, key="order", ms=commits[1])
    audited.put(early, key="order", ms=commits[0])
    audited.put(good[3], key="copied")
    stranger = str(uuid.uuid4())
    audited.put(stranger, key="stranger")
    audited.put(None, key="stranger")
    audited.put(str(uuid.uuid4()), key="sent-again", partition=1, headers=(("cdc.source", "replay"),))
    pipeline.value("select pg_replication_slot_advance(%s, pg_current_wal_lsn())::text", (pipeline.slot,))
    for moved in (False, True):
        if moved:
            pipeline.start("--accept-gap")
            eventually(lambda: audited.proven(later), PATIENCE, "the gap counts as delivered")
        report = audited.audit(code=1)
        assert (
            bool(report["notes"]) is not moved
        )  # the witness knows that the slot was moved, and then goes along
        assert ids(report, "missing") == [lost]
        assert (
            report["next"] == f"cdc-outbox find --slot {pipeline.slot} {lost}; then send them again:"
            f" cdc-outbox replay --slot {pipeline.slot} --id {lost}"
        )
        assert ids(report, "twice") == [good[3]]
        assert report["twice"]["events"][0]["copies"] == 2
        assert ids(report, "out_of_order") == [early]
        assert report["foreign"]["count"] == 3
        assert {each["id"] for each in report["foreign"]["events"]} >= {stranger, None}
        assert report["faults"].keys() == {"missing", "twice", "out_of_order", "foreign"}

    accepted = audited.audit("--twice-ok", "--foreign-ok", "--limit", "1", code=1)
    assert accepted["faults"].keys() == {"missing", "out_of_order"}
    audited.put(good[4], key="copied", partition=2)
    assert audited.audit("--twice-ok", "--foreign-ok", code=1)["moved_keys"]["count"] == 1


def test_a_window_judges_its_own_rows_alone(audited: Audited) -> None:
    pipeline = audited.pipeline
    nothing = audited.audit()
    assert nothing["status"] == "empty"
    assert "no row names a topic" in nothing["notes"][0]
    assert nothing["notes"][1] == "there is no row in public.outbox"
    assert audited.run().stdout.splitlines()[-1] == "nothing was compared: there is no row"
    now = time.time_ns() // 1_000_000
    before, inside = (audited.insert(each, ago=each) for each in ("3h", "1h"))
    audited.put(before, key="3h", ms=now - 3 * 3_600_000)
    audited.put(inside, key="1h", ms=now - 3_600_000)
    audited.put(str(uuid.uuid4()), ms=now - 10 * 3_600_000)  # foreign, and long ago
    audited.insert("never sent", ago="5h")
    report = audited.audit("--since", "2h", "--until", "30m", "--settled")
    assert (report["rows"]["read"], report["rows"]["delivered"]) == (1, 1)
    later = audited.audit("--since", "30m")
    assert (later["status"], later["next"]) == ("empty", None)
    assert later["notes"][1] == (
        f"there is no row of this window in public.outbox; the newest was written {audited.created(inside)}"
    )
    assert audited.audit("--since", "999999999999d", "--until", "99999d")["status"] == "empty"
    assert (
        report["messages"]["read"] == 2
    )  # what lies further back than an hour before the window is passed over
    assert audited.audit("--settled", code=1)["faults"] == {"missing": 1, "foreign": 1}
    missing = audited.insert("never sent", ago="1h")
    assert ids(audited.audit("--since", "2h", "--until", "30m", "--settled", code=1), "missing") == [missing]
    left: LiteralString = "select count(*) from pg_stat_activity where application_name = 'cdc-outbox audit'"
    eventually(lambda: pipeline.value(left) == 0, PATIENCE, "no session of an audit is left")


@pytest.mark.parametrize(
    ("zone", "hours"), [("America/New_York", (-4, -5)), ("Asia/Tokyo", (9,)), ("Etc/UTC", (0,))]
)
def test_a_window_over_local_times_is_not_taken_for_another_one(
    audited: Audited, zone: str, hours: tuple[int, ...]
) -> None:
    """A column without a time zone is read as UTC, and a person is told by which flags it is their own clock."""
    pipeline = audited.pipeline
    pipeline.sql(
        SQL("alter table outbox alter created_at type timestamp using created_at at time zone 'UTC'"),
        SQL("alter database {} set timezone = {}").format(Identifier(pipeline.dbname), zone),
    )
    lost = audited.insert(ago="30m")
    event = audited.insert(ago="90m")
    audited.put(event, ms=time.time_ns() // 1_000_000 - 90 * 60_000)
    read = "the times in created_at of public.outbox have no time zone, and are read as UTC"

    report = audited.audit("--since", "2h", "--settled", code=1)
    if min(hours) < 0:
        assert (report["status"], report["rows"]["read"]) == ("empty", 0)
        assert report["next"].startswith(f"cdc-outbox audit --slot {pipeline.slot} --since 2")
        assert "nothing was compared" in audited.run("--since", "2h", "--settled").stdout
    else:
        assert ids(report, "missing") == [lost]
    if zone == "Etc/UTC":
        assert report["notes"][0] == read
        return
    assert report["notes"][0].startswith(
        f"{read}; if they go by the clock of {zone}, the database's own, ask"
    )
    flags = report["notes"][0].rpartition("ask with ")[2].split()
    meant = datetime.fromisoformat(flags[1]).replace(tzinfo=UTC) - datetime.now(UTC)
    assert round(meant / timedelta(hours=1)) + 2 in hours
    report = audited.audit(*flags, "--settled", code=1)
    assert (ids(report, "missing"), report["rows"]["delivered"]) == ([lost], 1)
    assert audited.audit("--until", "300d", code=1)["status"] == "empty"


def test_what_a_topic_no_longer_has_is_unknown_and_not_missing(audited: Audited, kafka: Kafka) -> None:
    pipeline = audited.pipeline
    now = time.time_ns() // 1_000_000
    old, new, never = (
        audited.insert("a", ago="3h"),
        audited.insert("b", ago="1h"),
        audited.insert("c", ago="10m"),
    )
    audited.put(old, key="a", ms=now - 3 * 3_600_000)
    audited.put(new, key="b", ms=now - 3_600_000)
    admin = kafka.admin()
    for future in admin.delete_records([TopicPartition(pipeline.topic, 0, 1)]).values():
        future.result(30)
    report = audited.audit("--settled", code=1)
    assert (ids(report, "unknown"), ids(report, "missing")) == ([old], [never])
    assert report["unknown"]["events"][0]["why"] == "trimmed"
    kafka.configure_topic(pipeline.topic, {"cleanup.policy": "compact"})
    report = audited.audit("--settled", code=1)
    assert (ids(report, "unknown"), ids(report, "missing")) == (sorted([old, never]), [])


def test_what_was_sent_again_at_the_beginning_of_a_topic_tells_no_time_before_it(
    audited: Audited, kafka: Kafka
) -> None:
    """It bears the time of its row, and what was in front of it came later."""
    now = time.time_ns() // 1_000_000
    old, gone, left, never = (audited.insert(ago, ago=ago) for ago in ("3h", "2h", "1h", "10m"))
    audited.put(old, key="3h", ms=now - 3 * 3_600_000)
    audited.put(gone, key="2h", ms=now - 2 * 3_600_000)
    audited.put(old, key="3h", ms=now - 3 * 3_600_000, headers=(("cdc.source", "replay"),))
    admin = kafka.admin()
    for future in admin.delete_records([TopicPartition(audited.topic, 0, 2)]).values():
        future.result(30)
    report = audited.audit("--settled", code=1)
    assert (ids(report, "unknown"), ids(report, "missing")) == (sorted([gone, left, never]), [])
    audited.put(left, key="1h", ms=now - 3_600_000)
    report = audited.audit("--settled", code=1)
    assert (ids(report, "unknown"), ids(report, "missing")) == ([gone], [never])


def test_after_a_cut_over_the_old_relays_messages_count(
    database: Database, kafka: Kafka, topics: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Rows that the old relay marked as sent are found by the id in its messages, and asked for on request only."""
    topic = f"{topics}orders"
    kafka.create_topic(topic, 1)
    A.make(database.dsn)
    audited = Audited(make_pipeline(database, kafka), topic=topic)
    insert = SQL(
        "insert into outbox (aggregate_type, aggregate_id, topic, payload, status, created_at)"
        " select 'order', 'k', %s, jsonb_build_object('n', n), %s, now() - n * interval '1 second'"
        " from generate_series(5, 1, -1) n returning id::text"
    )
    with database.server.connect(database.name) as connection:
        old = [str(id_) for (id_,) in connection.execute(insert, (topic, "sent")).fetchall()]
        new = [str(id_) for (id_,) in connection.execute(insert, (topic, "pending")).fetchall()]
    for number, id_ in enumerate(old[:4]):
        audited.put(None, value=json.dumps({"row": int(id_)}), ms=time.time_ns() // 1_000_000 + number)
    for number, id_ in enumerate(new):  # the old relay's clock goes ahead of these commits
        audited.put(id_, ms=time.time_ns() // 1_000_000 - 60_000 + number)
    assert audited.audit("--settled", code=1)["foreign"]["count"] == 4
    report = audited.audit("--settled", "--id-from", "payload:/row")
    assert report["rows"]["delivered"] == 9
    assert report["rows"]["marked_sent"] == 1
    assert ids(audited.audit("--all", "--id-from", "payload:/row", code=1), "missing") == [old[4]]
    assert audited.audit("--settled", "--topic-name", topic, "--id-from", "payload:/row")["faults"] == {}


def test_on_each_server_a_delivered_table_is_clean(
    postgres_version: object,
    outbox: Database,
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
) -> None:
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    pipeline.writer(rate=None, rows_per_transaction=3).write(30)
    assert pipeline.start("--until-caught-up", state=None).wait() == 0
    audited = Audited(pipeline)
    report = audited.audit("--settled", "--spool", str(tmp_path))
    assert (report["rows"]["delivered"], report["messages"]["read"]) == (30, 30)
    lost = audited.insert("lost")
    done = audited.run("--settled")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1:3] == ["rows         31 read, 30 delivered", "messages     30 read"]
    assert lines[3:5] == ["missing      1", f"  {lost}  {pipeline.topic}, written {audited.created(lost)}"]
    assert lines[-2] == "not clean: 1 missing"
    assert lines[-1] == (
        f"next: cdc-outbox find --slot {pipeline.slot} {lost}; then send them again: "
        f"cdc-outbox replay --slot {pipeline.slot} --id {lost}"
    )


def test_before_the_first_relay_what_waits_in_the_slot_is_under_way(
    make_pipeline: Callable[..., Pipeline], outbox: Database, kafka: Kafka
) -> None:
    """Nothing proves what was delivered then, and the slot tells: a row from before it comes by nobody."""
    audited = Audited(make_pipeline(outbox, kafka).prepare())
    pipeline = audited.pipeline
    old = audited.insert("a", ago="1h")
    done = run_command("init", "--no-backfill", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert done.returncode == 0, done.stderr
    new = sorted(audited.insert(key) for key in "ab")
    report = audited.audit(code=1)
    assert (ids(report, "missing"), ids(report, "under_way")) == ([old], new)
    pipeline.sql(SQL("delete from outbox where created_at < now() - interval '30 minutes'"))
    report = audited.audit()
    assert (report["faults"], report["rows"]["under_way"]) == ({}, 2)
    assert report["rows"]["oldest_under_way"] in [audited.created(each) for each in new]
    shown = audited.run().stdout
    assert f"note: no relay streams from the slot {pipeline.slot}: what is under way waits in it\n" in shown
    assert shown.endswith(f"\nclean\nnext: cdc-outbox start --slot {pipeline.slot}\n")
    pipeline.sql(SQL("select pg_drop_replication_slot({})").format(pipeline.slot))
    report = audited.audit(code=1)
    assert ids(report, "missing") == new
    assert f"there is no replication slot {pipeline.slot}" in report["notes"][-1]


def test_ids_that_are_bytes_and_no_text(
    make_pipeline: Callable[..., Pipeline], database: Database, kafka: Kafka
) -> None:
    """What waits in the slot is known by them, and so is a message whose row lies outside of the window."""
    pipeline = make_pipeline(database, kafka)
    kafka.create_topic(pipeline.topic, 1)
    pipeline.sql(
        SQL(
            "create table outbox (id bytea primary key, topic text default {}, aggregate_id text, payload text,"
            " created_at timestamptz default now())"
        ).format(pipeline.topic)
    )
    audited = Audited(pipeline.init())
    row = SQL("insert into outbox values (decode({}, 'hex'), default, 'k', '{{}}', now() - {}::interval)")
    pipeline.sql(row.format("ff005c", "3h"), row.format("61", "0s"))
    report = audited.audit()
    assert (report["faults"], report["rows"]["under_way"]) == ({}, 2)
    assert pipeline.start("--until-caught-up", state=None).wait() == 0
    report = audited.audit("--since", "2h", "--topic-name", pipeline.topic)
    assert (report["rows"]["delivered"], report["messages"]["elsewhere"]) == (1, 1)


def test_before_a_backfill_is_finished_nothing_is_called_missing(
    make_pipeline: Callable[..., Pipeline], outbox: Database, kafka: Kafka
) -> None:
    """Unless a person says that nothing is under way."""
    audited = Audited(make_pipeline(outbox, kafka).prepare())
    slot = audited.pipeline.slot
    old = audited.insert("a")
    init = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": audited.pipeline.dsn})
    assert init.returncode == 78, init.stderr
    done = audited.run()
    assert done.returncode == 78
    assert f'only "{slot}_pending" exists: rows from before it have to be published' in done.stderr
    assert f"cdc-outbox backfill --slot {slot}" in done.stderr
    assert ids(audited.audit("--settled", code=1), "missing") == [old]


def test_the_commands_of_the_page(audited: Audited, tmp_path: Path) -> None:
    """Each block as it stands there, while a relay is at work; all is well."""
    page = (CHECKOUT / "docs" / "how-to" / "audit.md").read_text()
    pipeline = audited.pipeline
    pipeline.start()
    written = pipeline.writer(rate=None).write(10)
    pipeline.consumer().wait_ids(written)
    shell = Shell(
        tmp_path,
        clean_environment(
            {
                "PATH": path_of(Path(sys.prefix)),
                "CDC_OUTBOX_DSN": pipeline.dsn,
                "CDC_OUTBOX_SLOT": pipeline.slot,
                "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
            }
        ),
    )
    commands = blocks(page)
    assert list(commands) == ["audit", "settled", "window", "ids"]
    for command in commands.values():
        said = shell.run(command)
        assert said.stdout.splitlines()[-1] == "clean"
        assert "10 read, 10 delivered" in said.stdout
    kinds = [line[:13].strip() for line in said.stdout.splitlines()[1:-1]]
    assert all(f"\n{kind} " in page for kind in kinds), kinds


def test_what_a_transaction_took_back_was_never_sent(audited: Audited) -> None:
    """Neither its messages nor the marker at the end of the partition are in the way; what is open isn't judged."""
    sent = audited.insert("a")
    audited.put(sent, key="a")
    producers = [
        Producer(
            {
                "bootstrap.servers": audited.pipeline.kafka.bootstrap,
                "transactional.id": f"{audited.topic}-{number}",
                "log_level": 0,
            }
        )
        for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(audited.topic, key="a", partition=0, headers=[("id", str(uuid.uuid4()))])
        assert producer.flush(30) == 0
        if producer is producers[0]:
            producer.abort_transaction(30)
            report = audited.audit("--settled")
            assert report["messages"]["read"] == 1
            assert report["topics"] == [{"name": audited.topic, "exists": True, "messages": 1}]
    assert audited.audit("--settled")["faults"] == {}
    producers[1].commit_transaction(30)
    assert audited.audit("--settled", code=1)["faults"] == {"foreign": 1}


def test_rows_that_are_marked_as_sent_and_never_found_are_no_proof(audited: Audited) -> None:
    """The mark may be somebody else's column: unless a message is found, nothing was compared."""
    pipeline = audited.pipeline
    pipeline.server.execute("alter table outbox add sent_at timestamptz", dbname=pipeline.dbname)
    marked = audited.insert()
    pipeline.server.execute("update outbox set sent_at = now()", dbname=pipeline.dbname)
    pipeline.start("--until-caught-up", state=None).wait()
    pipeline.server.execute("update outbox set sent_at = now()", dbname=pipeline.dbname)
    pipeline.kafka.delete_topic(pipeline.topic)
    pipeline.kafka.create_topic(pipeline.topic, 1)
    report = audited.audit("--settled", code=1)
    assert report["status"] == "empty"
    assert (report["rows"]["delivered"], report["rows"]["marked_sent"]) == (0, 1)
    assert "--all" in report["next"]
    assert "nothing was compared: rows are marked as sent, and no message" in audited.run("--settled").stdout
    assert ids(audited.audit("--settled", "--all", code=1), "missing") == [marked]
    audited.put(None, headers=(("message-id", marked),))
    audited.audit("--settled", "--id-from", "header:message-id")


def test_ids_that_two_tables_share_are_told_apart_by_their_keys(
    make_pipeline: Callable[..., Pipeline], database: Database, kafka: Kafka
) -> None:
    """Rows of one are gone, as after a cleanup: their messages are no copies of those of the other's rows."""
    pipeline = make_pipeline(database, kafka)
    kafka.create_topic(pipeline.topic, 1)
    audited = Audited(pipeline)
    named = ("--table", "orders", "--table", "parcels")
    columns = "(id bigserial primary key, topic text, aggregate_id text, payload text)"
    pipeline.sql(*(SQL(f"create table {name} {columns}") for name in named[1::2]))
    done = run_command("init", "--slot", pipeline.slot, *named, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert done.returncode == 0, done.stderr
    for name in named[1::2]:
        query = f"insert into {name} (topic, aggregate_id) select '{pipeline.topic}', '{name}-' || n % 7"
        pipeline.sql(SQL(f"{query} from generate_series(1, 50) n"))
    pipeline.start("--until-caught-up", *named, state=None).wait()
    assert audited.audit("--settled", *named)["rows"]["same_id"] == 50
    pipeline.sql(SQL("delete from orders where id > 10"))
    report = audited.audit("--settled", "--foreign-ok", *named)
    assert (report["messages"]["without_row"], report["rows"]["same_id"]) == (40, 10)
    assert audited.audit("--settled", *named, code=1)["faults"] == {"twice": 40}
    for name in named[1::2]:
        query = f"insert into {name} (id, topic, aggregate_id) values (51, '{pipeline.topic}', '{name}-2')"
        pipeline.sql(SQL(query))
    for _ in range(2):
        audited.put("51", key="parcels-2")
    report = audited.audit("--settled", "--foreign-ok", "--twice-ok", *named, code=1)
    assert (report["faults"], report["twice"]["count"], ids(report, "missing")) == ({"missing": 1}, 1, ["51"])
    pipeline.sql(SQL("delete from parcels where id = 51"))
    report = audited.audit("--settled", "--foreign-ok", "--twice-ok", *named, code=1)
    assert (report["faults"], report["unknown"]["events"][0]["why"]) == ({"unknown": 1}, "other key")
