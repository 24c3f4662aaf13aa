"""`health` while WAL is written: no alarm where the relay keeps up, alarms in time where not, and who is to blame.

Each server is the test's own, with a limit small enough to be reached within a minute.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL, Literal

from tests.integration.examined import Examined, Seen
from tests.integration.scraped import status, value
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import MAJORS, Postgres, PostgresServer
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually
from tests.unit.health_schema import require_valid

MIB = 1 << 20
DATABASE = "app"


class Noise:
    """Writes WAL that is nobody's event at a steady pace, by the clock."""

    def __init__(self, dsn: str, mib_per_second: float) -> None:
        self._dsn = dsn
        self._rate = mib_per_second
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.written = 0.0

    def __enter__(self) -> Noise:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        began = time.monotonic()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._stop.wait(0.05):
                due = (time.monotonic() - began) * self._rate - self.written
                blocks = int(due * 16)
                if blocks:
                    connection.execute(
                        "select count(pg_logical_emit_message(false, 'noise', repeat('x', 65472)))"
                        " from generate_series(1, %s)",
                        (blocks,),
                    )
                    self.written += blocks / 16


def at(document: dict[str, Any]) -> float:
    return datetime.fromisoformat(document["at"]).timestamp()


@contextlib.contextmanager
def watching(examined: Examined, *flags: str) -> Iterator[list[dict[str, Any]]]:
    """The documents of `health --watch --json` so far."""
    documents: list[dict[str, Any]] = []
    environment = {"CDC_OUTBOX_DSN": examined.dsn, "CDC_OUTBOX_HTTP": "off"}

    def read(pipe: Any) -> None:
        documents.extend(json.loads(line) for line in pipe)

    with subprocess.Popen(
        [sys.executable, "-m", "cdc_outbox", "health", "--watch", "--json", "--slot", examined.slot, *flags],
        env=clean_environment(environment),
        stdout=subprocess.PIPE,
    ) as process:
        reader = threading.Thread(target=read, args=(process.stdout,), daemon=True)
        reader.start()
        try:
            yield documents
        finally:
            process.terminate()
            reader.join(30)


@pytest.fixture
def make_examined(make_postgres: Callable[..., PostgresServer], slot: str) -> Callable[..., Examined]:
    """Makes a server with these settings, an outbox, a slot and a role: `make_examined(18, max_wal_size="64MB")`."""

    def make(major: int, **settings: str) -> Examined:
        server: Postgres = make_postgres(major, settings=settings)
        create_outbox(server.create_database(DATABASE))
        return Examined(server, DATABASE, slot).init()

    return make


@pytest.mark.patient
@pytest.mark.postgres
@pytest.mark.parametrize("major", MAJORS)
def test_a_slot_that_nobody_reads_is_a_warning_then_critical_then_lost_when_forecast(
    make_examined: Callable[..., Examined], major: int
) -> None:
    examined = make_examined(
        major,
        max_slot_wal_keep_size="160MB",
        max_wal_size="48MB",
        min_wal_size="32MB",
        checkpoint_timeout="30s",
    )
    lost_at = None
    # In hours everything here is near: the time that counts is cut to the size of the test.
    # A look every two seconds, or three, has to find it in time.
    limits = (
        "--warning",
        "time_to_loss=20s",
        "--critical",
        "time_to_loss=10s",
        "--warning",
        "wal_status=off",
    )
    with watching(examined, *limits) as documents:
        eventually(lambda: documents, 60, "a first look")
        with Noise(examined.owner, 5):

            def lost() -> bool:
                return bool(
                    examined.value(
                        "select wal_status = 'lost' from pg_replication_slots where slot_name = %s",
                        (examined.slot,),
                    )
                )

            eventually(lost, 120, "the slot is lost")
            lost_at = examined.value("select extract(epoch from clock_timestamp())::float8")
        eventually(lambda: documents[-1]["slot"]["wal_status"] == "lost", PATIENCE, "the loss is seen")
    for document in documents:
        require_valid(document)
    before = [each for each in documents if at(each) < lost_at]
    statuses = list(dict.fromkeys(each["status"] for each in before))
    assert statuses == ["ok", "warning", "critical"]
    critical = next(each for each in before if each["status"] == "critical")
    assert lost_at - at(critical) > 5
    told = [
        (lost_at - at(each), each["forecast"]["seconds_to_loss"])
        for each in before
        if each["forecast"]["loss"] == "in" and each["rate"]["wal_bytes_per_second"] > MIB
    ]
    early = [(real, forecast) for real, forecast in told if real > 8]
    assert len(early) >= 4
    assert all(real / 2 <= forecast <= real * 2 for real, forecast in early[2:]), early
    # The last word, in each form.
    seen = examined.look()
    assert seen.code == 2
    assert f'the replication slot "{examined.slot}" is lost' in seen.headline
    assert seen.next.startswith("recover")
    assert seen.document["slot"]["safe_wal_bytes"] is None
    assert seen.document["forecast"]["loss"] == "now"
    assert seen.metric("slot_wal_status", slot=examined.slot, status="lost") == 1
    assert seen.metric("slot_safe_wal_bytes", slot=examined.slot) is None


