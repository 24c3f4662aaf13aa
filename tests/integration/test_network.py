"""The network between relay and PostgreSQL: cut without a word, one connection of two, or leading to another server.

F20 and F26, and the end of the control connection for other reasons than a shutdown. While it is away nothing is
confirmed, and the stream is kept for ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from cdc_outbox.lsn import LSN
from tests.integration.scene import PATIENCE, Scene, make_scene
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import create_outbox
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import eventually

__all__ = ["make_scene"]

NOTICED = 30.0
"""Seconds within which a dead connection must be noticed (seen: 18 to 21)."""


@pytest.fixture
def scene(own_postgres: PostgresServer, kafka: Kafka, make_scene: Callable[..., Scene]) -> Scene:
    scene = make_scene(own_postgres.dsn(), kafka)
    scene.init()
    return scene


@pytest.fixture
def proxy(own_postgres: PostgresServer, make_proxy: Callable[[str, int], Proxy]) -> Proxy:
    return make_proxy("127.0.0.1", own_postgres.port)


def through(proxy: Proxy, server: PostgresServer) -> str:
    return server.dsn(host="127.0.0.1", port=proxy.port)


def backend(scene: Scene, kind: str) -> tuple[int, int]:
    """Process id and client port of the relay's control connection or walsender, as the server sees it."""
    found = scene.value(
        "select array[pid, client_port] from pg_stat_activity"
        " where application_name = %s and backend_type = %s",
        (f"cdc-outbox/{scene.slot}", kind),
    )
    return found[0], found[1]


def control(scene: Scene) -> tuple[int, int]:
    return backend(scene, "client backend")


def walsender(scene: Scene) -> int:
    return backend(scene, "walsender")[0]


def wait_control(scene: Scene, before: int) -> None:
    """Wait for another control connection than that of the process `before`."""
    eventually(
        lambda: scene.value(
            "select count(*) from pg_stat_activity"
            " where application_name = %s and backend_type = 'client backend' and pid <> %s",
            (f"cdc-outbox/{scene.slot}", before),
        ),
        PATIENCE,
        "a new control connection",
    )


def confirmed(scene: Scene) -> LSN:
    return LSN.parse(scene.slot_value("confirmed_flush_lsn::text"))


def wait_away(relay: RelayProcess, since: int = 0) -> float:
    """Wait until the relay has given up its session; the seconds that it took."""
    began = time.monotonic()
    relay.wait_for(
        lambda record: record.get("state") == "connecting", PATIENCE, since=since, message="the loss noticed"
    )
    return time.monotonic() - began


