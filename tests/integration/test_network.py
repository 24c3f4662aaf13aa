"""The network between relay and PostgreSQL: cut without a word, one connection of two, or leading to another server.

F20 and F26, and the end of the control connection for other reasons than a shutdown. While it is away nothing is
confirmed, and the stream is kept for ten seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from cdc_outbox.repeats import FEW
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

NOTICED = 30.0
"""Seconds within which a dead connection must be noticed (seen: 18 to 21)."""


@pytest.fixture
def pipeline(own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    pipeline = make_pipeline(own_postgres, kafka).prepare()
    pipeline.init()
    return pipeline


@pytest.fixture
def proxy(own_postgres: PostgresServer, make_proxy: Callable[[str, int], Proxy]) -> Proxy:
    return make_proxy("127.0.0.1", own_postgres.port)


def through(proxy: Proxy, server: PostgresServer) -> str:
    return server.dsn(host="127.0.0.1", port=proxy.port)


def control(pipeline: Pipeline) -> tuple[int, int]:
    """Process id and client port of the relay's control connection, as the server sees it."""
    found = pipeline.value(
        "select array[pid, client_port] from pg_stat_activity"
        " where application_name = %s and backend_type = 'client backend'",
        (f"cdc-outbox/{pipeline.slot}",),
    )
    return found[0], found[1]


def wait_control(pipeline: Pipeline, before: int) -> None:
    """Wait for another control connection than that of the process `before`."""
    eventually(
        lambda: pipeline.value(
            "select count(*) from pg_stat_activity"
            " where application_name = %s and backend_type = 'client backend' and pid <> %s",
            (f"cdc-outbox/{pipeline.slot}", before),
        ),
        PATIENCE,
        "a new control connection",
    )


def wait_away(relay: RelayProcess, since: int = 0) -> float:
    """Wait until the relay has given up its session; the seconds that it took."""
    began = time.monotonic()
    relay.wait_for(
        lambda record: record.get("state") == "connecting", PATIENCE, since=since, message="the loss noticed"
    )
    return time.monotonic() - began


