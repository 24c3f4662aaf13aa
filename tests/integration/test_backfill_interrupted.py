"""What an interruption of `backfill` leaves, and whom it keeps waiting: nothing is lost, and nobody is locked out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest

from tests.integration.backfilled import Backfilled
from tests.integration.conftest import Database
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Consumer, Writer, create_outbox, verify
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually

STEPS = ("noted", "slot", "published", "decided", "copied")


@pytest.fixture
def shop(database: Database, slot: str, kafka: Kafka, outbox_topic: str) -> Backfilled:
    """The default table, whose rows go to a topic of three partitions."""
    create_outbox(database.dsn)
    kafka.create_topic(outbox_topic, 3)
    shop = Backfilled(database, slot, kafka, outbox_topic)
    shop.ok("--only", "publication", "--only", "witness")
    return shop


def test_killed_after_each_step_the_next_run_finishes_it(
    shop: Backfilled, aggregate_type: str, tmp_path: Path
) -> None:
    """Rows are written all the time; each run begins with what the one before left."""
    writer = Writer(shop.dsn, aggregate_type=aggregate_type, rate=200).start()
    try:
        writer.wait_written(50)
        for step in STEPS:
            process = shop.held(step, tmp_path / step)
            process.kill()
            (tmp_path / step).unlink()
            if step in ("decided", "copied"):
                assert "had been published before" in shop.command().stdout
                assert shop.slots() == [shop.slot]
                if step == "decided":
                    shop.ok("--yes", command="drop")
                    shop.ok("--only", "publication")
            elif step == "noted":
                assert shop.slots() == []
            else:
                assert shop.slots() == [f"{shop.slot}_pending"]
        writer.wait_written(50)
    finally:
        committed = writer.stop()
    shop.relay()
    assert {record.id for record in shop.records()} >= committed.keys()


def test_under_load_nothing_is_lost_and_order_holds(
    shop: Backfilled, aggregate_type: str, make_consumer: Callable[..., Consumer]
) -> None:
    """A backfill that is killed in the middle, one that isn't, and the stream, one after the other under one writer."""
    consumer = make_consumer(shop.kafka.bootstrap, shop.topic)
    writer = Writer(shop.dsn, aggregate_type=aggregate_type, rate=500, rollback_share=0.1)
    writer.write(2000)
    writer.start()
    try:
        killed = shop.under_way("--max-events-per-second", "200")
        eventually(lambda: len(consumer.records) > 200, PATIENCE, killed.text)
        killed.kill()
        assert shop.slots() == [f"{shop.slot}_pending"]
        shop.backfill()
        relay = RelayProcess(shop.dsn, shop.kafka.bootstrap, slot=shop.slot)
        relay.wait_state("streaming")
        writer.wait_written(300)
    finally:
        committed = writer.stop()
    try:
        records = consumer.wait_ids(committed)
    finally:
        relay.close()
    assert verify(committed, records, rolled_back=writer.rolled_back).duplicates
    assert writer.failures == 0


def test_through_an_outage_of_the_broker_it_waits(
    outbox: Database, own_kafka: KafkaBroker, slot: str, aggregate_type: str, outbox_topic: str
) -> None:
    own_kafka.create_topic(outbox_topic, 3)
    shop = Backfilled(outbox, slot, own_kafka, outbox_topic)
    shop.ok("--only", "publication", "--only", "witness")
    writer = Writer(shop.dsn, aggregate_type=aggregate_type)
    writer.write(3000)
    process = shop.under_way("--max-events-per-second", "1500")
    try:
        eventually(lambda: len(shop.records()) > 300, PATIENCE, process.text)
        own_kafka.kill()
        own_kafka.start()
        assert process.wait(PATIENCE) == 0
    finally:
        process.close()
    verify(writer.stop(), shop.records())


def test_whoever_wants_the_table_for_himself_is_let_by(shop: Backfilled, aggregate_type: str) -> None:
    """ALTER TABLE waits for a reader, and the application's inserts wait behind it: so the reader goes."""
    writer = Writer(shop.dsn, aggregate_type=aggregate_type)
    writer.write(500)
    process = shop.under_way("--max-events-per-second", "20")
    try:
        eventually(shop.records, PATIENCE, process.text)
        with psycopg.connect(shop.dsn, autocommit=True, application_name="migration") as connection:
            connection.execute("set statement_timeout = '15s'")
            connection.execute("alter table outbox add column note text")
        assert process.wait() == 1
        assert (
            "(migration): alter table outbox add column note text waits to have the table"
            in process.stray[-2]
        )
        assert shop.slots() == [f"{shop.slot}_pending"]
    finally:
        process.close()
        writer.close()
    shop.backfill()
    assert {record.id for record in shop.records()} == writer.committed.keys()


@pytest.mark.parametrize("made", [True, False])
def test_whoever_wants_the_table_for_himself_is_let_by_before_the_snapshot_too(
    shop: Backfilled, aggregate_type: str, made: bool
) -> None:
    """The rows are counted before anything is published, and before there is a slot, and that takes its time."""
    writer = Writer(shop.dsn, aggregate_type=aggregate_type)
    writer.write(500)
    if made:
        shop.refused()
    shop.execute(
        "create function slow(text) returns boolean stable language plpgsql as"
        " 'begin perform pg_catalog.pg_sleep(0.2); return true; end'"
    )
    process = shop.under_way("--where", "slow(aggregate_id)")
    counting: LiteralString = (
        "select pid from pg_stat_activity where application_name = 'cdc-outbox backfill' and state = 'active'"
        " and query like 'select count%'"
    )
    try:
        eventually(lambda: shop.execute(counting), PATIENCE, process.text)
        with psycopg.connect(shop.dsn, autocommit=True, application_name="migration") as connection:
            connection.execute("set statement_timeout = '15s'")
            connection.execute("alter table outbox add column note text")
        assert process.wait() == 1
        wanted, remedy = process.stray[-2:]
        assert "(migration): alter table outbox add column note text waits to have the table" in wanted
        assert remedy == "next: let it be done, then run this again: nothing was sent"
        assert shop.slots() == ([f"{shop.slot}_pending"] if made else [])
    finally:
        process.close()
        writer.close()


def test_without_its_lock_nothing_is_decided(shop: Backfilled, aggregate_type: str) -> None:
    """Another process waits for the lock; when the session that has it ends, so does the backfill."""
    writer = Writer(shop.dsn, aggregate_type=aggregate_type)
    writer.write(500)
    process = shop.under_way("--max-events-per-second", "20")
    try:
        eventually(shop.records, PATIENCE, process.text)
        error, _ = shop.refuses("--wait", "100ms", code=1)
        assert "(cdc-outbox backfill) holds its lock" in error
        shop.execute(
            "select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid)"
            " where locktype = 'advisory' and datname = current_database()"
        )
        assert process.wait() == 1
        assert shop.slots() == [f"{shop.slot}_pending"]
    finally:
        process.close()
        writer.close()


def test_a_slot_that_is_lost_meanwhile_ends_it(shop: Backfilled, aggregate_type: str) -> None:
    writer = Writer(shop.dsn, aggregate_type=aggregate_type)
    writer.write(500)
    process = shop.under_way("--max-events-per-second", "20")
    try:
        eventually(shop.records, PATIENCE, process.text)
        shop.execute("select pg_drop_replication_slot(%s)", (f"{shop.slot}_pending",))
        assert process.wait() == 78
        assert "was dropped by another session" in process.stray[-2]
    finally:
        process.close()
        writer.close()
    shop.backfill()