@pytest.mark.patient
def test_an_idle_outbox_beside_heavy_writes_of_others_is_no_alarm(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """The relay confirms what isn't its own, so that what is kept stays within what passes in half a minute."""
    examined = make_examined(
        18, max_slot_wal_keep_size="480MB", max_wal_size="400MB", checkpoint_timeout="30s"
    )
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    with watching(examined) as documents, Noise(examined.owner, 8) as noise:
        # More than the limit: a slot that didn't move would be lost.
        eventually(lambda: noise.written > 520, 150, lambda: f"{noise.written} MiB written")
    for document in documents:
        require_valid(document)
    assert [each["summary"] for each in documents if each["status"] != "ok"] == []
    assert max(each["slot"]["retained_bytes"] for each in documents) < 240 * MIB
    assert {each["forecast"]["loss"] for each in documents[2:]} == {"never"}
    assert value(relay, "state", state="streaming") == 1
    assert value(relay, "oldest_unacked_commit_age_seconds") == 0
    assert value(relay, "slot_time_to_loss_seconds", slot=examined.slot) == float("inf")
    # The last of the noise, which passed a moment ago, is confirmed like all before it.
    eventually(lambda: "active, caught up" in examined.run().stdout, 30, lambda: examined.run().stdout)
    seen = examined.look()
    assert seen.code == 0
    assert seen.headline.endswith(" %)")
    assert "active, caught up" in seen.headline
    assert seen.metric("slot_active", slot=examined.slot) == 1
    assert seen.metric("slot_time_to_loss_seconds", slot=examined.slot) == float("inf")


def test_a_relay_that_stops_under_load_is_critical_in_each_form(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    # So near that it is less than an hour also where a look finds only a tenth of this pace.
    examined = make_examined(18, max_slot_wal_keep_size="1GB", max_wal_size="1GB")
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    with Noise(examined.owner, 3):
        eventually(
            lambda: (look := examined.run()).returncode == 0 and "active" in look.stdout, 60, "all is well"
        )
        relay.terminate()
        # At this pace the limit is reached in less than an hour.
        eventually(lambda: examined.run().returncode == 2, 60, lambda: examined.run().stdout)
        seen = examined.look()
    assert seen.code == 2
    assert "lost in about" in seen.headline
    assert seen.check("time_to_loss")["status"] == "critical"
    assert seen.document["slot"]["active"] is False
    assert seen.document["forecast"]["loss"] == "in"
    assert seen.metric("slot_active", slot=examined.slot) == 0
    assert 0 < (seen.metric("slot_time_to_loss_seconds", slot=examined.slot) or 0) < 3600
    assert seen.metric("slot_inactive_since_timestamp_seconds", slot=examined.slot) is not None


@pytest.mark.patient
@pytest.mark.parametrize("major", [17, 18])
def test_a_slot_that_a_standby_carries_over_is_no_alarm_there(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline], major: int
) -> None:
    """Nobody reads from it there, and it moves with the primary's all the same: it isn't lost at the rate of WAL."""
    examined = make_examined(major, max_slot_wal_keep_size="1GB", max_wal_size="2GB")
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    pipeline.start()
    writer = pipeline.writer()
    # The primary has it, or had: of a standby nobody expects it.
    examined.sql(
        "insert into cdc_outbox_witness (slot, system_identifier, timeline, position)"
        " select 'elsewhere', system_identifier, timeline, position from cdc_outbox_witness"
    )
    assert isinstance(examined.server, PostgresServer)
    with contextlib.closing(examined.server.standby()) as standby:
        there = Examined(standby, DATABASE, examined.slot, examined.role)

        def carried_over() -> bool:
            # Not before the primary's has moved on to where the standby began.
            writer.write(1)
            examined.sql(SQL("select pg_log_standby_snapshot()"))
            return bool(standby.execute("select 1 from pg_replication_slots where synced and not temporary"))

        eventually(carried_over, 90, standby.log_text)
        with Noise(examined.owner, 3) as noise:
            eventually(lambda: noise.written > 10, 60, "some WAL")
            looks = [there.look() for _ in range(3)]
            alone = {"CDC_OUTBOX_DSN": there.dsn, "CDC_OUTBOX_HTTP": "off"}
            every = run_command("health", "--all", env=alone)
        assert (every.returncode, every.stdout.count("elsewhere")) == (0, 0), every
    for seen in looks:
        assert (seen.code, seen.document["forecast"]["loss"]) == (0, "never"), seen.text
        assert "on a standby, read by nobody" in seen.headline


def seen_with_a_culprit(examined: Examined) -> Seen:
    """The first look that names who keeps WAL."""

    def named() -> Seen | None:
        seen = examined.look()
        return seen if seen.document["culprit"] is not None else None

    seen = eventually(named, 60, "a culprit")
    assert seen is not None
    return seen


@pytest.mark.parametrize("major", [15, 18])
def test_a_long_transaction_elsewhere_is_named_and_not_the_relay(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline], major: int
) -> None:
    examined = make_examined(major)
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    with psycopg.connect(examined.server.dsn(), application_name="nightly batch") as batch:
        batch.execute("create table held (id int)")
        batch.execute("insert into held values (1)")
        pid = batch.info.backend_pid
        examined.write_wal(80)
        pipeline.wait_confirmed()
        seen = seen_with_a_culprit(examined)
        culprit = seen.document["culprit"]
        assert (
            culprit["kind"],
            culprit["pid"],
            culprit["user"],
            culprit["application"],
            culprit["database"],
        ) == (
            "transaction",
            pid,
            "postgres",
            "nightly batch",
            "postgres",
        )
        # This role may not see when it began, and unknown is not 0.
        assert (culprit["age_seconds"], culprit["query_start"]) == (None, None)
        assert culprit["held_bytes"] > 64 * MIB
        assert (
            f"pid {pid} (user postgres, database postgres, application nightly batch, age unknown)"
            in seen.headline
        )
        assert "grant pg_read_all_stats" in seen.text
        assert "active, caught up" in seen.headline
        assert seen.code == 0
        assert seen.metric("oldest_transaction_age_seconds") is None

        def kept_for_somebody_else() -> bool:
            """Next to nothing of it is undelivered, once a sample came after the last of it was written."""
            retained = value(relay, "slot_retained_wal_bytes", slot=examined.slot) or 0
            unconfirmed = value(relay, "slot_unconfirmed_wal_bytes", slot=examined.slot)
            return retained > 64 * MIB and unconfirmed is not None and unconfirmed < MIB

        eventually(kept_for_somebody_else, PATIENCE, lambda: relay.get("/metrics"))
        assert value(relay, "oldest_transaction_age_seconds") is None
        judged = examined.look("--warning", "retained_bytes=16MiB")
        assert judged.code == 1
        assert judged.next == f"let that transaction end, or end it: select pg_terminate_backend({pid});"
        examined.sql(SQL("grant pg_read_all_stats to {}").format(SQL(examined.role)))
        known = examined.look()
        assert known.document["culprit"]["age_seconds"] > 0
        assert known.document["culprit"]["query_start"] is not None
        assert known.metric("oldest_transaction_age_seconds") == pytest.approx(
            known.document["culprit"]["age_seconds"], abs=30
        )
        batch.rollback()
    assert relay.running


