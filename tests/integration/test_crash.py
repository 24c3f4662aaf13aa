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
from tests.servers.ledger import Consumer, Record, Writer, create_outbox, read_all, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import Postgres, PostgresServer
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
    outbox_topic: str,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
) -> None:
    """F1: the broker is paused, a small row commits, keepalives pass, the relay is killed."""
    # With a short time-out the relay tells often what it has received.
    own_postgres = make_postgres(settings={"wal_sender_timeout": "2s"})
    create_outbox(own_postgres.dsn())
    own_postgres.execute("create table noise (n int)")
    own_kafka.create_topic(outbox_topic, 2)
    writer = make_writer(own_postgres.dsn())
    pipeline = make_pipeline(own_postgres, own_kafka).init()
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
    verify(writer.stop(), read_all(own_kafka.bootstrap, outbox_topic))


def test_a_transaction_that_commits_after_the_kill_arrives(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    aggregate_type: str,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """F2: T1 inserts, T2 inserts and commits, the relay dies, T1 commits: its rows lie before what is confirmed."""
    kafka.create_topic(outbox_topic)
    pipeline = make_pipeline(outbox.server, kafka, dbname=outbox.name).init()
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
    arrived = [record.id for record in read_all(kafka.bootstrap, outbox_topic)]
    assert set(arrived) == {early, late}
    assert arrived.index(late) < arrived.index(early)


def test_rows_of_one_transaction_keep_their_places_through_kills(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    aggregate_type: str,
    make_pipeline: Callable[..., Pipeline],
    make_consumer: Callable[..., Consumer],
) -> None:
    """F3: an INSERT … SELECT and a COPY of 10 000 rows each, the relay killed in the middle of both."""
    rows = 10_000
    kafka.create_topic(outbox_topic, 3)
    pipeline = make_pipeline(outbox.server, kafka, dbname=outbox.name, flags=["--provenance-headers"]).init()
    consumer = make_consumer(kafka.bootstrap, outbox_topic)
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

    for seen in (1_000, rows + 3_000):
        # Slow enough to be hit in the middle: each kill finds a transaction half sent.
        pipeline.start("--max-events-per-second", "5000")
        wait_distinct(seen)
        pipeline.relay.kill()
        assert distinct() < 2 * rows
    pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())

    records = read_all(kafka.bootstrap, outbox_topic)
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
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
    make_consumer: Callable[..., Consumer],
) -> None:
    kafka.create_topic(outbox_topic, 3)
    pipeline = make_pipeline(outbox.server, kafka, dbname=outbox.name).init()
    consumer = make_consumer(kafka.bootstrap, outbox_topic)
    pipeline.start()
    writer = make_writer(outbox.dsn, rate=RATE, threads=2, rollback_share=0.05).start()
    kills = 3
    for _ in range(kills):
        # More than a round of the settlement, so that there is something that must not come again.
        writer.wait_written(2 * RATE)
        pipeline.relay.kill()
        pipeline.start()
    writer.wait_written(RATE)
    committed = writer.stop()
    consumer.wait_ids(committed)
    verdict = verify(committed, read_all(kafka.bootstrap, outbox_topic), rolled_back=writer.rolled_back)
    print(f"{kills} kills: {verdict}")
    assert len(verdict.duplicates) <= kills * 2 * RATE


@pytest.mark.parametrize("way", ["unix", "tcp"])
def test_a_session_that_breaks_inside_one_process_sends_nothing_twice(
    own_postgres: PostgresServer,
    kafka: Kafka,
    outbox_topic: str,
    way: str,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
) -> None:
    """The walsender is ended under load, again and again: no loss, and not one duplicate."""
    create_outbox(own_postgres.dsn())
    kafka.create_topic(outbox_topic, 4)
    dsn = own_postgres.socket_dsn() if way == "unix" else own_postgres.dsn()
    pipeline = make_pipeline(own_postgres, kafka, dsn=dsn).init()
    pipeline.start()
    writer = make_writer(own_postgres.dsn(), rate=None, threads=2, rows_per_transaction=3).start()
    pids = set()
    for _ in range(6):
        writer.wait_written(300)
        pids.add(pipeline.terminate_walsender())
    writer.wait_written(300)
    committed = writer.stop()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    verdict = verify(committed, read_all(kafka.bootstrap, outbox_topic))
    assert len(pids) == 6
    assert verdict.duplicates == ()
    assert pipeline.relay.running


def test_a_huge_transaction_cut_in_the_middle_is_not_sent_twice(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
    make_consumer: Callable[..., Consumer],
) -> None:
    """Its rows up to the cut are confirmed by the broker, but not to PostgreSQL: the process remembers them."""
    rows = 20_000
    kafka.create_topic(outbox_topic, 3)
    pipeline = make_pipeline(
        outbox.server, kafka, dbname=outbox.name, flags=["--max-events-per-second", "8000"]
    ).init()
    pipeline.start()
    consumer = make_consumer(kafka.bootstrap, outbox_topic)
    writer = make_writer(outbox.dsn)
    writer.write(rows, rows_per_transaction=rows)
    committed = pipeline.end_of_wal()
    for seen in (2_000, 9_000):
        consumer.wait_count(seen, 60)
        pipeline.terminate_walsender()
        assert len(consumer.records) < rows
        assert pipeline.confirmed() < committed
    pipeline.wait_confirmed(committed)
    assert verify(writer.stop(), read_all(kafka.bootstrap, outbox_topic)).duplicates == ()


def test_a_dead_relay_leaves_its_slot_to_the_next_at_once(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    postgres: Postgres,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
) -> None:
    """Two relays on one slot, the active one killed again and again: the other takes over, never both."""
    kafka.create_topic(outbox_topic, 2)
    pipeline = make_pipeline(postgres, kafka, dbname=outbox.name).init()
    active = pipeline.start()
    writer = make_writer(outbox.dsn, rate=RATE).start()
    for _ in range(3):
        standby = pipeline.start(streaming=False)
        standby.wait_state("standby", timeout=60)
        writer.wait_written(RATE)
        active.kill()
        standby.wait_state("streaming", timeout=60)
        active = standby
    committed = writer.stop()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    verify(committed, read_all(kafka.bootstrap, outbox_topic))
