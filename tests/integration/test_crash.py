"""A relay that dies at any moment loses nothing, disorders nothing, and sends little again.

What it may send again is what the broker took in the last moments before the death: confirmations reach PostgreSQL
once a second. Inside one process nothing is sent again at all, however often the session breaks, for the process
remembers what the broker has confirmed, for as long as the server runs.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Record, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import eventually

RATE = 500


def place(record: Record) -> tuple[str, int]:
    """Where the row came from: `cdc.lsn` and `cdc.seq`."""
    lsn, seq = record.header("cdc.lsn"), record.header("cdc.seq")
    assert lsn is not None
    assert seq is not None
    assert len(lsn) == 16
    return lsn, int(seq)


def test_an_unconfirmed_row_holds_the_slot_through_keepalives_and_a_kill(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """F1: the broker is paused, a small row commits, keepalives pass, the relay is killed."""
    # With a short time-out the relay tells often what it has received.
    own_postgres = make_postgres(settings={"wal_sender_timeout": "2s"})
    own_postgres.execute("create table noise (n int)")
    pipeline = make_pipeline(own_postgres, own_kafka).prepare(2).init()
    writer = pipeline.writer()
    pipeline.start()
    writer.write(3)
    pipeline.wait_confirmed(pipeline.end_of_wal())

    own_kafka.pause()
    writer.write(1)
    committed = pipeline.end_of_wal()
    for n in range(3):
        own_postgres.execute("insert into noise values (%s)", (n,))
        # What the relay has received rises by keepalives alone here.
        pipeline.wait_heard(pipeline.end_of_wal())
        assert pipeline.confirmed() < committed
    pipeline.wait_round()
    pipeline.wait_round()
    assert pipeline.confirmed() < committed

    pipeline.relay.kill()
    assert pipeline.confirmed() < committed
    own_kafka.resume()
    pipeline.start()
    pipeline.wait_confirmed(committed)
    pipeline.books(writer)


def test_a_transaction_that_commits_after_the_kill_arrives(
    outbox: Database, kafka: Kafka, aggregate_type: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    """F2: T1 inserts, T2 inserts and commits, the relay dies, T1 commits: its rows lie before what is confirmed."""
    pipeline = make_pipeline(outbox, kafka).prepare(1).init()
    pipeline.start()
    insert = (
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        " values (%s, %s, 'counted', '{}') returning id::text"
    )

    def insert_by(connection: psycopg.Connection, key: str) -> str:
        row = connection.execute(insert, (aggregate_type, key)).fetchone()
        assert row is not None
        return str(row[0])

    with psycopg.connect(outbox.dsn) as first, psycopg.connect(outbox.dsn) as second:
        early = insert_by(first, "early")
        before = pipeline.end_of_wal()
        late = insert_by(second, "late")
        second.commit()
        pipeline.wait_confirmed(pipeline.end_of_wal())
        assert pipeline.confirmed() > before
        pipeline.relay.kill()
        first.commit()
    pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    arrived = [record.id for record in pipeline.read()]
    assert set(arrived) == {early, late}
    assert arrived.index(late) < arrived.index(early)


def test_rows_of_one_transaction_keep_their_places_through_kills(
    outbox: Database, kafka: Kafka, aggregate_type: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    """F3: an INSERT … SELECT and a COPY of 10 000 rows each, the relay killed in the middle of both."""
    rows = 10_000
    pipeline = make_pipeline(outbox, kafka, flags=["--provenance-headers"]).prepare(3).init()
    consumer = pipeline.consumer()
    with psycopg.connect(outbox.dsn) as connection:
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " select %s, 'selected-' || n %% 10, 'counted', jsonb_build_object('n', n)"
            " from generate_series(1, %s) as n",
            (aggregate_type, rows),
        )
        connection.commit()
        copied = "copy outbox (aggregate_type, aggregate_id, event_type, payload) from stdin"
        with connection.cursor().copy(copied) as copy:
            for n in range(1, rows + 1):
                copy.write_row((aggregate_type, f"copied-{n % 10}", "counted", f'{{"n": {n}}}'))
        connection.commit()
        ids = {row[0] for row in connection.execute("select id::text from outbox")}
    assert len(ids) == 2 * rows

    def distinct() -> int:
        return len({record.id for record in consumer.records})

    def wait_distinct(count: int) -> None:
        eventually(lambda: distinct() >= count, 60, lambda: f"{count} rows arrived; {distinct()} have")

    for seen in (1_000, rows + 1_000):
        # Slow enough to be hit in the middle, seconds later too: each kill finds a transaction half sent.
        pipeline.start("--max-events-per-second", "1500")
        wait_distinct(seen)
        pipeline.relay.kill()
        assert distinct() < 2 * rows
    pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())

    records = pipeline.read()
    assert len(records) > 2 * rows, "no row came twice: the kills hit nothing"
    places: dict[str, tuple[str, int]] = {}
    last: dict[int, tuple[str, int]] = {}
    counters: dict[bytes | None, int] = {}
    for record in records:
        assert record.id is not None
        if record.id in places:
            assert place(record) == places[record.id], "a row changed its place when it was sent again"
            continue
        places[record.id] = place(record)
        assert place(record) > last.get(record.partition, ("", -1))
        last[record.partition] = place(record)
        assert record.json()["n"] > counters.get(record.key, 0)
        counters[record.key] = record.json()["n"]
    assert places.keys() == ids
    assert len(set(places.values())) == len(places)
    assert {seq for _, seq in places.values()} == set(range(rows))


def test_a_killed_relay_sends_only_the_last_moments_again(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka).prepare(3).init()
    consumer = pipeline.consumer()
    pipeline.start()
    writer = pipeline.writer(rate=RATE, threads=2, rollback_share=0.05).start()
    kills = 3
    for _ in range(kills):
        # More than a round of the settlement, so that there is something that must not come again.
        writer.wait_written(2 * RATE)
        pipeline.relay.kill()
        pipeline.start()
    writer.wait_written(RATE)
    committed = writer.stop()
    consumer.wait_ids(committed)
    verdict = verify(committed, pipeline.read(), rolled_back=writer.rolled_back)
    print(f"{kills} kills: {verdict}")
    assert len(verdict.duplicates) <= kills * 2 * RATE


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_session_that_breaks_inside_one_process_sends_nothing_twice(
    own_postgres: PostgresServer, kafka: Kafka, way: str, make_pipeline: Callable[..., Pipeline]
) -> None:
    """The walsender is ended under load, again and again: no loss, and not one duplicate."""
    dsn = own_postgres.socket_dsn() if way == "unix" else own_postgres.dsn()
    pipeline = make_pipeline(own_postgres, kafka, way=dsn).prepare(4).init()
    pipeline.start()
    writer = pipeline.writer(rate=None, threads=2, rows_per_transaction=3).start()
    pids = set()
    for _ in range(6):
        writer.wait_written(300)
        pids.add(pipeline.terminate_walsender())
    writer.wait_written(300)
    verdict = pipeline.books(writer)
    assert len(pids) == 6
    assert verdict.duplicates == ()
    assert pipeline.relay.running


def test_a_huge_transaction_cut_in_the_middle_is_not_sent_twice(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Its rows up to the cut are confirmed by the broker, but not to PostgreSQL: the process remembers them."""
    rows = 20_000
    pipeline = (
        make_pipeline(outbox.server, kafka, dbname=outbox.name, flags=["--max-events-per-second", "4000"])
        .prepare(3)
        .init()
    )
    pipeline.start()
    consumer = pipeline.consumer()
    writer = pipeline.writer()
    writer.write(rows, rows_per_transaction=rows)
    committed = pipeline.end_of_wal()
    for seen in (2_000, 9_000):
        consumer.wait_count(seen, 60)
        pipeline.terminate_walsender()
        assert len(consumer.records) < rows
        assert pipeline.confirmed() < committed
    pipeline.wait_confirmed(committed)
    assert pipeline.books(writer).duplicates == ()


def test_a_dead_relay_leaves_its_slot_to_the_next_at_once(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Two relays on one slot, the active one killed again and again: the other takes over, never both."""
    pipeline = make_pipeline(outbox, kafka).prepare(2).init()
    active = pipeline.start()
    writer = pipeline.writer(rate=RATE).start()
    for _ in range(3):
        standby = pipeline.start(state=None)
        standby.wait_state("standby")
        writer.wait_written(RATE)
        active.kill()
        standby.wait_state("streaming")
        active = standby
    pipeline.books(writer)
