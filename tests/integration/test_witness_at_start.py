"""F25: what happened to the slot while the relay was away is refused with its range; the ways out work as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.ledger import Consumer, Writer, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.shell import shell_of_checkout
from tests.servers.wait import PATIENCE, eventually

LSNS = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b")


def refused(pipeline: Pipeline, *flags: str, dsn: str | None = None) -> tuple[str, str]:
    """Start a relay that must end with 78; what is wrong and the next step."""
    relay = pipeline.start(*flags, way=dsn, state=None, http=False)
    assert relay.wait() == 78, relay.text()
    last = relay.records[-1]
    return str(last["error"]), str(last["next"])


@pytest.fixture
def behind(outbox: Database, make_proxy: Callable[[str, int], Proxy]) -> tuple[Proxy, str]:
    """A proxy in front of the server, and the way to the database through it."""
    address = conninfo_to_dict(outbox.dsn)
    proxy = make_proxy(str(address["host"]), int(str(address["port"])))
    return proxy, make_conninfo(outbox.dsn, host="127.0.0.1", port=proxy.port)


def delivered_once(pipeline: Pipeline, writer: Writer, consumer: Consumer) -> None:
    """A relay delivers twenty rows and ends."""
    relay = pipeline.start()
    consumer.wait_ids(writer.write(20))
    assert relay.terminate()[0] == 0


def recover(pipeline: Pipeline, remedy: str, home: Path) -> None:
    """Run the commands of the remedy as they are printed, and then the replay that its audit prints."""
    found = re.search(
        r": (export \S+ && cdc-outbox drop --yes .*? && cdc-outbox init .*? && cdc-outbox audit [^;]*)",
        remedy,
    )
    assert found is not None, remedy
    shell = shell_of_checkout(
        home,
        CDC_OUTBOX_DSN=pipeline.dsn,
        OWNER_DSN=pipeline.dsn,
        CDC_OUTBOX_BOOTSTRAP_SERVERS=pipeline.kafka.bootstrap,
    )
    audited = shell.run(f"{found[1]}", code=None)
    assert "removed slot" in audited.stdout or "removed witness row" in audited.stdout
    assert "slot         created" in audited.stdout, audited.stderr
    again = re.search(
        r"^next: .*; then send them again: (cdc-outbox replay .*)$", audited.stdout, re.MULTILINE
    )
    assert again is not None, audited.stdout + audited.stderr
    shell.run(f"{again[1]} --yes")


def all_of_it(writer: Writer, consumer: Consumer) -> None:
    verify(writer.committed, consumer.wait_ids(writer.committed, PATIENCE))


def all_but(lost: list[str], writer: Writer, consumer: Consumer) -> None:
    expected = {event_id: entry for event_id, entry in writer.committed.items() if event_id not in lost}
    verify(expected, consumer.wait_ids(expected, PATIENCE))


def drop_slot(pipeline: Pipeline) -> None:
    pipeline.value("select pg_drop_replication_slot(%s)::text", (pipeline.slot,))


def create_slot(pipeline: Pipeline) -> None:
    pipeline.value("select pg_create_logical_replication_slot(%s, 'pgoutput')::text", (pipeline.slot,))


def advance(pipeline: Pipeline) -> None:
    pipeline.value("select pg_replication_slot_advance(%s, pg_current_wal_lsn())::text", (pipeline.slot,))


def make_again(pipeline: Pipeline) -> None:
    drop_slot(pipeline)
    create_slot(pipeline)


@pytest.mark.parametrize("moved", [advance, make_again])
@pytest.mark.parametrize("way_out", ["recover", "accept"])
def test_F25_the_slot_was_moved_while_away(  # noqa: N802 - the failure's own name
    moved: Callable[[Pipeline], None], way_out: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    writer, consumer = pipeline.writer(), pipeline.consumer()
    delivered_once(pipeline, writer, consumer)
    lost = writer.write(10)
    moved(pipeline)
    for _ in range(2):  # as often as it is tried
        error, remedy = refused(pipeline)
        last, first = (LSN.parse(text) for text in LSNS.findall(error))
        assert first < last
        assert first == LSN.parse(pipeline.witness()["position"])
        assert last == LSN.parse(pipeline.slot_value("confirmed_flush_lsn::text"))
    if way_out == "recover":
        recover(pipeline, remedy, tmp_path)
        pipeline.start()
        consumer.wait_ids(writer.write(10))
        all_of_it(writer, consumer)
    else:
        flags = shlex.split(remedy[remedy.index("cdc-outbox start") :])[2:]
        assert flags[:3] == ["--slot", pipeline.slot, "--accept-gap"]
        pipeline.start("--accept-gap")
        consumer.wait_ids(writer.write(10))
        all_but(lost, writer, consumer)


@pytest.mark.parametrize("moved", [advance, make_again])
def test_F25_the_slot_was_moved_after_the_last_look_at_it(  # noqa: N802 - the failure's own name
    moved: Callable[[Pipeline], None],
    pipeline: Pipeline,
    behind: tuple[Proxy, str],
) -> None:
    """Between the checks of a start and its stream: rows that were skipped then are not confirmed in silence."""
    writer, consumer = pipeline.writer(), pipeline.consumer()
    delivered_once(pipeline, writer, consumer)
    proxy, way = behind
    proxy.delay(0.15)
    relay = pipeline.start(way=way, state=None)
    eventually(
        lambda: pipeline.value(
            "select count(*) from pg_stat_activity where application_name = %s and backend_type = 'walsender'",
            (f"cdc-outbox/{pipeline.slot}",),
        ),
        PATIENCE,
        "the connection that is to stream",
    )
    proxy.freeze()  # or it might stream before the slot is moved
    lost = writer.write(3)
    moved(pipeline)
    proxy.delay(0)
    proxy.resume()
    assert relay.wait() == 78, relay.text()
    last, (error, _) = relay.records[-1], refused(pipeline)
    assert "those between may be missing" in last["error"]
    assert pipeline.witness()["position"] in error
    pipeline.start("--accept-gap")
    consumer.wait_ids(writer.write(10))
    all_but(lost, writer, consumer)


@pytest.mark.parametrize("moved", [advance, make_again])
def test_F25_the_slot_was_moved_and_its_row_deleted_while_the_relay_reconnected(  # noqa: N802 - as above
    moved: Callable[[Pipeline], None],
    pipeline: Pipeline,
    behind: tuple[Proxy, str],
) -> None:
    """The relay still knows what the row said, and writes it again for who starts the next."""
    proxy, way = behind
    relay = pipeline.start(way=way)
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.wait_confirmed()
    proxy.refuse_new()
    proxy.cut()
    relay.wait_state("connecting")
    pipeline.sql(SQL("delete from cdc_outbox_witness"))
    lost = writer.write(10)
    eventually(lambda: pipeline.walsender() is None, PATIENCE, "the slot free")
    moved(pipeline)
    proxy.resume()
    assert relay.wait() == 78, relay.text()
    last, (error, _) = relay.records[-1], refused(pipeline)
    assert "those between may be missing" in last["error"]
    assert error == last["error"]
    pipeline.start("--accept-gap")
    consumer.wait_ids(writer.write(10))
    all_but(lost, writer, consumer)


def test_F25_the_slot_was_moved_and_the_witness_dropped_while_the_relay_reconnected(  # noqa: N802 - as above
    pipeline: Pipeline, behind: tuple[Proxy, str], tmp_path: Path
) -> None:
    """The relay still knows what the row said: of a slot that stands where it left it there is nothing to say."""
    proxy, way = behind
    relay = pipeline.start(way=way)
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.wait_confirmed()

    def away(meanwhile: Callable[[], object]) -> None:
        proxy.refuse_new()
        proxy.cut()
        relay.wait_state("connecting")
        eventually(lambda: pipeline.walsender() is None, PATIENCE, "the slot free")
        meanwhile()
        proxy.resume()

    away(lambda: pipeline.sql(SQL("drop table cdc_outbox_witness")))
    for _ in range(2):
        relay.wait_state("streaming")
        consumer.wait_ids(writer.write(10))
        pipeline.wait_confirmed(pipeline.end_of_wal())
        away(lambda: None)
    relay.wait_state("streaming")
    pipeline.wait_confirmed(pipeline.end_of_wal())

    def moved() -> None:
        writer.write(10)
        advance(pipeline)

    away(moved)
    assert relay.wait() == 78, relay.text()
    assert "those between may be missing" in relay.records[-1]["error"]
    recover(pipeline, str(relay.records[-1]["next"]), tmp_path)
    pipeline.start()
    consumer.wait_ids(writer.write(10))
    all_of_it(writer, consumer)


def test_F25_the_slot_was_dropped_while_away(  # noqa: N802 - the failure's own name
    pipeline: Pipeline, tmp_path: Path
) -> None:
    writer, consumer = pipeline.writer(), pipeline.consumer()
    delivered_once(pipeline, writer, consumer)
    writer.write(10)
    drop_slot(pipeline)
    error, remedy = refused(pipeline)
    assert pipeline.witness()["position"] in error
    recover(pipeline, remedy, tmp_path)
    pipeline.start()
    consumer.wait_ids(writer.write(10))
    all_of_it(writer, consumer)


def test_F25_the_slot_was_dropped_while_running(pipeline: Pipeline) -> None:  # noqa: N802 - the failure's own name
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))

    def dropped() -> bool:
        pipeline.terminate_walsender()
        try:
            drop_slot(pipeline)
        except psycopg.errors.ObjectInUse:
            return False  # the relay was there again first
        return True

    eventually(dropped, PATIENCE, "the slot dropped")
    assert relay.wait() == 78
    assert pipeline.slot in relay.records[-1]["error"]
    assert "recover" in relay.records[-1]["next"]


def test_F25_a_clean_stop_is_no_gap(pipeline: Pipeline) -> None:  # noqa: N802 - the failure's own name
    """Relay and others' writes come and go, and the slot is never beyond the witness by our own doing."""
    writer, consumer = pipeline.writer(), pipeline.consumer()
    for _ in range(3):
        delivered_once(pipeline, writer, consumer)
        pipeline.value("select pg_logical_emit_message(false, 'noise', repeat('x', 100000))::text")
    relay = pipeline.start()
    consumer.wait_ids(writer.write(5))
    relay.kill()
    pipeline.start()
    print(pipeline.books(writer, consumer))


