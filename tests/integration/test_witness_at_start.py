"""F25: what happened to the slot while the relay was away is refused with its range; the ways out work as printed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import psycopg
import pytest

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.integration.scene import PATIENCE, Scene, make_scene
from tests.servers.kafka import Kafka
from tests.servers.ledger import Consumer, Writer, verify
from tests.servers.postgres import PostgresServer
from tests.servers.relay import run_command
from tests.servers.wait import eventually

__all__ = ["make_scene"]

LSNS = re.compile(r"\b[0-9A-F]+/[0-9A-F]+\b")


@pytest.fixture
def scene(outbox: Database, kafka: Kafka, make_scene: Callable[..., Scene]) -> Scene:
    scene = make_scene(outbox.dsn, kafka, table=False)
    scene.init()
    return scene


def refused(scene: Scene, *flags: str, dsn: str | None = None) -> tuple[str, str]:
    """Start a relay that must end with 78; what is wrong and the next step."""
    relay = scene.relay(*flags, dsn=dsn, state=None, http=False)
    assert relay.wait() == 78, relay.text()
    last = relay.records[-1]
    return str(last["error"]), str(last["next"])


def delivered_once(scene: Scene, writer: Writer, consumer: Consumer) -> None:
    """A relay delivers twenty rows and ends."""
    relay = scene.relay()
    consumer.wait_ids(writer.write(20))
    assert relay.terminate()[0] == 0


def recover(scene: Scene, remedy: str) -> None:
    """Run the commands of the remedy `recover`, in their order."""
    commands = re.findall(r"cdc-outbox (?:drop|init)[^,;]*", remedy)
    assert [command.split()[1] for command in commands] == ["drop", "init"]
    for command in commands:
        arguments = shlex.split(command)[1:]
        if arguments[0] == "drop":
            arguments.append("--yes")
        done = run_command(*arguments, env={"CDC_OUTBOX_DSN": scene.dsn})
        assert done.returncode == 0, done.stderr


def all_but(lost: list[str], writer: Writer, consumer: Consumer) -> None:
    expected = {event_id: entry for event_id, entry in writer.committed.items() if event_id not in lost}
    verify(expected, consumer.wait_ids(expected, PATIENCE))


def drop_slot(scene: Scene) -> None:
    scene.value("select pg_drop_replication_slot(%s)::text", (scene.slot,))


def create_slot(scene: Scene) -> None:
    scene.value("select pg_create_logical_replication_slot(%s, 'pgoutput')::text", (scene.slot,))


def advance(scene: Scene) -> None:
    scene.value("select pg_replication_slot_advance(%s, pg_current_wal_lsn())::text", (scene.slot,))


def make_again(scene: Scene) -> None:
    drop_slot(scene)
    create_slot(scene)


@pytest.mark.parametrize("moved", [advance, make_again])
@pytest.mark.parametrize("way_out", ["recover", "accept"])
def test_F25_the_slot_was_moved_while_away(  # noqa: N802 - the failure's own name
    moved: Callable[[Scene], None], way_out: str, scene: Scene
) -> None:
    writer, consumer = scene.writer(), scene.consumer()
    delivered_once(scene, writer, consumer)
    lost = writer.write(10)
    moved(scene)
    for _ in range(2):  # as often as it is tried
        error, remedy = refused(scene)
        last, first = (LSN.parse(text) for text in LSNS.findall(error))
        assert first < last
        assert first == LSN.parse(scene.witness()["position"])
        assert last == LSN.parse(scene.slot_value("confirmed_flush_lsn::text"))
    if way_out == "recover":
        recover(scene, remedy)
        scene.relay()
    else:
        flags = shlex.split(remedy[remedy.index("cdc-outbox start") :])[2:]
        assert flags == ["--slot", scene.slot, "--accept-gap"]
        scene.relay("--accept-gap")
    consumer.wait_ids(writer.write(10))
    all_but(lost, writer, consumer)


def test_F25_the_slot_was_dropped_while_away(scene: Scene) -> None:  # noqa: N802 - the failure's own name
    writer, consumer = scene.writer(), scene.consumer()
    delivered_once(scene, writer, consumer)
    lost = writer.write(10)
    drop_slot(scene)
    error, remedy = refused(scene)
    assert scene.witness()["position"] in error
    recover(scene, remedy)
    scene.relay()
    consumer.wait_ids(writer.write(10))
    all_but(lost, writer, consumer)


def test_F25_the_slot_was_dropped_while_running(scene: Scene) -> None:  # noqa: N802 - the failure's own name
    relay, writer, consumer = scene.relay(), scene.writer(), scene.consumer()
    consumer.wait_ids(writer.write(20))
    with psycopg.connect(scene.dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(active_pid, 5000) from pg_replication_slots where slot_name = %s",
            (scene.slot,),
        )
        connection.execute("select pg_drop_replication_slot(%s)", (scene.slot,))
    assert relay.wait() == 78
    assert scene.slot in relay.records[-1]["error"]
    assert "recover" in relay.records[-1]["next"]


def test_F25_a_clean_stop_is_no_gap(scene: Scene) -> None:  # noqa: N802 - the failure's own name
    """Relay and others' writes come and go, and the slot is never beyond the witness by our own doing."""
    writer, consumer = scene.writer(), scene.consumer()
    for _ in range(3):
        delivered_once(scene, writer, consumer)
        scene.value("select pg_logical_emit_message(false, 'noise', repeat('x', 100000))::text")
    relay = scene.relay()
    consumer.wait_ids(writer.write(5))
    relay.kill()
    scene.relay()
    print(scene.books(writer, consumer))


def test_F25_relay_and_server_restart_together(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, kafka: Kafka, make_scene: Callable[..., Scene]
) -> None:
    scene = make_scene(own_postgres.dsn(), kafka)
    scene.init()
    writer, consumer = scene.writer(rate=300).start(), scene.consumer()
    for mode in ("fast", "immediate", "fast"):
        relay = scene.relay()
        writer.wait_written(200, PATIENCE)
        own_postgres.stop(mode)
        relay.kill()
        own_postgres.start()
    scene.relay()
    print(scene.books(writer, consumer))


def test_F25_a_restored_backup(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, kafka: Kafka, make_scene: Callable[..., Scene]
) -> None:
    """A base backup holds no slots. One that is made by hand there begins too late."""
    scene = make_scene(own_postgres.dsn(), kafka)
    scene.init()
    writer, consumer = scene.writer(), scene.consumer()
    delivered_once(scene, writer, consumer)
    backup = own_postgres.standby()
    try:
        end = scene.value("select pg_current_wal_lsn()::text")
        eventually(
            lambda: backup.value("select pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)), PATIENCE, "copied"
        )
        own_postgres.stop()
        backup.promote()
        restored = Scene(
            backup.dsn(),
            scene.slot,
            kafka,
            scene.topic,
            scene.aggregate_type,
            scene.make_relay,
            scene.make_writer,
            scene.make_consumer,
        )
        error, _ = refused(restored)
        assert "is gone" in error
        after = restored.writer()
        lost = after.write(10)
        create_slot(restored)
        error, remedy = refused(restored)
        assert "timeline 1 to 2" in error
        assert restored.witness()["position"] in error
        recover(restored, remedy)
        restored.relay()
        consumer.wait_ids(after.write(10))
        arrived = {record.id for record in consumer.records}
        assert not arrived & set(lost)
        assert arrived >= {*writer.committed, *after.committed} - set(lost)
    finally:
        backup.close()
