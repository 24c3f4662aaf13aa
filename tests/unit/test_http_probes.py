"""Every answer of the probes is a function of the request's head and the relay's status; so is every refusal."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass

import pytest

from cdc_outbox.state import State, Status
from cdc_outbox.watch.server import MISSED_BEAT, Probes


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, str]:
        return dict(json.loads(self.body))


class Asked:
    """Probes of a relay in a state that the test chooses."""

    def __init__(self, *, loopback: bool = True) -> None:
        self.status = Status("outbox_slot")
        self._probes = Probes(self.status, lambda text: text.replace("hunter2", "***"), loopback=loopback)

    def raw(self, head: bytes) -> Answer:
        answer = self._probes.answer(head)
        lines, _, body = answer.partition(b"\r\n\r\n")
        first, *rest = lines.decode("ascii").split("\r\n")
        headers = dict(line.split(": ", 1) for line in rest)
        assert first.startswith("HTTP/1.1 ")
        return Answer(int(first.split()[1]), headers, body)

    def get(self, path: str, *, method: str = "GET", host: str | None = "localhost:9464") -> Answer:
        named = "" if host is None else f"Host: {host}\r\n"
        return self.raw(f"{method} {path} HTTP/1.1\r\n{named}Accept: */*\r\n\r\n".encode("latin-1"))


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (State.CONNECTING, 503),
        (State.STANDBY, 200),
        (State.STREAMING, 200),
        (State.HELD, 503),
        (State.BLOCKED, 503),
        (State.DRAINING, 503),
        (State.STOPPED, 503),
    ],
)
def test_ready_is_who_streams_or_stands_by(state: State, code: int, asked: Asked) -> None:
    asked.status.change(state, "because")
    answer = asked.get("/readyz")
    assert answer.code == code
    assert answer.document == {"state": state.value, "reason": "because"}
    assert answer.body.count(b"\n") == 1


def test_alive_is_whose_loop_turns_whatever_is_away(asked: Asked) -> None:
    asked.status.change(State.CONNECTING, "no Kafka broker")
    answer = asked.get("/livez")
    assert (answer.code, answer.document) == (200, {"status": "alive"})
    asked.status.beat = time.monotonic() - MISSED_BEAT - 1
    answer = asked.get("/livez")
    assert (answer.code, answer.document) == (503, {"status": "stuck"})


def test_a_query_string_is_no_part_of_the_path(asked: Asked) -> None:
    assert asked.get("/livez?verbose=1").code == 200


def test_head_has_the_headers_and_no_body(asked: Asked) -> None:
    get, head = asked.get("/livez"), asked.get("/livez", method="HEAD")
    assert head.code == 200
    assert head.body == b""
    assert head.headers == get.headers
    assert int(get.headers["Content-Length"]) == len(get.body)


def test_answers_are_not_kept_nor_taken_for_something_else(asked: Asked) -> None:
    headers = asked.get("/readyz").headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"] == "application/json"
    assert headers["Content-Security-Policy"] == "default-src 'none'"
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    "path", ["/", "/livez/", "/LIVEZ", "/../livez", "//livez", "http://localhost/livez", "*"]
)
def test_nothing_else_is_served(path: str, asked: Asked) -> None:
    assert asked.get(path).code == 404


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE", "get", "G\u00cbT"]
)
def test_only_get_and_head(method: str, asked: Asked) -> None:
    assert asked.get("/livez", method=method).code == 405


@pytest.mark.parametrize(
    "head",
    [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/2\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\n\r\n",
        b"GET /livez FTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        bytes(range(256)) + b"\r\n\r\n",
        b"GET /livez HTTP/1.1 extra\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused(head: bytes, asked: Asked) -> None:
    assert asked.raw(head).code == 400


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9464", "127.8.8.8", "[::1]:9464", "[::1]", None]
)
def test_on_loopback_our_own_names_are_served(host: str | None, asked: Asked) -> None:
    assert asked.get("/livez", host=host).code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9464",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[2001:db8::1]:80",
        "",
        "local\xefhost",
    ],
)
def test_on_loopback_a_name_that_leads_here_by_deceit_is_refused(host: str, asked: Asked) -> None:
    assert asked.get("/livez", host=host).code == 403


def test_one_good_host_does_not_hide_a_bad_one(asked: Asked) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nhost : evil.example\r\n\r\n"
    assert asked.raw(head).code == 403


def test_elsewhere_any_host_is_served() -> None:
    assert Asked(loopback=False).get("/livez", host="relay.monitoring.svc").code == 200


def test_reasons_are_redacted(asked: Asked) -> None:
    asked.status.change(State.HELD, "the server said hunter2")
    assert asked.get("/readyz").document["reason"] == "the server said ***"


def test_a_reason_cannot_add_a_line(asked: Asked) -> None:
    asked.status.change(State.HELD, 'a\r\nSet-Cookie: x\n"quoted"')
    answer = asked.get("/readyz")
    assert answer.document["reason"] == 'a\r\nSet-Cookie: x\n"quoted"'
    assert answer.body.count(b"\n") == 1
    assert "Set-Cookie" not in answer.headers