def test_F25_relay_and_server_restart_together(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.init()
    writer, consumer = pipeline.writer(rate=300).start(), pipeline.consumer()
    for mode in ("fast", "immediate", "fast"):
        relay = pipeline.start()
        writer.wait_written(200, PATIENCE)
        own_postgres.stop(mode)
        relay.kill()
        own_postgres.start()
    pipeline.start()
    print(pipeline.books(writer, consumer))


def test_F25_a_restored_backup(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    """A base backup holds no slots. One that is made by hand there begins too late."""
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.init()
    writer, consumer = pipeline.writer(), pipeline.consumer()
    delivered_once(pipeline, writer, consumer)
    backup = own_postgres.standby()
    try:
        end = pipeline.value("select pg_current_wal_lsn()::text")
        eventually(
            lambda: backup.value("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)), PATIENCE, "copied"
        )
        own_postgres.stop()
        backup.promote()
        restored = make_pipeline(backup, kafka)
        error, _ = refused(restored)
        assert "is gone" in error
        after = restored.writer()
        lost = after.write(10)
        create_slot(restored)
        error, remedy = refused(restored)
        assert "timeline 1 to 2" in error
        assert restored.witness()["position"] in error
        recover(restored, remedy, tmp_path)
        restored.start()
        consumer.wait_ids(after.write(10))
        arrived = {record.id for record in consumer.records}
        assert arrived >= {*writer.committed, *after.committed, *lost}
    finally:
        backup.close()
