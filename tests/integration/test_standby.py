"""Two relays on one slot: the second waits without a line in the log, and takes over when the first is gone."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.wait import PATIENCE, eventually

POLLS = 40
"""Looks of a standby at the slot, one each half second."""

ZOMBIE = 4
"""Seconds of `wal_sender_timeout`, after which the server gives up a relay that went silent."""


@pytest.fixture
def pipeline(
    make_postgres: Callable[..., PostgresServer], kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> tuple[Pipeline, PostgresServer]:
    server = make_postgres(settings={"wal_sender_timeout": f"{ZOMBIE}s", "log_checkpoints": "off"})
    pipeline = make_pipeline(server, kafka).prepare()
    pipeline.init()
    return pipeline, server


def test_F12_the_standby_takes_over_from_a_killed_relay(  # noqa: N802 - the failure's own name
    pipeline: tuple[Pipeline, PostgresServer],
) -> None:
    there, _ = pipeline
    active = there.start()
    writer, consumer = there.writer(rate=200).start(), there.consumer()
    for _ in range(3):
        standby = there.start(state="standby")
        consumer.wait_count(len(consumer.records) + 100, PATIENCE)
        pid = there.slot_value("active_pid")
        active.kill()
        began = time.monotonic()
        eventually(lambda pid=pid: there.slot_value("active_pid") not in (None, pid), PATIENCE, "taken over")  # type: ignore[misc]
        took = time.monotonic() - began
        print(f"taken over after {took:.2f} s")
        assert took < 5  # the bar is 2 on a machine that isn't busy with other things
        active = standby
    active.wait_state("streaming")
    print(there.books(writer, consumer))


def test_F12_killed_behind_a_frozen_proxy(  # noqa: N802 - the failure's own name
    pipeline: tuple[Pipeline, PostgresServer], make_proxy: Callable[[str, int], Proxy]
) -> None:
    """The server doesn't hear of its end: the walsender holds the slot until `wal_sender_timeout`, and no longer."""
    there, server = pipeline
    proxy = make_proxy("127.0.0.1", server.port)
    active = there.start(way=server.dsn(host="127.0.0.1", port=proxy.port))
    writer, consumer = there.writer(rate=100).start(), there.consumer()
    consumer.wait_count(100, PATIENCE)
    standby = there.start(state="standby")
    zombie = there.slot_value("active_pid")
    proxy.freeze()
    active.kill()
    began = time.monotonic()
    holders: set[int] = {zombie}

    def taken_over() -> bool:
        holder = there.slot_value("active_pid")
        holders.update({holder} - {None})
        assert (
            there.value(
                "select count(*) from pg_stat_replication where application_name = %s and state = 'streaming'",
                (f"cdc-outbox/{there.slot}",),
            )
            <= 1
        ), "two relays stream"
        return holder not in (None, zombie)

    eventually(taken_over, PATIENCE, "taken over")
    print(f"taken over after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 3 * ZOMBIE
    assert len(holders) == 2
    standby.wait_state("streaming")
    print(there.books(writer, consumer))


def test_F12_a_relay_that_was_taken_for_dead_comes_back_as_standby(  # noqa: N802 - the failure's own name
    pipeline: tuple[Pipeline, PostgresServer], make_proxy: Callable[[str, int], Proxy]
) -> None:
    there, server = pipeline
    proxy = make_proxy("127.0.0.1", server.port)
    first = there.start(way=server.dsn(host="127.0.0.1", port=proxy.port))
    writer, consumer = there.writer(rate=100).start(), there.consumer()
    consumer.wait_count(50, PATIENCE)
    second = there.start(state="standby")
    proxy.freeze()
    second.wait_state("streaming")
    proxy.resume()
    first.wait_state("standby")
    assert second.state() == "streaming"
    print(there.books(writer, consumer))


def test_a_relay_is_no_standby_of_its_own_stuck_walsender(
    pipeline: tuple[Pipeline, PostgresServer],
) -> None:
    """Nobody delivers then: it isn't ready, and says whose walsender that is. The server goes on as it was after."""
    there, _ = pipeline
    relay = there.start()
    writer, consumer = there.writer(), there.consumer()
    consumer.wait_ids(writer.write(5))
    pid = there.slot_value("active_pid")
    assert isinstance(pid, int)
    seen: set[str | None] = set()

    def named() -> bool:
        seen.add(relay.state())
        return f"pg_terminate_backend({pid})" in relay.text(200)

    os.kill(pid, signal.SIGSTOP)
    try:
        late = writer.write(5)
        eventually(named, PATIENCE, lambda: f"the stuck walsender named; states: {seen}")
        assert there.slot_value("active_pid") == pid
        assert relay.state() == "connecting"
        assert "standby" not in seen
    finally:
        os.kill(pid, signal.SIGCONT)
    relay.wait_state("streaming")
    consumer.wait_ids(late)


@pytest.mark.patient
def test_F27_waiting_leaves_no_line_in_the_log(  # noqa: N802 - the failure's own name
    pipeline: tuple[Pipeline, PostgresServer],
) -> None:
    there, server = pipeline
    there.start()
    writer, consumer = there.writer(), there.consumer()
    standby = there.start(state="standby")
    logged = server.log_size()
    seen: set[object] = set()

    def polled() -> bool:
        seen.add(
            there.value(
                "select max(query_start) from pg_stat_activity"
                " where application_name = %s and backend_type = 'client backend'"
                " and query like '%%pg_replication_slots%%' and query not like '%%pg_current_snapshot%%'",
                (f"cdc-outbox/{there.slot}",),
            )
        )
        return len(seen) > POLLS

    eventually(polled, PATIENCE, lambda: f"{POLLS} looks at the slot; {len(seen)} were seen")
    assert server.log_text(logged) == ""
    assert standby.state() == "standby"
    consumer.wait_ids(writer.write(20))
    assert server.log_text(logged) == ""