@pytest.mark.parametrize("major", [15, 18])
def test_a_prepared_transaction_is_named(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline], major: int
) -> None:
    examined = make_examined(major)
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    pipeline.start()
    with psycopg.connect(examined.owner, autocommit=True) as connection:
        connection.execute("begin; create table held (id int); prepare transaction 'forgotten'")
    examined.write_wal(80)
    pipeline.wait_confirmed()
    # A prepared transaction's age is for everybody to see.
    seen = seen_with_a_culprit(examined)
    culprit = seen.document["culprit"]
    assert (culprit["kind"], culprit["gid"], culprit["user"]) == (
        "prepared_transaction",
        "forgotten",
        "postgres",
    )
    assert culprit["age_seconds"] > 0
    assert "prepared transaction 'forgotten'" in seen.headline
    examined.sql(SQL("rollback prepared {}").format(Literal("forgotten")))


def test_names_in_another_databases_encoding_blind_nobody(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """What is prepared in one database is seen in all, as it was written there."""
    examined = make_examined(18)
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    examined.server.execute(
        "create database old encoding latin1 template template0 lc_collate 'C' lc_ctype 'C'"
    )
    with psycopg.connect(examined.server.dsn("old"), autocommit=True, client_encoding="latin1") as old:
        old.execute("begin; create table held (id int); prepare transaction 'café'")
        examined.write_wal(80)
        pipeline.wait_confirmed()
        seen = seen_with_a_culprit(examined)
        assert (
            "prepared transaction 'caf\N{REPLACEMENT CHARACTER}' (user postgres, database old"
            in seen.headline
        )
        prepared_at = examined.value("select max(prepared)::text from pg_prepared_xacts")
        eventually(
            lambda: status(relay)["health"]["at"] > prepared_at.replace(" ", "T"), PATIENCE, relay.text
        )
        old.execute("rollback prepared 'café'")


@pytest.mark.patient
def test_a_locked_catalogue_costs_the_sample_and_not_the_session(
    make_examined: Callable[..., Examined], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """The watch alone asks for the names of roles; the guard goes on, over the connection that both have."""
    examined = make_examined(18)
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    eventually(lambda: value(relay, "slot_active", slot=examined.slot) == 1, 60, relay.text)
    walsender = pipeline.walsender()
    with psycopg.connect(examined.owner) as vacuum:
        vacuum.execute("lock table pg_authid in access exclusive mode")
        relay.wait_for(lambda record: record["event"] == "no sample of the slot", 60)
        passed = value(relay, "guard_checks", result="passed") or 0
        eventually(lambda: (value(relay, "guard_checks", result="passed") or 0) > passed, 60, relay.text)
    assert value(relay, "guard_checks", result="unanswered") == 0
    eventually(lambda: value(relay, "slot_active", slot=examined.slot) == 1, 60, relay.text)
    assert pipeline.walsender() == walsender


@pytest.mark.parametrize("major", [15, 18])
def test_another_slot_that_keeps_more_is_named(make_examined: Callable[..., Examined], major: int) -> None:
    examined = make_examined(major)
    examined.sql(SQL("select pg_create_physical_replication_slot('abandoned', true)"))
    examined.write_wal(60)
    moved = SQL("select pg_replication_slot_advance({}, pg_current_wal_lsn())").format(Literal(examined.slot))
    examined.sql(moved, SQL("checkpoint"))
    examined.write_wal(1)
    examined.sql(moved)
    seen = examined.look()
    assert seen.document["culprit"]["slot"] == "abandoned"
    assert 'slot "abandoned" keeps' in seen.text
    # Advanced by hand, past what the witness knows of: that is critical, and said.
    assert seen.code == 2
    assert "those between may be missing" in seen.headline


@pytest.mark.patient
def test_a_broker_that_is_away_stalls_delivery_and_the_relay_says_so(
    make_examined: Callable[..., Examined],
    make_kafka: Callable[..., KafkaBroker],
    make_pipeline: Callable[..., Pipeline],
) -> None:
    examined, kafka = make_examined(18), make_kafka()
    pipeline = make_pipeline(examined.server, kafka, dbname=DATABASE, way=examined.dsn).prepare()
    relay = pipeline.start()
    asked = {"CDC_OUTBOX_HTTP": f"127.0.0.1:{relay.http_port}"}
    eventually(lambda: examined.run(env=asked).returncode == 0, 60, "all is well")
    well = examined.look(env=asked)
    assert well.code == 0
    assert well.document["delivery"]["oldest_unacknowledged_seconds"] == 0
    assert well.document["delivery"]["state"] == "streaming"
    kafka.stop()
    writer = pipeline.writer(rate=50).start()
    limits = ("--warning", "oldest_unacknowledged=2s", "--critical", "oldest_unacknowledged=1h")
    eventually(lambda: examined.run(*limits, env=asked).returncode == 1, 60, "delivery stalls")
    stalled = examined.look(*limits, env=asked)
    assert stalled.code == 1
    assert stalled.check("oldest_unacknowledged")["status"] == "warning"
    assert "the oldest commit without an acknowledgement is" in stalled.headline
    assert stalled.document["delivery"]["oldest_unacknowledged_seconds"] >= 2
    assert "caught up" not in stalled.headline
    owed = "has owed us a confirmation"
    eventually(lambda: owed in examined.run(*limits, env=asked).stdout, 60, "why, by the relay")
    named = examined.look(*limits, env=asked)
    assert named.headline.count(owed) == 1
    assert named.document["delivery"]["state"] == "held"
    assert value(relay, "state", state="held") == 1
    assert (value(relay, "oldest_unacked_commit_age_seconds") or 0) >= 2
    assert (value(relay, "inflight_events") or 0) > 0
    assert "check that the brokers run" in named.next
    young = ("--warning", "oldest_unacknowledged=1h", "--critical", "oldest_unacknowledged=2h")
    at_once = examined.look(*young, env=asked)
    assert (at_once.code, at_once.check("relay")["status"]) == (1, "warning")
    assert at_once.next == named.next
    # Another slot's relay says nothing of this one.
    other = examined.look(env=asked, slot="nowhere")
    assert other.document["delivery"]["oldest_unacknowledged_seconds"] is None
    kafka.start()
    # One form alone, for those that look side by side may see another state while it changes.
    eventually(lambda: examined.run(*limits, env=asked).returncode == 0, 90, "delivery goes on")
    pipeline.books(writer)