@pytest.mark.patient
def test_F20_a_network_that_swallows_everything(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    relay = pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(rate=50).start(), pipeline.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.freeze()
    took = wait_away(relay, since)
    print(f"noticed after {took:.1f} s")
    assert took < NOTICED
    proxy.cut()
    proxy.resume()
    relay.wait_state("streaming")
    print(pipeline.books(writer, consumer))


@pytest.mark.patient
def test_F20_a_network_that_swallows_the_beginning_of_the_stream(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    relay = pipeline.start(way=through(proxy, own_postgres))
    consumer = pipeline.consumer()
    consumer.wait_ids(pipeline.writer().write(1))
    since = len(relay.records)
    proxy.swallow_from(b"START_REPLICATION")
    pipeline.terminate_walsender()
    told = relay.wait_for(lambda record: "begin to stream" in str(record.get("error")), NOTICED, since=since)
    assert "did not begin to stream within 10 s" in told["error"]
    relay.wait_state("streaming")
    consumer.wait_ids(pipeline.writer().write(1))


@pytest.mark.patient
def test_F20_noticed_also_while_reading_is_paused(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
    proxy: Proxy,
) -> None:
    """Kafka is away and nobody reads the stream, so that its silence tells nothing: the control connection does."""
    pipeline = make_pipeline(own_postgres, own_kafka).prepare()
    pipeline.init()
    relay = pipeline.start("--inflight-bytes", "1MiB", way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(padding=4000), pipeline.consumer()
    consumer.wait_ids(writer.write(10))
    own_kafka.pause()
    writer.write(10_000, rows_per_transaction=500)
    writer.stop()
    seen = [-1]

    def stands_still() -> bool:
        seen.append(proxy.bytes_to_client // 100_000)
        return seen[-1] > 10 and len(seen) > 20 and seen[-20] == seen[-1]

    eventually(stands_still, PATIENCE, "the stream stands still")
    since = len(relay.records)
    proxy.freeze()
    took = wait_away(relay, since)
    print(f"noticed after {took:.1f} s")
    assert took < NOTICED
    proxy.cut()
    proxy.resume()
    own_kafka.resume()
    print(pipeline.books(writer, consumer))


@pytest.mark.patient
def test_F20_a_server_that_is_frozen(own_postgres: PostgresServer, pipeline: Pipeline) -> None:  # noqa: N802
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    since = len(relay.records)
    own_postgres.pause()
    try:
        took = wait_away(relay, since)
    finally:
        own_postgres.resume()
    print(f"noticed after {took:.1f} s")
    assert took < NOTICED
    relay.wait_state("streaming")
    writer.write(20)
    print(pipeline.books(writer, consumer))


def test_the_control_connection_alone_is_cut(
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    """It is made anew, and the stream goes on."""
    relay = pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(rate=100).start(), pipeline.consumer()
    stream = pipeline.walsender()
    for _ in range(3):
        writer.wait_written(50, PATIENCE)
        pid, port = control(pipeline)
        proxy.cut(port)
        wait_control(pipeline, pid)
    assert pipeline.walsender() == stream
    assert relay.state() == "streaming"
    verdict = pipeline.books(writer, consumer)
    assert not verdict.duplicates
    pipeline.wait_confirmed()


@pytest.mark.patient
def test_without_a_control_connection_nothing_is_confirmed_and_the_stream_is_kept(
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.wait_confirmed()
    # A round later the last rows are proven, which is confirmed as well.
    pipeline.wait_round()
    pipeline.wait_round()
    stream, (pid, port) = pipeline.walsender(), control(pipeline)
    proxy.swallow_new()
    accepted = proxy.accepted
    proxy.cut(port)
    before = pipeline.confirmed()
    consumer.wait_ids(writer.write(20))  # delivered all the same
    eventually(lambda: proxy.accepted >= accepted + 2, PATIENCE, "two attempts to connect")
    assert pipeline.confirmed() == before
    assert pipeline.walsender() == stream
    proxy.resume()
    wait_control(pipeline, pid)
    pipeline.wait_confirmed()
    assert pipeline.walsender() == stream
    assert not pipeline.books(writer, consumer).duplicates


@pytest.mark.patient
def test_a_control_connection_that_stays_away_ends_the_session(
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    relay = pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(rate=50).start(), pipeline.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.swallow_new()
    proxy.cut(control(pipeline)[1])
    took = wait_away(relay, since)
    print(f"given up after {took:.1f} s")
    assert 8 < took < 20
    eventually(lambda: not pipeline.slot_value("active"), PATIENCE, "the slot free for another relay")
    proxy.resume()
    relay.wait_state("streaming")
    print(pipeline.books(writer, consumer))


def test_a_server_that_refuses_a_new_control_connection_is_left_at_once(
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    relay = pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(rate=50).start(), pipeline.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.refuse_new()
    proxy.cut(control(pipeline)[1])
    took = wait_away(relay, since)
    print(f"given up after {took:.2f} s")
    assert took < 5
    proxy.resume()
    relay.wait_state("streaming")
    print(pipeline.books(writer, consumer))


def test_a_control_connection_that_is_terminated_counts_as_a_shutdown(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    writer, consumer = pipeline.writer(rate=50).start(), pipeline.consumer()
    consumer.wait_count(10, PATIENCE)
    stream, since = pipeline.walsender(), len(relay.records)
    pipeline.value("select pg_terminate_backend(%s)", (control(pipeline)[0],))
    took = wait_away(relay, since)
    assert took < 5
    relay.wait_for(lambda record: record.get("event") == "streaming", PATIENCE, since=since)
    assert pipeline.walsender() != stream
    print(pipeline.books(writer, consumer))


def test_a_walsender_that_is_terminated_comes_back(pipeline: Pipeline) -> None:
    relay = pipeline.start()
    writer, consumer = pipeline.writer(rate=200).start(), pipeline.consumer()
    for _ in range(3):
        consumer.wait_count(len(consumer.records) + 50, PATIENCE)
        since = len(relay.records)
        pipeline.value("select pg_terminate_backend(%s)", (pipeline.walsender(),))
        relay.wait_for(lambda record: record.get("event") == "streaming", PATIENCE, since=since)
    print(pipeline.books(writer, consumer))


def test_a_walsender_that_is_terminated_again_and_again_fills_no_log(pipeline: Pipeline) -> None:
    """Each session would say anew that it ended, that it connects, and that it streams."""
    relay = pipeline.start(env={"CDC_OUTBOX_RETRY_MAX": "200ms"})
    for _ in range(FEW + 4):
        before = pipeline.terminate_walsender()
        eventually(lambda before=before: pipeline.walsender() not in (None, before), PATIENCE, "another one")  # type: ignore[misc]
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(1))
    said = Counter((record["event"], record.get("state")) for record in relay.records)
    assert said["streaming", None] == 1 + FEW, relay.text(100)  # the first tells the mapping as well
    assert said["state", "connecting"] <= FEW
    assert said["state", "streaming"] <= FEW
    assert relay.state() == "streaming"


def test_F26_an_address_that_moves_to_a_standby(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, pipeline: Pipeline, proxy: Proxy
) -> None:
    """The stream stays on the old server and the control connection reaches the new one."""
    standby = own_postgres.standby()
    try:
        relay = pipeline.start(way=through(proxy, own_postgres))
        writer, consumer = pipeline.writer(), pipeline.consumer()
        consumer.wait_ids(writer.write(20))
        since = len(relay.records)
        proxy.retarget(("127.0.0.1", standby.port))
        proxy.cut(control(pipeline)[1])
        took = wait_away(relay, since)
        assert took < 10
        relay.wait_for(
            lambda record: "is a standby" in str(record.get("error")), PATIENCE, since=since, message="named"
        )
        eventually(lambda: not pipeline.slot_value("active"), PATIENCE, "the slot free")
        proxy.retarget(("127.0.0.1", own_postgres.port))
        relay.wait_state("streaming")
        writer.write(20)
        print(pipeline.books(writer, consumer))
    finally:
        standby.close()


def test_F26_an_address_that_moves_to_a_stranger(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    make_postgres: Callable[..., PostgresServer],
    pipeline: Pipeline,
    proxy: Proxy,
) -> None:
    """Another database with a slot of the same name: what it says about that is nothing about our stream."""
    stranger = make_postgres()
    create_outbox(stranger.dsn())
    assert (
        run_command("init", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": stranger.dsn()}).returncode == 0
    )
    relay = pipeline.start(way=through(proxy, own_postgres))
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    since = len(relay.records)
    proxy.retarget(("127.0.0.1", stranger.port))
    proxy.cut(control(pipeline)[1])
    relay.wait_for(
        lambda record: "another server" in str(record.get("error")), PATIENCE, since=since, message="named"
    )
    eventually(lambda: not pipeline.slot_value("active"), PATIENCE, "the slot on the first server free")
    relay.kill()
    pipeline.start()
    writer.write(20)
    print(pipeline.books(writer, consumer))


def test_F26_an_address_that_moves_while_a_standby_waits(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    make_postgres: Callable[..., PostgresServer],
    pipeline: Pipeline,
    proxy: Proxy,
) -> None:
    """Its control connection is on one server, and the stream would start on the other."""
    stranger = make_postgres()
    create_outbox(stranger.dsn())
    assert (
        run_command("init", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": stranger.dsn()}).returncode == 0
    )
    active = pipeline.start()
    standby = pipeline.start(way=through(proxy, own_postgres), state="standby")
    proxy.retarget(("127.0.0.1", stranger.port))
    active.kill()
    standby.wait_for(
        lambda record: "another server" in str(record.get("error")), PATIENCE, message="two servers noticed"
    )
