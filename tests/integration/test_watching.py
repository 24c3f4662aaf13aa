"""A running relay as those see it who watch: scrapers, probes, browsers, and clients that mean no good."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.sql import SQL

from cdc_outbox.faults import HOLD_CONFIRMATION
from tests.integration.conftest import Database
from tests.integration.scraped import scrape, status, value
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import LogRecord, RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

TOKEN = secrets.token_hex(32)
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def health(relay: RelayProcess) -> tuple[int, str]:
    code, body = relay.get("/healthz")
    return code, json.loads(body)["status"]


def sampled_at(relay: RelayProcess) -> str:
    """When the sample was taken by which the health is judged; empty while a new one is late."""
    return str((status(relay)["health"] or {}).get("at") or "")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file


def test_what_was_delivered_is_seen_at_once(pipeline: Pipeline) -> None:
    relay, writer = pipeline.start(), pipeline.writer()
    began = time.time()
    writer.write(30, rows_per_transaction=3)
    eventually(lambda: value(relay, "events_published", topic=pipeline.topic) == 30, PATIENCE, relay.text)
    metrics = scrape(relay)

    def sum_of(name: str, suffix: str) -> float:
        return next(each.value for each in metrics[name].samples if each.name.endswith(suffix))

    assert value(relay, "events_received") == 30
    assert value(relay, "state", state="streaming") == 1
    assert sum_of("event_latency_seconds", "_count") == 30
    assert 0 < sum_of("event_latency_seconds", "_sum") / 30 < time.time() - began
    assert sum_of("publish_duration_seconds", "_count") > 0
    eventually(
        lambda: (
            next(
                each.value
                for each in scrape(relay)["transaction_events"].samples
                if each.labels.get("le") == "5.0"
            )
            == 10
        ),
        PATIENCE,
        "ten transactions of three",
    )
    assert value(relay, "inflight_events") == value(relay, "oldest_unacked_commit_age_seconds") == 0
    acknowledged = value(relay, "last_ack_timestamp_seconds")
    assert acknowledged is not None
    assert began - 1 < acknowledged < time.time() + 1
    assert (value(relay, "guard_checks", result="failed"), value(relay, "publication_ok")) in (
        (0, 1),
        (0, None),
    )
    assert (value(relay, "status_updates_sent") or 0) > 0


@pytest.mark.patient
def test_a_long_transaction_that_was_delivered_is_no_stall(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    """Before its commit nothing could be confirmed, for longer than the limit: what counts is the time since then.

    It takes more than half a minute, for what was written within that is no stall in any case.
    """
    limit, rows = 20.0, 1480
    hold = tmp_path / "hold"
    pipeline = make_pipeline(outbox, kafka, env={HOLD_CONFIRMATION: str(hold)}).prepare().init()
    thresholds = ("--warning", "stalled=4h", "--critical", f"stalled={limit:g}s")
    relay = pipeline.start("--max-events-per-second", "40", *thresholds)
    pipeline.writer().write(rows, rows_per_transaction=rows)
    # By then what came before the transaction is confirmed, and nothing more can be until it ends.
    eventually(lambda: (value(relay, "events_published") or 0) > 120, PATIENCE, relay.text)
    hold.touch()
    pipeline.value("select pg_logical_emit_message(false, 'noise', repeat('x', 3000000))::text")

    def stalled(told: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The check; None while a sample is late."""
        return next((each for each in told["health"]["checks"] if each["name"] == "stalled"), None)

    def owed() -> Mapping[str, Any] | None:
        told = status(relay)
        since, check = told["delivery"]["confirmable_since"], stalled(told)
        sampled = since is not None and told["health"]["delivery"]["last_acknowledged_at"] == since
        return check if sampled else None

    def confirmed() -> bool:
        check = stalled(status(relay))
        return check is not None and "no more than 1 MiB" in check["message"]

    eventually(lambda: value(relay, "events_published") == rows, PATIENCE, relay.text)
    at_once = eventually(owed, PATIENCE, "a sample of the time in which PostgreSQL has yet to hear of it")
    assert at_once is not None
    assert (at_once["status"], at_once["value"] < limit) == ("ok", True)
    assert "not confirmed, and no acknowledgement for" in at_once["message"]
    hold.unlink()
    eventually(confirmed, PATIENCE, "confirmed")


