"""Asking a relay what it says of itself: no answer, a strange one, one of another slot, a slow one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.watch import inquiry
from cdc_outbox.watch.forecast import Basis, Outlook
from cdc_outbox.watch.rates import Rates
from tests.servers.process import free_port
from tests.unit.sampled import FORECAST

Serve = Callable[..., tuple[str, int]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves one answer to everything on a port of its own; keeps the requests' tokens in `serve.tokens`."""
    servers = []

    def start(body: bytes, code: int = 200, token: str | None = None) -> tuple[str, int]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                allowed = token is None or self.headers["Authorization"] == f"Bearer {token}"
                self.send_response(code if allowed else 401)
                self.end_headers()
                self.wfile.write(body if self.path == "/status" else b"{}")

            def log_message(self, *_: Any) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return "127.0.0.1", server.server_port

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_nobody_answers() -> None:
    assert inquiry.ask(("127.0.0.1", free_port())) is None


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b"null", b"\xff"])
def test_an_answer_that_isnt_one(serve: Serve, body: bytes) -> None:
    assert inquiry.ask(serve(body)) is None


def test_an_answer_without_end() -> None:
    """Some other program may have the address, and a byte now and then keeps each single wait short."""
    gone = threading.Event()

    def drip(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while not gone.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening,), daemon=True)
        dripping.start()
        asking = threading.Thread(target=inquiry.ask, args=(listening.getsockname(),), daemon=True)
        asking.start()
        asking.join(10 * inquiry.PATIENCE)
        given_up = not asking.is_alive()
        gone.set()
        dripping.join()
    assert given_up


def test_a_refusal(serve: Serve) -> None:
    assert inquiry.ask(serve(b"{}", code=403)) is None


def test_a_relay_that_wants_a_token(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    address = serve(b'{"slot": "a"}', token="s3cret")
    assert inquiry.ask(address) is None
    assert inquiry.ask(address, file) == {"slot": "a"}
    assert inquiry.ask(address, tmp_path / "missing") is None


@pytest.mark.parametrize("code", [401, 403])
def test_a_relay_that_refuses_says_why(serve: Serve, code: int) -> None:
    told = inquiry.ask(serve(b'{"error":"the token is missing or wrong","slot":"a"}', code))
    assert told == {"error": "the token is missing or wrong"}
    found = inquiry.delivery(inquiry.of_server(told, "7"), "a")
    assert found is not None
    assert (found.refusal, found.state) == ("the token is missing or wrong", None)
    assert inquiry.sooner(told, "a", FORECAST) is FORECAST


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b"{}", b'{"error": 5}', b'{"error": ""}'])
def test_somebody_else_who_refuses_is_nobody(serve: Serve, body: bytes) -> None:
    assert inquiry.ask(serve(body, 401)) is None


def test_what_it_says_of_delivery(serve: Serve) -> None:
    document = {
        "slot": "a",
        "state": "held",
        "reason": "no broker",
        "delivery": {"oldest_unacknowledged_seconds": 12, "last_acknowledged_at": "2026-05-04T10:00:00.000Z"},
    }
    found = inquiry.delivery(inquiry.ask(serve(json.dumps(document).encode())), "a")
    assert found is not None
    assert found.oldest_unacknowledged_seconds == 12.0
    assert found.last_acknowledged_at is not None
    assert (found.state, found.reason) == ("held", "no broker")
    assert inquiry.delivery(document, "another") is None
    assert inquiry.delivery(None, "a") is None


@pytest.mark.parametrize(
    ("since", "counts"),
    [
        (None, "2026-05-04T10:00:00+00:00"),
        ("2026-05-04T10:00:05.000Z", "2026-05-04T10:00:05+00:00"),
        ("2026-05-04T09:00:00.000Z", "2026-05-04T09:00:00+00:00"),
    ],
)
def test_what_the_bus_says_counts_for_the_slot_only_where_nothing_is_left_to_confirm(
    since: str | None, counts: str
) -> None:
    told = {"last_acknowledged_at": "2026-05-04T10:00:00.000Z", "confirmable_since": since}
    found = inquiry.delivery({"slot": "a", "delivery": told}, "a")
    assert found is not None
    assert found.last_acknowledged_at == datetime.fromisoformat(counts)


