"""`replay` as its users run it: rows of the table published again, and the stream isn't disturbed."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cdc_outbox.cli.failure import INTERRUPTED
from cdc_outbox.postgres.chosen import Chosen
from cdc_outbox.postgres.table_wanted import TableWanted
from cdc_outbox.repair.replay import Replay
from cdc_outbox.settings import load
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.peeked import POSITIONS
from tests.polling.table import B
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD
from tests.servers.relay import MAIN, clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually

INSERT: LiteralString = (
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload, created_at)"
    " values (%s, %s, 'counted', %s, %s) returning id::text"
)
HELD: LiteralString = (
    "select count(*) from pg_locks where relation = 'outbox'::regclass and mode = 'AccessShareLock'"
    " and pid in (select pid from pg_stat_activity where application_name = 'cdc-outbox replay'"
    " and state = 'idle in transaction')"
)


class Stage:
    """A pipeline with rows, delivered or not, and `replay` on it."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.kind = pipeline.aggregate_type
        self._written = datetime(2024, 1, 17, 13, tzinfo=UTC)

    def insert(self, *keys: str, payload: str | None = None) -> list[str]:
        """A transaction for each; one is written a minute after the other."""
        ids = []
        with psycopg.connect(self.pipeline.dsn, autocommit=True) as connection:
            for number, key in enumerate(keys):
                self._written += timedelta(minutes=1)
                document = payload or json.dumps({"n": number})
                row = connection.execute(INSERT, (self.kind, key, document, self._written)).fetchone()
                assert row is not None
                ids.append(str(row[0]))
        return ids

    def deliver(self) -> None:
        """A relay delivers what there is, and ends."""
        done = self.run("start", "--until-caught-up", "--no-http")
        assert done.returncode == 0, done.stderr

    def run(self, command: str, *flags: str) -> subprocess.CompletedProcess[str]:
        pipeline = self.pipeline
        environment = {
            "CDC_OUTBOX_DSN": pipeline.dsn,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
        }
        done = run_command(command, "--slot", pipeline.slot, *pipeline.flags, *flags, env=environment)
        assert "Traceback" not in done.stderr
        return done

    def replay(self, *flags: str) -> dict[str, Any]:
        done = self.run("replay", "--yes", "--json", *flags)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def refused(self, *flags: str, code: int) -> tuple[str, str]:
        done = self.run("replay", *flags)
        assert done.returncode == code, done.stdout + done.stderr
        *_, error, remedy = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert remedy.startswith("next: ")
        return error, remedy

    def launch(
        self, *flags: str, stdin: int = subprocess.DEVNULL, stderr: int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """A replay that may be looked at while it runs."""
        pipeline = self.pipeline
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, "replay", "--slot", pipeline.slot, *flags],
            env=clean_environment(
                {"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap}
            ),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def again(self) -> list[Record]:
        """What was replayed."""
        return [record for record in self.pipeline.read() if record.header("cdc.source") == "replay"]

    def ids(self) -> list[str | None]:
        return [record.id for record in self.pipeline.read()]


@pytest.fixture
def stage(outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Stage:
    return Stage(make_pipeline(outbox, kafka).prepare(partitions=1).init())


@ALL_VERSIONS
def test_delivered_rows_come_again_in_order_and_others_by_the_stream(stage: Stage) -> None:
    first = stage.insert("a", "b", "a", "a")
    stage.deliver()
    later = stage.insert("a", "b")
    before = stage.pipeline.value(POSITIONS, (stage.pipeline.slot,))
    told = stage.replay("--aggregate", "a", "--aggregate-type", stage.kind, "--since", "2024-01-17T13:02:00Z")
    assert told["undelivered"] == {"count": 1, "ids": [later[0]]}
    assert told["published"] == {stage.pipeline.topic: 2}
    assert stage.pipeline.value(POSITIONS, (stage.pipeline.slot,)) == before
    stage.deliver()
    assert stage.ids() == [*first, first[2], first[3], *later]
    original, again = stage.pipeline.read()[3], stage.again()[1]
    assert (again.key, again.value, again.id) == (original.key, original.value, original.id)
    assert again.headers == (*original.headers, ("cdc.source", b"replay"))
    assert again.timestamp == round(datetime(2024, 1, 17, 13, 4, tzinfo=UTC).timestamp() * 1000)


def test_what_nobody_hears_is_in_the_way_of_nothing(stage: Stage) -> None:
    """Neither what is told before it begins nor Ctrl-C, where the disk under stderr is full."""
    first = stage.insert(*["a", "b"] * 30)
    stage.deliver()
    stage.insert("a")
    with Path("/dev/full").open("w") as full:
        replaying = stage.launch("--yes", "--since", "10000d", stderr=full.fileno())
        assert f"published {len(first)} events again" in replaying.communicate(timeout=60)[0]
        assert replaying.returncode == 0
        slow = ("--max-events-per-second", "2")
        replaying = stage.launch("--yes", "--since", "10000d", *slow, stderr=full.fileno())
        eventually(lambda: len(stage.again()) > len(first), 30, "rows are replayed")
        replaying.send_signal(signal.SIGINT)
        replaying.communicate(timeout=60)
        assert replaying.returncode == INTERRUPTED


def test_a_relay_that_is_started_in_the_middle_waits(stage: Stage) -> None:
    first = stage.insert(*["a", "b"] * 30)
    stage.deliver()
    consumer = stage.pipeline.consumer()
    consumer.wait_count(60)
    replaying = stage.launch("--yes", "--since", "10000d", "--until", "1s", "--max-events-per-second", "20")
    try:
        consumer.wait_count(61)  # something is replayed, which takes three seconds in all
        replaying.send_signal(signal.SIGSTOP)  # or it may be over before a relay is there
        stage.pipeline.start(state="standby")
        replaying.send_signal(signal.SIGCONT)
        later = stage.insert("a", "b")
        said, errors = replaying.communicate(timeout=60)
    finally:
        replaying.kill()
    assert replaying.returncode == 0, errors
    assert said == f"published 60 events again: 60 to {stage.pipeline.topic}\n"
    eventually(lambda: len(stage.ids()) == 122, PATIENCE, "the relay goes on")
    assert stage.ids() == [*first, *first, *later]


def test_beside_a_running_relay_only_who_accepts_it_may(stage: Stage) -> None:
    ids = stage.insert("a", "b")
    relay = stage.pipeline.start()
    error, remedy = stage.refused("--yes", "--id", ids[0], code=1)
    pid = stage.pipeline.slot_value("active_pid")
    assert f"process {pid} streams from the slot" in error
    assert "--while-running" in remedy

    def proven() -> bool:
        stage.insert("c", payload=json.dumps({"padding": os.urandom(50_000).hex()}))
        told = stage.run("replay", "--dry-run", "--json", "--aggregate", "a")
        return bool(told.returncode == 0 and json.loads(told.stdout)["events"] == 1)

    eventually(proven, 30, "the witness proves the row delivered")
    done = stage.run("replay", "--yes", "--while-running", "--id", ids[0])
    assert done.returncode == 0, done.stderr
    assert "may see events of one key out of order" in done.stderr
    assert [record.id for record in stage.again()] == [ids[0]]
    assert relay.running


def test_a_slot_that_is_taken_from_it_ends_it(stage: Stage) -> None:
    stage.insert(*["a"] * 200)
    stage.deliver()
    replaying = stage.launch("--yes", "--aggregate", "a", "--max-events-per-second", "20")
    try:
        eventually(stage.again, 30, "something is replayed")
        stage.pipeline.value(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
            (stage.pipeline.slot,),
        )
        _, errors = replaying.communicate(timeout=30)
    finally:
        replaying.kill()
    assert replaying.returncode == 1, errors
    assert 0 < len(stage.again()) < 200
    told = re.search(r"stopped in the middle: (\d+) events had been published by then", errors)
    assert told is not None, errors
    assert 0 < int(told[1]) <= len(stage.again())
    assert "was taken from this command in the middle" in errors


def test_bad_input_is_told_and_nothing_is_sent(stage: Stage) -> None:
    ids = stage.insert("a", "b")
    stage.deliver()
    error, remedy = stage.refused("--yes", code=2)
    assert "nothing says which rows" in error
    two = ("--yes", "--id", ids[1], "--id", ids[0])
    stage.pipeline.sql(SQL("alter table outbox rename created_at to made"))
    error, remedy = stage.refused(*two, code=78)
    assert "nothing says in which order the rows of public.outbox were written" in error
    assert remedy.startswith("next: name the columns to order by: cdc-outbox replay --slot ")
    assert all(word in remedy for word in (*two, "--order-by id"))
    stage.pipeline.sql(SQL("alter table outbox rename made to created_at"))
    error, remedy = stage.refused("--aggregate", "a", code=2)
    assert "no terminal" in error
    assert "--dry-run" in remedy
    error, _ = stage.refused("--yes", "--id", "17", code=2)
    assert "--id '17' is nothing that column id of public.outbox can hold" in error
    absent = "00000000-0000-0000-0000-000000000000"
    error, _ = stage.refused("--yes", "--id", ids[0], "--id", absent, code=1)
    assert absent in error
    assert ids[0] not in error
    error, _ = stage.refused("--yes", "--since", "1h", "--until", "2h", code=2)
    assert "--since is not before --until" in error
    error, _ = stage.refused("--yes", "--since", "yesterday", code=2)
    assert "'yesterday'" in error
    error, _ = stage.refused("--yes", "--aggregate", "z", code=1)
    assert "no row of public.outbox is what was asked for" in error
    error, remedy = stage.refused("--yes", "--aggregate", "a", "--topic", "orders.{created_at}", code=70)
    assert ids[0] in error
    assert "nothing was published" in error
    error, _ = stage.refused("--yes", "--aggregate", "a", "--only", "aggregate_id=b", code=1)
    assert "rules leave out all of the rows" in error
    error, _ = stage.refused("--yes", "--aggregate", "a", "--table", "public.other", code=78)
    error, _ = stage.refused("--yes", "--aggregate", "a", "--table", "outbox", "--table", "other", code=2)
    assert "a replay is of one" in error
    assert stage.again() == []


def test_a_window_over_local_times_says_by_which_clock_it_is_read(stage: Stage) -> None:
    stage.pipeline.sql(
        SQL("alter table outbox alter created_at type timestamp"),
        SQL("alter database {} set timezone = 'America/New_York'").format(Identifier(stage.pipeline.dbname)),
    )
    stage.insert("a")
    stage.deliver()
    window = ("--since", "2024-01-17T12:30:00Z", "--until", "2024-01-17T14:00:00Z")
    meant = ("--since", "2024-01-17T07:30:00", "--until", "2024-01-17T09:00:00")
    error, remedy = stage.refused("--yes", *window, code=1)
    assert "no row of public.outbox is what was asked for" in error
    assert remedy.startswith(f"next: ask by the clock of America/New_York: {' '.join(meant)}; or ")
    assert "are read as UTC" in stage.run("replay", "--dry-run", *meant).stdout
    assert stage.replay(*meant)["events"] == 1


def test_a_policy_that_hides_rows_is_told(stage: Stage, outbox: Database) -> None:
    ids = stage.insert("a")
    stage.deliver()
    reader = Identifier(f"{stage.pipeline.slot}_reader")
    stage.pipeline.sql(
        SQL("create role {} login password {}").format(reader, PASSWORD),
        SQL("grant select on outbox, cdc_outbox_witness to {}").format(reader),
        SQL("alter table outbox enable row level security"),
    )
    try:
        admin = outbox.server.dsn(outbox.name, user=f"{stage.pipeline.slot}_reader")
        error, _ = stage.refused("--yes", "--id", ids[0], "--admin-dsn", admin, code=78)
        assert "row-level security" in error
    finally:
        stage.pipeline.sql(SQL("drop owned by {}").format(reader), SQL("drop role {}").format(reader))


def test_whoever_wants_the_table_to_himself_is_let_by_before_anything_is_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What would be sent is counted first, and the table is held for as long as that takes."""
    pipeline = stage.pipeline
    pipeline.sql(
        SQL(
            "insert into outbox (aggregate_type, aggregate_id, event_type)"
            " select 'large', n::text, 'x' from generate_series(1, 180000) n"
        )
    )
    environment = {
        "CDC_OUTBOX_DSN": pipeline.dsn,
        "CDC_OUTBOX_SLOT": pipeline.slot,
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
    }
    settings = load("replay", {}, environment, tmp_path)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK", 0.02)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK_AGAIN", 0.02)

    def alter() -> None:
        # What is counted takes two seconds: one connection for both, or there may be no time left for the second.
        with pipeline.server.connect(pipeline.dbname) as connection:
            eventually(
                lambda: connection.execute(HELD).fetchall() != [(0,)], PATIENCE, "the replay has a snapshot"
            )
            connection.execute("alter table outbox add column note text")

    waiting = threading.Thread(target=alter)
    waiting.start()
    chosen = Chosen(since=datetime(2000, 1, 1, tzinfo=UTC))
    with pytest.raises(TableWanted, match="alter table outbox add column note"):
        asyncio.run(Replay(settings, chosen, order_by=None, beside=False).look(read=lambda count: None))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


def interrupted(process: subprocess.Popen[str]) -> bool:
    """Whether it ended by Ctrl-C. One that comes just before a read begins is heard after it."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(2) is not None
    except subprocess.TimeoutExpired:
        return False


def test_a_dry_run_shows_and_a_person_is_asked(stage: Stage) -> None:
    ids = stage.insert("a", "b", "a")
    stage.deliver()
    done = stage.run("replay", "--dry-run", "--aggregate", "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "2 events of public.outbox, in the order of created_at, id:",
        f"         2  to {stage.pipeline.topic}",
        "the first:",
        f"  {stage.pipeline.topic}  key a  id {ids[0]}",
        f"  {stage.pipeline.topic}  key a  id {ids[2]}",
    ]
    for answer, code in (("n", 1), ("y", 0), ("\x03", 130)):
        ours, theirs = pty.openpty()
        try:
            process = stage.launch("--aggregate", "a", stdin=theirs)
            assert process.stderr is not None
            asked = ""
            while "[y/N]" not in asked:
                asked += process.stderr.read(1)
            if answer == "\x03":
                eventually(partial(interrupted, process), 30, "Ctrl-C is heard")
            else:
                os.write(ours, f"{answer}\n".encode())
            process.communicate(timeout=30)
        finally:
            os.close(ours)
            os.close(theirs)
        assert process.returncode == code, asked
        assert "Publish these 2 events again? [y/N]" in asked
    assert [record.id for record in stage.again()] == [ids[0], ids[2]]


def test_a_key_in_the_payload_and_rows_of_another_bus(
    database: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], topics: str
) -> None:
    B.make(database.dsn)
    topic = f"{topics}orders"
    kafka.create_topic(topic, partitions=2)
    pipeline = make_pipeline(database, kafka, flags=B.key_flags)
    pipeline.topic = topic
    stage = Stage(pipeline)
    done = stage.run("init")
    assert done.returncode == 0, done.stderr
    with psycopg.connect(database.dsn) as connection:
        for number, (key, bus) in enumerate([("7", "kafka"), ("7", "nats"), ("77", "kafka"), ("7", "kafka")]):
            connection.execute(
                SQL(B.insert),
                {
                    "event_id": f"00000000-0000-0000-0000-00000000000{number}",
                    "key": key,
                    "topic": topic,
                    "payload": json.dumps({"order_id": key, "n": number}),
                    "bus": bus,
                },
            )
    stage.deliver()
    told = stage.replay("--aggregate", "7", "--since", "1h")
    assert (told["events"], told["published"]) == (2, {topic: 2})
    assert [record.json()["n"] for record in stage.again()] == [0, 3]
    told = stage.replay("--since", "1h")
    assert (told["events"], told["left_out"]) == (3, {"bus": 1})
