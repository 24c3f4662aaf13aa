"""F7: PostgreSQL can always be stopped, whatever the relay and the broker do, and nothing is lost by it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable

import pytest
from psycopg.sql import SQL

from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import MAJORS, PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually

BAR = 2.0
"""Seconds that `pg_ctl stop -m fast` may take (seen: 0.1 to 0.4)."""


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_while_idle(  # noqa: N802 - the failure's own name
    major: int,
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    server = make_postgres(major)
    pipeline = make_pipeline(server, kafka).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    writer.stop()
    took = server.stop()
    print(f"PostgreSQL {major} stopped within {took:.2f} s")
    assert took < BAR
    server.start()
    writer.write(10)
    verdict = pipeline.books(writer, consumer)
    print(verdict)
    assert relay.running


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_under_load(  # noqa: N802 - the failure's own name
    major: int,
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    server = make_postgres(major)
    pipeline = make_pipeline(server, kafka).prepare()
    pipeline.init()
    relay, consumer = pipeline.start(), pipeline.consumer()
    writer = pipeline.writer(rate=None, threads=2, rows_per_transaction=5).start()
    for _ in range(3):
        writer.wait_written(1000, PATIENCE)
        took = server.stop()
        print(f"PostgreSQL {major} stopped within {took:.2f} s")
        assert took < BAR
        server.start()
    writer.wait_written(500, PATIENCE)
    print(pipeline.books(writer, consumer))
    assert relay.running


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_while_the_broker_is_frozen(  # noqa: N802 - the failure's own name
    major: int,
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    server = make_postgres(major)
    pipeline = make_pipeline(server, own_kafka).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(padding=2000), pipeline.consumer()
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
    print(pipeline.books(writer, consumer))
    assert relay.running


@pytest.mark.parametrize("ends", ["poison", "stop"])
def test_F7_stopped_while_an_end_waits_for_a_frozen_broker(  # noqa: N802 - the failure's own name
    ends: str,
    own_postgres: PostgresServer,
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """A relay that is told to stop, or that has met poison, waits for the rows before: PostgreSQL doesn't."""
    pipeline = make_pipeline(own_postgres, own_kafka).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    pipeline.wait_confirmed(pipeline.end_of_wal())
    pipeline.wait_round()
    own_kafka.pause()
    writer.write(10)
    if ends == "poison":
        pipeline.sql(
            SQL(
                "insert into outbox (aggregate_type, aggregate_id, event_type) values ('not a topic!', 'a', 'made')"
            )
        )
    eventually(lambda: received(relay) == (21 if ends == "poison" else 20), PATIENCE, "the rows received")
    if ends == "stop":
        relay.signal(signal.SIGTERM)
        relay.wait_state("draining")
    writer.stop()
    took = own_postgres.stop()
    print(f"PostgreSQL stopped within {took:.2f} s")
    assert took < BAR
    own_postgres.start()
    if ends == "stop":
        assert relay.wait() == 1, relay.text()
        pipeline.start(state=None)
    own_kafka.resume()
    consumer.wait_ids(writer.committed, PATIENCE)
    if ends == "poison":
        assert relay.wait() == 70, relay.text()


@pytest.mark.parametrize("major", MAJORS)
def test_F7_stopped_while_only_the_stream_can_tell(  # noqa: N802 - the failure's own name
    major: int,
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_proxy: Callable[[str, int], Proxy],
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """The control connection is lost, and another one isn't to be had: the walsender asks for a last word."""
    server = make_postgres(major)
    proxy = make_proxy("127.0.0.1", server.port)
    pipeline = make_pipeline(server, kafka, way=server.dsn(port=proxy.port)).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    # Of who has confirmed nothing the server asks no last word.
    pipeline.wait_confirmed(pipeline.end_of_wal())
    writer.stop()
    control = pipeline.value(
        "select client_port from pg_stat_activity where application_name = %s and backend_type = 'client backend'",
        (f"cdc-outbox/{pipeline.slot}",),
    )
    proxy.swallow_new()
    proxy.cut(control)
    relay.wait_for(lambda record: record["event"] == "control connection lost", PATIENCE)
    took = server.stop()
    print(f"PostgreSQL {major} stopped within {took:.2f} s")
    assert took < BAR
    server.start()
    proxy.resume()
    writer.write(10)
    print(pipeline.books(writer, consumer))
    assert relay.running


def received(relay: RelayProcess) -> int:
    return int(json.loads(relay.get("/status")[1])["events"]["received"])