def test_F20_a_network_that_swallows_everything(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    relay = scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(rate=50).start(), scene.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.freeze()
    took = wait_away(relay, since)
    print(f"noticed after {took:.1f} s")
    assert took < NOTICED
    proxy.cut()
    proxy.resume()
    relay.wait_state("streaming", timeout=PATIENCE)
    print(scene.books(writer, consumer))


def test_F20_noticed_also_while_reading_is_paused(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    own_kafka: KafkaBroker,
    make_scene: Callable[..., Scene],
    proxy: Proxy,
) -> None:
    """Kafka is away and nobody reads the stream, so that its silence tells nothing: the control connection does."""
    scene = make_scene(own_postgres.dsn(), own_kafka)
    scene.init()
    relay = scene.relay("--inflight-bytes", "1MiB", dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(padding=4000), scene.consumer()
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
    print(scene.books(writer, consumer))


def test_F20_a_server_that_is_frozen(own_postgres: PostgresServer, scene: Scene) -> None:  # noqa: N802
    relay, writer, consumer = scene.relay(), scene.writer(), scene.consumer()
    consumer.wait_ids(writer.write(20))
    since = len(relay.records)
    own_postgres.pause()
    try:
        took = wait_away(relay, since)
    finally:
        own_postgres.resume()
    print(f"noticed after {took:.1f} s")
    assert took < NOTICED
    relay.wait_state("streaming", timeout=PATIENCE)
    writer.write(20)
    print(scene.books(writer, consumer))


def test_the_control_connection_alone_is_cut(
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    """It is made anew, and the stream goes on."""
    relay = scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(rate=100).start(), scene.consumer()
    stream = walsender(scene)
    for _ in range(3):
        writer.wait_written(50, PATIENCE)
        pid, port = control(scene)
        proxy.cut(port)
        wait_control(scene, pid)
    assert walsender(scene) == stream
    assert relay.state() == "streaming"
    verdict = scene.books(writer, consumer)
    assert not verdict.duplicates
    scene.wait_confirmed()


def test_without_a_control_connection_nothing_is_confirmed_and_the_stream_is_kept(
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(), scene.consumer()
    consumer.wait_ids(writer.write(20))
    scene.wait_confirmed()
    stream, (pid, port) = walsender(scene), control(scene)
    proxy.swallow_new()
    proxy.cut(port)
    before, accepted = confirmed(scene), proxy.accepted
    consumer.wait_ids(writer.write(20))  # delivered all the same
    eventually(lambda: proxy.accepted >= accepted + 2, PATIENCE, "two attempts to connect")
    assert confirmed(scene) == before
    assert walsender(scene) == stream
    proxy.resume()
    wait_control(scene, pid)
    scene.wait_confirmed()
    assert walsender(scene) == stream
    assert not scene.books(writer, consumer).duplicates


def test_a_control_connection_that_stays_away_ends_the_session(
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    relay = scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(rate=50).start(), scene.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.swallow_new()
    proxy.cut(control(scene)[1])
    took = wait_away(relay, since)
    print(f"given up after {took:.1f} s")
    assert 8 < took < 20
    eventually(lambda: not scene.slot_value("active"), PATIENCE, "the slot free for another relay")
    proxy.resume()
    relay.wait_state("streaming", timeout=PATIENCE)
    print(scene.books(writer, consumer))


def test_a_server_that_refuses_a_new_control_connection_is_left_at_once(
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    relay = scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(rate=50).start(), scene.consumer()
    consumer.wait_count(10, PATIENCE)
    since = len(relay.records)
    proxy.refuse_new()
    proxy.cut(control(scene)[1])
    took = wait_away(relay, since)
    print(f"given up after {took:.2f} s")
    assert took < 5
    proxy.resume()
    relay.wait_state("streaming", timeout=PATIENCE)
    print(scene.books(writer, consumer))


def test_a_control_connection_that_is_terminated_counts_as_a_shutdown(scene: Scene) -> None:
    relay = scene.relay()
    writer, consumer = scene.writer(rate=50).start(), scene.consumer()
    consumer.wait_count(10, PATIENCE)
    stream, since = walsender(scene), len(relay.records)
    scene.value("select pg_terminate_backend(%s)", (control(scene)[0],))
    took = wait_away(relay, since)
    assert took < 5
    relay.wait_for(lambda record: record.get("event") == "streaming", PATIENCE, since=since)
    assert walsender(scene) != stream
    print(scene.books(writer, consumer))


def test_a_walsender_that_is_terminated_comes_back(scene: Scene) -> None:
    relay = scene.relay()
    writer, consumer = scene.writer(rate=200).start(), scene.consumer()
    for _ in range(3):
        consumer.wait_count(len(consumer.records) + 50, PATIENCE)
        since = len(relay.records)
        scene.value("select pg_terminate_backend(%s)", (walsender(scene),))
        relay.wait_for(lambda record: record.get("event") == "streaming", PATIENCE, since=since)
    print(scene.books(writer, consumer))


def test_F26_an_address_that_moves_to_a_standby(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer, scene: Scene, proxy: Proxy
) -> None:
    """The stream stays on the old server and the control connection reaches the new one."""
    standby = own_postgres.standby()
    try:
        relay = scene.relay(dsn=through(proxy, own_postgres))
        writer, consumer = scene.writer(), scene.consumer()
        consumer.wait_ids(writer.write(20))
        since = len(relay.records)
        proxy.retarget(("127.0.0.1", standby.port))
        proxy.cut(control(scene)[1])
        took = wait_away(relay, since)
        assert took < 10
        relay.wait_for(
            lambda record: "is a standby" in str(record.get("error")), PATIENCE, since=since, message="named"
        )
        eventually(lambda: not scene.slot_value("active"), PATIENCE, "the slot free")
        proxy.retarget(("127.0.0.1", own_postgres.port))
        relay.wait_state("streaming", timeout=PATIENCE)
        writer.write(20)
        print(scene.books(writer, consumer))
    finally:
        standby.close()


def test_F26_an_address_that_moves_to_a_stranger(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    make_postgres: Callable[..., PostgresServer],
    scene: Scene,
    proxy: Proxy,
) -> None:
    """Another database with a slot of the same name: what it says about that is nothing about our stream."""
    stranger = make_postgres()
    create_outbox(stranger.dsn())
    assert run_command("init", "--slot", scene.slot, env={"CDC_OUTBOX_DSN": stranger.dsn()}).returncode == 0
    relay = scene.relay(dsn=through(proxy, own_postgres))
    writer, consumer = scene.writer(), scene.consumer()
    consumer.wait_ids(writer.write(20))
    since = len(relay.records)
    proxy.retarget(("127.0.0.1", stranger.port))
    proxy.cut(control(scene)[1])
    relay.wait_for(
        lambda record: "another server" in str(record.get("error")), PATIENCE, since=since, message="named"
    )
    eventually(lambda: not scene.slot_value("active"), PATIENCE, "the slot on the first server free")
    relay.kill()
    scene.relay()
    writer.write(20)
    print(scene.books(writer, consumer))


def test_F26_an_address_that_moves_while_a_standby_waits(  # noqa: N802 - the failure's own name
    own_postgres: PostgresServer,
    make_postgres: Callable[..., PostgresServer],
    scene: Scene,
    proxy: Proxy,
) -> None:
    """Its control connection is on one server, and the stream would start on the other."""
    stranger = make_postgres()
    create_outbox(stranger.dsn())
    assert run_command("init", "--slot", scene.slot, env={"CDC_OUTBOX_DSN": stranger.dsn()}).returncode == 0
    active = scene.relay()
    standby = scene.relay(dsn=through(proxy, own_postgres), state="standby")
    proxy.retarget(("127.0.0.1", stranger.port))
    active.kill()
    standby.wait_for(
        lambda record: "another server" in str(record.get("error")), PATIENCE, message="two servers noticed"
    )