def test_the_slot_is_sampled_by_the_role_that_streams(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    eventually(lambda: value(relay, "slot_active", slot=pipeline.slot) == 1, PATIENCE, relay.text)
    assert value(relay, "publication_ok") == 1
    assert value(relay, "slot_wal_status", slot=pipeline.slot, status="reserved") == 1
    assert value(relay, "slot_retained_wal_bytes", slot=pipeline.slot) is not None
    assert value(relay, "slot_unconfirmed_wal_bytes", slot=pipeline.slot) is not None
    assert value(relay, "slot_time_to_loss_seconds", slot=pipeline.slot) is None, "there is no limit"
    assert health(relay)[0] == 200


def test_who_has_the_table_to_himself_keeps_neither_guard_nor_watch_waiting(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    eventually(lambda: value(relay, "publication_ok") == 1, PATIENCE, relay.text)
    with psycopg.connect(pipeline.dsn) as migration:
        migration.execute("lock table outbox in access exclusive mode")
        seen = eventually(lambda: sampled_at(relay), PATIENCE, relay.text)
        passed = value(relay, "guard_checks", result="passed") or 0
        eventually(lambda: sampled_at(relay) > seen, PATIENCE, relay.text)
        eventually(
            lambda: (value(relay, "guard_checks", result="passed") or 0) > passed + 2, PATIENCE, relay.text
        )
    assert value(relay, "guard_checks", result="unanswered") == 0
    assert value(relay, "state", state="streaming") == 1


def test_status_tells_state_positions_topics_and_mapping(pipeline: Pipeline) -> None:
    relay, writer = pipeline.start(), pipeline.writer()
    writer.write(5)
    eventually(lambda: status(relay)["topics"] == {pipeline.topic: 5}, PATIENCE, relay.text)
    eventually(lambda: status(relay)["health"] is not None, PATIENCE, relay.text)
    # A row may be in Kafka before the relay has read its commit: then its transaction is under way still.
    eventually(lambda: status(relay)["delivery"]["oldest_unacknowledged_seconds"] == 0, PATIENCE, relay.text)
    document = status(relay)
    assert document["state"] == "streaming"
    assert document["slot"] == pipeline.slot
    assert document["events"]["published"] == 5
    assert "public.outbox" in document["mapping"]
    assert document["lsn"]["received"] != "0/0"
    assert document["delivery"]["oldest_unacknowledged_seconds"] == 0
    eventually(lambda: status(relay)["lsn"]["confirmed"] != "0/0", PATIENCE, "a confirmation")


@pytest.mark.patient
def test_the_first_hour_begins_with_a_point(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    pipeline.writer().write(5)
    point = eventually(lambda: status(relay)["history"]["points"], PATIENCE, relay.text)[0]
    assert point["unconfirmed_bytes"] is not None
    assert point["events_per_second"] > 0


def test_a_token_opens_what_probes_dont_need(pipeline: Pipeline, token_file: Path) -> None:
    relay = pipeline.start(env={"CDC_OUTBOX_HTTP_TOKEN_FILE": str(token_file)})
    assert relay.get("/livez")[0] == relay.get("/readyz")[0] == relay.get("/")[0] == 200
    for path in ("/metrics", "/healthz", "/status"):
        assert relay.get(path)[0] == 401
        assert relay.get(path, headers={"Authorization": "Bearer wrong"})[0] == 401
    assert relay.get("/metrics", headers=BEARER)[0] == relay.get("/status", headers=BEARER)[0] == 200
    token_file.write_text("rotated\n")
    assert relay.get("/status", headers=BEARER)[0] == 401
    assert relay.get("/status", headers={"Authorization": "Bearer rotated"})[0] == 200
    asked = {"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_HTTP": f"127.0.0.1:{relay.http_port}"}
    without = run_command("health", "--slot", pipeline.slot, env=asked)
    assert "its relay tells us nothing: the token is missing or wrong" in without.stdout
    known = run_command(
        "health", "--slot", pipeline.slot, env={**asked, "CDC_OUTBOX_HTTP_TOKEN_FILE": str(token_file)}
    )
    assert "relay streaming" in known.stdout
    assert TOKEN not in relay.text(1000)


def test_a_token_file_that_is_not_there_is_a_set_up_error(pipeline: Pipeline, tmp_path: Path) -> None:
    relay = pipeline.start(state=None, env={"CDC_OUTBOX_HTTP_TOKEN_FILE": str(tmp_path / "nothing")})
    assert relay.wait() == 78
    assert str(tmp_path / "nothing") in relay.records[-1]["error"]
    assert "openssl rand" in relay.records[-1]["next"]


def test_for_others_without_a_token_there_is_no_status(pipeline: Pipeline) -> None:
    port = free_port()
    relay = pipeline.start("--http", f"0.0.0.0:{port}", state=None)
    relay.http_port = port
    relay.wait_state("streaming")
    warning = relay.wait_for(lambda record: "status page is off" in str(record["event"]))
    assert "http.token_file" in str(warning)
    assert {path: relay.get(path)[0] for path in ("/", "/status", "/metrics", "/livez")} == {
        "/": 403,
        "/status": 403,
        "/metrics": 200,
        "/livez": 200,
    }


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody listens there."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def test_a_port_that_was_asked_for_and_is_taken_is_an_error(pipeline: Pipeline) -> None:
    port = free_port()
    with taken(port):
        relay = pipeline.start("--http", f"127.0.0.1:{port}", state=None)
        assert relay.wait() == 78
    assert f"127.0.0.1:{port}: the port is taken" in relay.records[-1]["error"]
    assert "--http HOST:PORT" in relay.records[-1]["next"]


def flood(relay: RelayProcess, *, clients: int, slow: int) -> dict[str, int]:
    """Let clients come all at once; an answer's code → how many got it."""
    arguments = [sys.executable, "-m", "tests.servers.flood", *map(str, (relay.http_port, clients, slow))]
    done = subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, timeout=100, check=True)
    codes = json.loads(done.stdout)
    assert isinstance(codes, dict)
    return codes


def test_ten_thousand_scrapes_and_slow_clients_leave_the_stream_unharmed(pipeline: Pipeline) -> None:
    relay, writer, consumer = pipeline.start(), pipeline.writer(rate=200), pipeline.consumer()
    walsender = pipeline.slot_value("active_pid")
    writer.start()
    writer.wait_written(200)
    codes = flood(relay, clients=10_000, slow=100)
    verdict = pipeline.books(writer, consumer)
    assert verdict.duplicates == ()
    # Where the kernel's queue is shorter than this crowd, some of it is told apart from slow clients too late.
    assert sum(codes.values()) == 10_000
    assert codes["200"] > 9_500, codes
    assert pipeline.slot_value("active_pid") == walsender
    assert relay.get("/livez")[0] == 200
    assert relay.peak_rss() < 96 << 20
    buckets = scrape(relay)["event_latency_seconds"].samples
    late = {each.labels["le"]: each.value for each in buckets if "le" in each.labels}
    assert late["5.0"] == late["+Inf"], f"an event took more than 5 s: {late}"


@pytest.fixture
def own_pipeline(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
    aggregate_type: str,
) -> Pipeline:
    """Servers that may be hurt, and a limit of two segments for what a slot may keep."""
    server = make_postgres(settings={"max_slot_wal_keep_size": "32MB", "checkpoint_timeout": "30s"})
    return make_pipeline(server, own_kafka, aggregate_type=aggregate_type).prepare().init()


@pytest.mark.patient
def test_a_broker_that_is_away_is_seen_by_age_state_and_health(own_pipeline: Pipeline) -> None:
    relay = own_pipeline.start(
        "--warning", "oldest_unacknowledged=1s", "--critical", "oldest_unacknowledged=3s"
    )
    writer = own_pipeline.writer()
    writer.write(5)
    eventually(lambda: value(relay, "events_published", topic=own_pipeline.topic) == 5, PATIENCE, relay.text)
    eventually(lambda: health(relay) == (200, "ok"), PATIENCE, lambda: relay.get("/healthz"))

    def crossings() -> list[LogRecord]:
        told = [record for record in relay.records if str(record["event"]).startswith("threshold")]
        return [record for record in told if record["signal"] == "oldest_unacknowledged"]

    # The first rows may have taken a second on a new broker: what is told of that is over when this one goes away.
    eventually(lambda: [each["status"] for each in crossings()][-1:] in ([], ["ok"]), PATIENCE, relay.text)
    before, since = len(crossings()), len(relay.records)
    assert isinstance(own_pipeline.kafka, KafkaBroker)
    own_pipeline.kafka.pause()
    try:
        writer.write(5)
        eventually(lambda: (value(relay, "oldest_unacked_commit_age_seconds") or 0) > 3, PATIENCE, relay.text)
        assert value(relay, "inflight_events") == 5
        assert (value(relay, "inflight_bytes") or 0) > 0
        eventually(lambda: health(relay) == (503, "critical"), PATIENCE, lambda: relay.get("/healthz"))
        eventually(lambda: value(relay, "state", state="held") == 1, PATIENCE, relay.text)
        assert relay.get("/livez")[0] == 200
        assert relay.get("/readyz")[0] == 503
        crossed = relay.wait_for(
            lambda record: (
                record["event"] == "threshold crossed"
                and record["signal"] == "oldest_unacknowledged"
                and record["status"] == "critical"
            ),
            since=since,
        )
        assert crossed["level"] == "error"
        assert crossed["next"]
    finally:
        own_pipeline.kafka.resume()
    eventually(lambda: value(relay, "oldest_unacked_commit_age_seconds") == 0, PATIENCE, relay.text)
    eventually(lambda: health(relay) == (200, "ok"), PATIENCE, lambda: relay.get("/healthz"))
    relay.wait_for(
        lambda record: record["event"] == "threshold left" and record["signal"] == "oldest_unacknowledged",
        since=since,
    )
    assert len(crossings()) - before <= 3, crossings()


def test_a_slot_that_stands_still_is_seen_though_kafka_confirms_all_the_while(pipeline: Pipeline) -> None:
    """Somebody has the witness row locked and forgets it: what holds the log back is the slot, whatever Kafka says."""
    relay = pipeline.start("--warning", "stalled=1s", "--critical", "stalled=3s")
    pipeline.writer(rate=2_000).start()
    eventually(lambda: health(relay) == (200, "ok"), PATIENCE, lambda: relay.get("/healthz"))
    looks: list[tuple[int, str]] = []

    def stays_critical() -> bool:
        looks.append(health(relay))
        return looks[-40:] == [(503, "critical")] * 40

    with psycopg.connect(pipeline.dsn) as forgetful:
        forgetful.execute(
            "select from public.cdc_outbox_witness where slot = %s for update", (pipeline.slot,)
        )
        eventually(stays_critical, PATIENCE, lambda: f"{looks}\n{relay.text()}")
        delivered = value(relay, "events_published", topic=pipeline.topic) or 0
        eventually(
            lambda: (value(relay, "events_published", topic=pipeline.topic) or 0) > delivered,
            PATIENCE,
            relay.text,
        )
    eventually(lambda: health(relay) == (200, "ok"), PATIENCE, lambda: relay.get("/healthz"))


def test_a_publication_that_is_gone_is_seen_while_the_relay_is_held(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    eventually(lambda: value(relay, "publication_ok") == 1, PATIENCE, relay.text)
    pipeline.sql(SQL("drop publication outbox_pub"))
    relay.wait_state("held")
    eventually(lambda: value(relay, "publication_ok") == 0, PATIENCE, relay.text)
    eventually(lambda: health(relay) == (503, "critical"), PATIENCE, lambda: relay.get("/healthz"))
    code, body = relay.get("/healthz")
    assert code == 503
    assert "outbox_pub" in body
    asked = {"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_HTTP": f"127.0.0.1:{relay.http_port}"}
    seen = run_command("health", "--slot", pipeline.slot, env=asked)
    assert seen.returncode == 2
    assert "publication outbox_pub does not exist" in seen.stdout
    assert (value(relay, "guard_checks", result="failed") or 0) >= 1
    assert (value(relay, "session_restarts", reason="publication_wrong") or 0) >= 1
    assert any("outbox_pub" in error["error"] for error in status(relay)["errors"])


def wait_sampled(relay: RelayProcess, moment: datetime) -> None:
    """Wait for a sample that was taken after that moment of the server's clock."""

    def taken() -> bool:
        at = sampled_at(relay)
        return bool(at) and datetime.fromisoformat(at) >= moment

    eventually(taken, PATIENCE, relay.text)


@pytest.mark.patient
def test_a_slot_that_comes_near_its_limit_is_seen_before_it_is_lost(own_pipeline: Pipeline) -> None:
    relay = own_pipeline.start()
    writer = own_pipeline.writer()
    writer.write(5)
    eventually(lambda: value(relay, "slot_wal_limit_bytes") == 32 << 20, PATIENCE, relay.text)
    assert isinstance(own_pipeline.kafka, KafkaBroker)
    own_pipeline.kafka.pause()
    writer.write(5)
    seen = []
    for _ in range(10):
        own_pipeline.value("select pg_logical_emit_message(false, 'noise', repeat('x', 6000000))::text")
        wait_sampled(relay, own_pipeline.value("select clock_timestamp()"))
        seen.append(health(relay))
        if seen[-1] == (503, "critical"):
            break
    assert (200, "warning") in seen, seen
    assert (503, "critical") in seen, seen
    assert value(relay, "slot_time_to_loss_seconds") is not None
    assert status(relay)["health"]["next"]
    crossed = relay.wait_for(
        lambda record: record["event"] == "threshold crossed" and record["status"] == "critical"
    )
    assert crossed["level"] == "error"

    def lost() -> bool:
        if not relay.running:
            return True
        own_pipeline.value("select pg_logical_emit_message(false, 'noise', repeat('x', 6000000))::text")
        own_pipeline.value("select pg_switch_wal()::text")
        own_pipeline.sql(SQL("checkpoint"))
        return False

    eventually(lost, PATIENCE, relay.text)
    assert relay.wait() == 78, relay.text()
    assert "lost" in relay.records[-1]["error"]


@pytest.mark.patient
def test_a_server_that_is_away_leaves_no_old_figures(own_pipeline: Pipeline) -> None:
    relay = own_pipeline.start()
    eventually(lambda: value(relay, "slot_active") == 1, PATIENCE, relay.text)
    assert isinstance(own_pipeline.server, PostgresServer)
    own_pipeline.server.stop()
    eventually(lambda: "slot_active" not in scrape(relay), PATIENCE, relay.text)
    code, body = relay.get("/healthz")
    assert (code, json.loads(body)["status"]) == (503, "critical")
    assert (value(relay, "reconnects", side="postgres") or 0) >= 1
    assert relay.get("/livez")[0] == 200
    own_pipeline.server.start()
    eventually(lambda: value(relay, "slot_active") == 1, PATIENCE, relay.text)
    eventually(lambda: health(relay)[0] == 200, PATIENCE, lambda: relay.get("/healthz"))
