"""F7: PostgreSQL can always be stopped, whatever the relay and the broker do, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.scene import PATIENCE, Scene, make_scene
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.postgres import MAJORS, PostgresServer

__all__ = ["make_scene"]

BAR = 2.0
"""Seconds that `pg_ctl stop -m fast` may take (seen: 0.1 to 0.4)."""


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_while_idle(  # noqa: N802 - the failure's own name
    major: int, make_postgres: Callable[..., PostgresServer], kafka: Kafka, make_scene: Callable[..., Scene]
) -> None:
    server = make_postgres(major)
    scene = make_scene(server.dsn(), kafka)
    scene.init()
    relay, writer, consumer = scene.relay(), scene.writer(), scene.consumer()
    consumer.wait_ids(writer.write(10))
    writer.stop()
    took = server.stop()
    print(f"PostgreSQL {major} stopped within {took:.2f} s")
    assert took < BAR
    server.start()
    writer.write(10)
    verdict = scene.books(writer, consumer)
    print(verdict)
    assert relay.running


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_under_load(  # noqa: N802 - the failure's own name
    major: int, make_postgres: Callable[..., PostgresServer], kafka: Kafka, make_scene: Callable[..., Scene]
) -> None:
    server = make_postgres(major)
    scene = make_scene(server.dsn(), kafka)
    scene.init()
    relay, consumer = scene.relay(), scene.consumer()
    writer = scene.writer(rate=None, threads=2, rows_per_transaction=5).start()
    for _ in range(3):
        writer.wait_written(1000, PATIENCE)
        took = server.stop()
        print(f"PostgreSQL {major} stopped within {took:.2f} s")
        assert took < BAR
        server.start()
    writer.wait_written(500, PATIENCE)
    print(scene.books(writer, consumer))
    assert relay.running


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_while_the_broker_is_frozen(  # noqa: N802 - the failure's own name
    major: int,
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_scene: Callable[..., Scene],
) -> None:
    server = make_postgres(major)
    scene = make_scene(server.dsn(), own_kafka)
    scene.init()
    relay, writer, consumer = scene.relay(), scene.writer(padding=2000), scene.consumer()
    consumer.wait_ids(writer.write(10))
    own_kafka.pause()
    # More than fits into the budget for what is in flight and the sockets' buffers, so that the stream stands still.
    writer.write(30_000, rows_per_transaction=1000)
    writer.stop()
    took = server.stop()
    print(f"PostgreSQL {major} stopped within {took:.2f} s")
    assert took < BAR
    server.start()
    own_kafka.resume()
    print(scene.books(writer, consumer))
    assert relay.running
