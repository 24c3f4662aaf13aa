"""The probes of a running relay, asked by clients that mean no good. PostgreSQL and Kafka are away all the while."""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from tests.servers.process import free_port
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("http")


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    dsn = f"postgresql://app:s3cret@127.0.0.1:{free_port()}/app"
    process = RelayProcess(dsn, f"127.0.0.1:{free_port()}", slot="outbox_slot")
    try:
        process.wait_for(lambda record: record["event"] == "waiting", 60, message="the relay waits")
        yield process
    finally:
        process.close()


@contextlib.contextmanager
def connected(relay: RelayProcess) -> Iterator[socket.socket]:
    assert relay.http_port is not None
    with socket.create_connection(("127.0.0.1", relay.http_port), timeout=20) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the relay closes."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer


def test_servers_that_are_away_make_it_unready_and_not_dead(relay: RelayProcess) -> None:
    code, body = relay.get("/readyz")
    assert code == 503
    document = json.loads(body)
    assert document["state"] == "connecting"
    assert "127.0.0.1" in document["reason"]
    assert "s3cret" not in body
    assert relay.get("/livez") == (200, '{"status":"alive"}\n')


def test_a_probe_in_many_pieces_is_answered(relay: RelayProcess) -> None:
    with connected(relay) as connection:
        for letter in b"GET /livez HTTP/1.0\r\n\r\n":
            connection.sendall(bytes([letter]))
        assert everything(connection).startswith(b"HTTP/1.1 200 ")


def test_one_request_a_connection(relay: RelayProcess) -> None:
    with connected(relay) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\n\r\n" * 3)
        assert everything(connection).count(b"HTTP/1.1") == 1


def test_a_head_without_end_is_cut_off(relay: RelayProcess) -> None:
    with connected(relay) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"GET /livez HTTP/1.1\r\n" + b"X: " + b"y" * 2_000_000)
        assert everything(connection) == b""
    assert relay.get("/livez")[0] == 200


def test_slow_clients_are_cut_off_in_time(relay: RelayProcess) -> None:
    began = time.monotonic()
    with connected(relay) as connection:
        connection.sendall(b"GET /livez HT")
        assert everything(connection) == b""
    assert 3 < time.monotonic() - began < 15


def test_many_slow_clients_keep_no_probe_out(relay: RelayProcess) -> None:
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(relay)) for _ in range(200)]
        for connection in slow:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        assert relay.get("/livez", timeout=5)[0] == 200
    assert relay.get("/livez")[0] == 200


def test_noise_is_refused_and_leaves_no_line_in_the_log(relay: RelayProcess) -> None:
    lines = len(relay.records) + len(relay.stray)
    for _ in range(50):
        with connected(relay) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(secrets.token_bytes(200) + b"\r\n\r\n")
            assert everything(connection).startswith(b"HTTP/1.1 400 ")
    for _ in range(20):
        with connected(relay):
            pass
    eventually(lambda: relay.get("/livez")[0] == 200, PATIENCE, "the relay answers")
    since = [*relay.records, *relay.stray][lines:]
    assert not [line for line in since if "still waiting" not in str(line)]


def test_no_http_means_none(make_relay: Callable[..., RelayProcess]) -> None:
    dsn = f"postgresql://app@127.0.0.1:{free_port()}/app"
    relay = make_relay(dsn, f"127.0.0.1:{free_port()}", slot="outbox_slot", http=False)
    relay.wait_for(lambda record: record["event"] == "waiting", 60, message="the relay waits")
    assert not [record for record in relay.records if record["event"].startswith("http")]
    assert relay.terminate()[0] == 0


def test_the_probes_end_with_the_relay_at_once_whoever_is_connected(
    make_relay: Callable[..., RelayProcess],
) -> None:
    dsn = f"postgresql://app@127.0.0.1:{free_port()}/app"
    relay = make_relay(dsn, f"127.0.0.1:{free_port()}", slot="outbox_slot")
    relay.wait_for(lambda record: record["event"] == "waiting", 60, message="the relay waits")
    with connected(relay) as connection:
        connection.sendall(b"GET /livez")
        code, seconds = relay.terminate()
    assert code == 0
    assert seconds < 4
    assert not relay.stray, relay.text()