def test_why_it_waits_by_an_error_of_that_time() -> None:
    def told(seconds: float, ago: float) -> str | None:
        at = (datetime.now(UTC) - timedelta(seconds=ago)).isoformat()
        document = {
            "slot": "a",
            "delivery": {"oldest_unacknowledged_seconds": seconds},
            "errors": [{"at": at, "error": "no broker answers", "next": "start one"}],
        }
        found = inquiry.delivery(document, "a")
        assert found is not None
        assert (found.trouble is None) == (found.next is None)
        return found.trouble

    assert told(5, 3) == "no broker answers"
    assert told(500, 400) == "no broker answers"
    assert told(0, 3) is None
    assert told(5, 400) is None


def test_what_is_the_reason_already_isnt_said_twice() -> None:
    document = {
        "slot": "a",
        "reason": "no broker answers",
        "delivery": {"oldest_unacknowledged_seconds": 5},
        "errors": [{"at": datetime.now(UTC).isoformat(), "error": "no broker answers", "next": "start one"}],
    }
    found = inquiry.delivery(document, "a")
    assert found is not None
    assert (found.reason, found.trouble, found.next) == ("no broker answers", None, "start one")


@pytest.mark.parametrize("state", ["held", "blocked"])
def test_one_that_is_stuck_gives_the_step_of_its_reason_however_old(state: str) -> None:
    def error(error: str, remedy: str) -> dict[str, str]:
        return {"at": "2026-05-04T10:00:00.000Z", "error": error, "next": remedy}

    document = {
        "slot": "a",
        "state": state,
        "reason": "topic a.b is missing",
        "errors": [error("topic a.b is missing", "make it"), error("nothing listens", "start the server")],
    }
    found = inquiry.delivery(document, "a")
    assert found is not None
    assert (found.stuck, found.trouble, found.next) == (True, None, "make it")
    found = inquiry.delivery(document | {"state": "streaming"}, "a")
    assert found is not None
    assert (found.stuck, found.next) == (False, None)


class TestSooner:
    SEEN = replace(FORECAST, loss=Outlook.NEVER, rates=Rates(5.0, 5.0, 0.0, 0.0), basis=Basis.LIMIT)

    def told(self, seconds: object, rate: object = 900.5, **changes: object) -> dict[str, Any]:
        forecast = {"loss": "in", "seconds_to_loss": seconds, "basis": "max_slot_wal_keep_size", **changes}
        return {"slot": "a", "health": {"forecast": forecast, "rate": {"wal_bytes_per_second": rate}}}

    def test_the_relay_that_has_watched_for_longer_counts_where_it_expects_the_loss(self) -> None:
        found = inquiry.sooner(self.told(51.0), "a", self.SEEN)
        assert (found.loss, found.seconds_to_loss, found.basis) == (Outlook.IN, 51.0, Basis.LIMIT)
        assert found.rates is not None
        assert found.rates.wal == 900.5
        later = replace(self.SEEN, loss=Outlook.IN, seconds_to_loss=90.0)
        assert inquiry.sooner(self.told(51.0), "a", later).seconds_to_loss == 51.0
        assert inquiry.sooner(self.told(0), "a", later).loss is Outlook.NOW

    def test_what_we_see_ourselves_counts_where_it_comes_first(self) -> None:
        near = replace(self.SEEN, loss=Outlook.IN, seconds_to_loss=20.0)
        assert inquiry.sooner(self.told(51.0), "a", near) is near

    def test_nothing_of_another_slot_and_nothing_that_isnt_understood(self) -> None:
        wrong = [
            self.told(None),
            self.told("soon"),
            self.told(51.0, None),
            self.told(51.0, basis="the moon"),
            self.told(51.0) | {"slot": "b"},
            {"slot": "a", "health": None},
            {"slot": "a", "health": {"forecast": [], "rate": 7}},
            None,
        ]
        assert all(inquiry.sooner(each, "a", self.SEEN) is self.SEEN for each in wrong)


@pytest.mark.parametrize(
    "told",
    [
        None,
        [],
        {},
        {"oldest_unacknowledged_seconds": True},
        {"oldest_unacknowledged_seconds": -1},
        {"oldest_unacknowledged_seconds": "7"},
        {"last_acknowledged_at": "yesterday"},
        {"last_acknowledged_at": "2026-05-04T10:00:00"},
    ],
)
def test_what_isnt_understood_is_unknown(told: object) -> None:
    found = inquiry.delivery({"slot": "a", "state": 7, "delivery": told}, "a")
    assert found is not None
    assert (found.oldest_unacknowledged_seconds, found.last_acknowledged_at, found.state) == (
        None,
        None,
        None,
    )
