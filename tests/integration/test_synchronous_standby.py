"""F24: the server takes every walsender whose name matches for a synchronous standby. The relay never stays one."""

from __future__ import annotations

import time
from collections.abc import Callable

from psycopg.sql import SQL

from tests.servers.kafka import KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import PATIENCE, eventually

BAR = 5.0
"""Seconds within which the relay has left; two guard intervals are two seconds, the rest is for a slow machine."""


def reload(server: PostgresServer, names: str) -> None:
    # ALTER SYSTEM would wait for the very standby that isn't there yet.
    server.reload({"synchronous_standby_names": names})


def test_F24_at_the_start(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(own_postgres, own_kafka).prepare()
    pipeline.init()
    for names in ("*", f'FIRST 1 (other, "CDC-Outbox/{pipeline.slot}")'):
        reload(own_postgres, names)
        relay = pipeline.start(state=None)
        assert relay.wait() == 78
        assert names in relay.records[-1]["error"]
        assert "synchronous_standby_names" in relay.records[-1]["next"]
    reload(own_postgres, "elsewhere")
    pipeline.start().kill()


def test_F24_by_reload_while_the_broker_is_away(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    """With another standby there, the application's commits go on."""
    pipeline = make_pipeline(own_postgres, own_kafka).prepare()
    pipeline.init()
    standby = own_postgres.standby(slot="replica")
    try:
        relay, consumer = pipeline.start(), pipeline.consumer()
        writer = pipeline.writer(rate=100).start()
        consumer.wait_count(20, PATIENCE)
        own_kafka.pause()
        began = time.monotonic()
        reload(own_postgres, "*")
        eventually(lambda: not pipeline.slot_value("active"), BAR, "no candidate any more")
        print(f"no candidate after {time.monotonic() - began:.2f} s")
        assert relay.wait() == 78
        assert time.monotonic() - began < BAR
        assert "makes this relay synchronous" in relay.records[-1]["error"]
        writer.wait_written(100, PATIENCE)
        state = pipeline.value(
            "select sync_state from pg_stat_replication where application_name = 'replica'"
        )
        assert state == "sync"
        own_kafka.resume()
        reload(own_postgres, "replica")
        pipeline.start()
        print(pipeline.books(writer, consumer))
    finally:
        standby.close()


def test_F24_without_another_standby_the_application_waits_but_not_for_kafka(  # noqa: N802
    own_postgres: PostgresServer, own_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Nobody is there to confirm commits then: the operator's own choice, and the relay still leaves and says so."""
    pipeline = make_pipeline(own_postgres, own_kafka).prepare()
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    reload(own_postgres, "*")
    assert relay.wait() == 78
    reload(own_postgres, "")
    pipeline.sql(SQL("select 1"))
    pipeline.start()
    writer.write(20)
    print(pipeline.books(writer, consumer))
