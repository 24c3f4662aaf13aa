"""F6: an outbox without rows lets the slot follow the WAL of others, without a heartbeat table."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import psycopg
import pytest
from psycopg.sql import SQL

from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import PATIENCE, eventually

LOAD = 25.0
"""Seconds of foreign writing: two rounds of the keepalive that is asked for every ten."""

BEHIND = 12.0
"""Seconds of WAL that may be unconfirmed at any time."""

SMALL = 64 * 1024
LITTLE = 1024
"""Bytes of WAL that an idle server may write by itself meanwhile: what runs, now and then."""

ROUNDS = 20
SEGMENT = 16 << 20


class Noise:
    """Writes rows that are nobody's events, in several databases."""

    def __init__(self, *dsns: str) -> None:
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(dsn,), daemon=True) for dsn in dsns]
        for thread in self._threads:
            thread.start()

    def _write(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table noise (id bigserial, filler text)")
            while not self._stop.wait(0.05):
                connection.execute(
                    "insert into noise (filler) select repeat('x', 200) from generate_series(1, 200)"
                )
            connection.execute("drop table noise")

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


@pytest.mark.patient
def test_F6_the_slot_follows_foreign_writes(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.init()
    relay = pipeline.start()
    elsewhere = own_postgres.create_database("elsewhere")
    positions: deque[tuple[float, int]] = deque()
    worst, began = 0, time.monotonic()

    def sample() -> int:
        """Bytes that are unconfirmed, which may not be more than the WAL of the last seconds."""
        nonlocal worst
        wal, unconfirmed = pipeline.value(
            "select array[pg_current_wal_lsn() - '0/0', pg_current_wal_lsn() - confirmed_flush_lsn]::bigint[]"
            " from pg_replication_slots where slot_name = %s",
            (pipeline.slot,),
        )
        now = time.monotonic()
        positions.append((now, wal))
        while len(positions) > 1 and positions[1][0] < now - BEHIND:
            positions.popleft()
        if now - began > BEHIND:
            worst = max(worst, unconfirmed)
            assert unconfirmed <= max(wal - positions[0][1], SMALL), f"{unconfirmed} bytes are unconfirmed"
        return int(unconfirmed)

    noise = Noise(pipeline.dsn, elsewhere)
    try:
        eventually(lambda: sample() >= 0 and time.monotonic() - began > LOAD, PATIENCE, "the load is over")
    finally:
        noise.close()
    written = positions[-1][1] - positions[0][1]
    print(f"{written / BEHIND / 1024:.0f} KiB/s of foreign WAL, at most {worst / 1024:.0f} KiB unconfirmed")
    eventually(lambda: sample() < 1 << 20, BEHIND, "the slot caught up")

    def retained() -> int:
        pipeline.value("select pg_switch_wal()::text")
        with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
            connection.execute("checkpoint")
        return int(
            pipeline.value(
                "select pg_current_wal_lsn() - restart_lsn from pg_replication_slots where slot_name = %s",
                (pipeline.slot,),
            )
        )

    eventually(lambda: retained() < 2 * SEGMENT, PATIENCE, "WAL let go")
    assert relay.state() == "streaming"
    # And what was idle delivers at once.
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(5))
    assert not pipeline.books(writer, consumer).duplicates


@pytest.mark.patient
def test_an_idle_relay_writes_nothing(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Its own witness row would be WAL, which would be a reason to confirm, and so on for ever."""
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(5))
    pipeline.wait_confirmed()
    eventually(
        lambda: pipeline.end_of_wal().bytes_since(pipeline.confirmed()) < SMALL,
        PATIENCE,
        "less WAL behind than is worth a row",
    )
    proven = "select pg_snapshot_xmin(w.snapshot)::text::int8 > (select max(xmin::text::int8) from outbox)"
    eventually(
        lambda: pipeline.value(proven + " from cdc_outbox_witness w"), PATIENCE, "the last rows proven"
    )
    row = pipeline.witness()
    began = time.monotonic()
    eventually(lambda: time.monotonic() - began > BEHIND, PATIENCE, "a keepalive asked for and answered")
    assert relay.state() == "streaming"
    assert pipeline.witness() == row


def test_an_idle_relay_feeds_no_publication_of_all_tables(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Such a one publishes the witness row too: each round would bring a transaction, and so the next."""
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.sql(SQL("create publication outbox_pub for all tables"))
    pipeline.init()
    relay = pipeline.start(env={"CDC_OUTBOX_POSTGRES_GUARD_INTERVAL": "100ms"})
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(5))
    ends: deque[int] = deque(maxlen=ROUNDS)

    def quiet() -> bool:
        """One round of the guard later: how far did the WAL get in all of them?"""
        pipeline.wait_round()
        ends.append(pipeline.value("select (pg_current_wal_lsn() - '0/0')::bigint"))
        return len(ends) == ROUNDS and ends[-1] - ends[0] < LITTLE

    eventually(quiet, PATIENCE, lambda: f"rounds without WAL: the last ended at {list(ends)}")
    row = pipeline.witness()
    eventually(quiet, PATIENCE, lambda: f"rounds without WAL: the last ended at {list(ends)}")
    assert pipeline.witness() == row
    # It isn't deaf either: what comes next is delivered and confirmed.
    consumer.wait_ids(writer.write(5))
    eventually(lambda: pipeline.witness() != row, PATIENCE, "the witness follows")
    assert relay.state() == "streaming"
