"""Every answer is a function of the request's head and of what is known of the relay; so is every refusal."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_outbox.errors import ConfigError
from cdc_outbox.state import State
from cdc_outbox.watch import answers as module
from cdc_outbox.watch import page
from cdc_outbox.watch.answers import MISSED_BEAT
from cdc_outbox.watch.health import Health, Level
from cdc_outbox.watch.token import Token
from tests.unit.sampled import Watched, health

GUARDED = ("/healthz", "/metrics", "/status")
FILES = tuple(page.served())


@dataclass
class Answer:
    code: int
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, str]:
        return dict(json.loads(self.body))


class Asked(Watched):
    """The answers of a relay in a state that the test chooses."""

    def raw(self, head: bytes) -> Answer:
        answer = self.answers.answer(head.removesuffix(b"\r\n\r\n"))
        lines, _, body = answer.partition(b"\r\n\r\n")
        first, *rest = lines.decode("ascii").split("\r\n")
        headers = dict(line.split(": ", 1) for line in rest)
        assert first.startswith("HTTP/1.1 ")
        return Answer(int(first.split()[1]), headers, body)

    def get(
        self,
        path: str,
        *,
        method: str = "GET",
        host: str | None = "localhost:9464",
        authorization: str | None = None,
    ) -> Answer:
        named = "" if host is None else f"Host: {host}\r\n"
        if authorization is not None:
            named += f"Authorization: {authorization}\r\n"
        return self.raw(f"{method} {path} HTTP/1.1\r\n{named}Accept: */*\r\n\r\n".encode("latin-1"))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is kept, unless a test is about that; and what `health` prints is not what is tested here."""
    monkeypatch.setattr(module, "KEPT", 0.0)
    monkeypatch.setattr(
        Health, "document", lambda self: {"status": self.status.value, "summary": self.summary}
    )


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("correct-horse\n")
    return file


@pytest.fixture
def abroad(secret: Path) -> Asked:
    """What listens where others than this machine may ask, with a token."""
    return Asked(loopback=False, token=Token(secret))


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
    assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["Connection"] == "close"


@pytest.mark.parametrize(
    "path", ["/livez/", "/LIVEZ", "/../livez", "//livez", "/__init__.py", "http://localhost/livez", "*", ""]
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
        b"",
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


def test_strangers_hear_whether_it_is_ready_and_not_why(abroad: Asked) -> None:
    token = "Bearer correct-horse"
    for each in (abroad, Asked(loopback=False)):
        each.status.change(State.HELD, "topic orders is missing")
        for wrong in (None, "Bearer wrong"):
            answer = each.get("/readyz", authorization=wrong)
            assert (answer.code, answer.document) == (503, {"state": "held"})
    assert abroad.get("/readyz", authorization=token).document["reason"] == "topic orders is missing"
    assert Asked(loopback=False).get("/readyz", authorization=token).document.keys() == {"state"}


def test_reasons_are_redacted(asked: Asked) -> None:
    asked.status.change(State.HELD, "the server said hunter2")
    assert asked.get("/readyz").document["reason"] == "the server said ***"


def test_a_reason_cannot_add_a_line(asked: Asked) -> None:
    asked.status.change(State.HELD, 'a\r\nSet-Cookie: x\n"quoted"')
    answer = asked.get("/readyz")
    assert answer.document["reason"] == 'a\r\nSet-Cookie: x\n"quoted"'
    assert answer.body.count(b"\n") == 1
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize(
    ("level", "code"),
    [(Level.OK, 200), (Level.WARNING, 200), (Level.UNKNOWN, 200), (Level.CRITICAL, 503)],
)
def test_healthz_says_health_and_fails_where_that_is_critical(level: Level, code: int, asked: Asked) -> None:
    asked.sampler.health = health(level, "the server said hunter2")
    answer = asked.get("/healthz")
    assert answer.code == code
    assert answer.document == {"status": level.value, "summary": "the server said ***"}
    assert answer.body.count(b"\n") == 1


def test_healthz_before_the_first_sample_is_unknown_and_fails(asked: Asked) -> None:
    answer = asked.get("/healthz")
    assert (answer.code, answer.document["status"]) == (503, "unknown")


def test_metrics_are_in_the_text_format(asked: Asked) -> None:
    answer = asked.get("/metrics")
    assert answer.code == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    names = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert "cdc_outbox_events_published" in names


def test_status_is_a_document(asked: Asked) -> None:
    asked.status.change(State.HELD, "the server said hunter2")
    answer = asked.get("/status")
    assert answer.code == 200
    document: dict[str, Any] = json.loads(answer.body)
    assert (document["state"], document["reason"]) == ("held", "the server said ***")


def test_the_page_and_its_files_are_served_under_their_own_policy(asked: Asked) -> None:
    for path in FILES:
        answer = asked.get(path)
        assert answer.code == 200
        assert answer.headers["Content-Security-Policy"] == page.POLICY
    assert b"<html" in asked.get("/").body


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_no_token(path: str, abroad: Asked) -> None:
    abroad.status.change(State.STREAMING)
    assert abroad.get(path).code == 200


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer correct-hors",
        "Bearer correct-horse-",
        "Basic correct-horse",
        "correct-horse",
        "Bearer correct-horse\r\nAuthorization: Bearer correct-horse",
        "Bearer \u00e9",
    ],
)
def test_without_the_token_nothing_is_told(path: str, authorization: str | None, abroad: Asked) -> None:
    answer = abroad.get(path, authorization=authorization)
    assert answer.code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert b"correct" not in answer.body


@pytest.mark.parametrize("path", GUARDED)
@pytest.mark.parametrize("authorization", ["Bearer correct-horse", "bearer  correct-horse "])
def test_with_the_token_all_is_told(path: str, authorization: str, abroad: Asked) -> None:
    abroad.sampler.health = health()
    assert abroad.get(path, authorization=authorization).code == 200


def test_the_page_comes_without_a_token_since_it_has_no_data(abroad: Asked) -> None:
    assert {path: abroad.get(path).code for path in FILES} == dict.fromkeys(FILES, 200)


def test_on_loopback_a_token_that_is_set_is_needed_as_well(secret: Path) -> None:
    asked = Asked(token=Token(secret))
    assert asked.get("/metrics").code == 401
    assert asked.get("/metrics", authorization="Bearer correct-horse").code == 200


def test_abroad_without_a_token_there_is_no_status_and_no_page() -> None:
    asked = Asked(loopback=False)
    asked.sampler.health = health()
    assert [asked.get(path).code for path in ("/status", *FILES)] == [403] * (1 + len(FILES))
    assert [asked.get(path).code for path in ("/healthz", "/metrics", "/livez")] == [200] * 3


def test_a_token_that_is_rotated_counts_at_once(
    secret: Path, abroad: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        secret.write_text("a-new-one\n")
        assert abroad.get("/metrics", authorization="Bearer correct-horse").code == 401
        assert abroad.get("/metrics", authorization="Bearer a-new-one").code == 200
    assert "a-new-one" not in caplog.text


def test_while_the_tokens_file_is_away_the_old_one_counts(
    secret: Path, abroad: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    secret.unlink()
    for _ in range(3):
        assert abroad.get("/metrics", authorization="Bearer correct-horse").code == 200
    secret.write_text("")
    assert abroad.get("/metrics", authorization="Bearer correct-horse").code == 200
    secret.unlink()
    os.mkfifo(secret)  # who opens it waits until somebody writes
    assert abroad.get("/metrics", authorization="Bearer correct-horse").code == 200
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 1
    secret.unlink()
    secret.write_text("a-new-one")
    assert abroad.get("/metrics", authorization="Bearer a-new-one").code == 200


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "can't be read"),
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"two words", "one word"),
        (b"\xff", "one word"),
    ],
)
def test_a_file_that_holds_no_token_is_an_error_with_a_remedy(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=problem) as raised:
        Token(file)
    assert raised.value.exit_code == 78
    assert str(file) in str(raised.value)
    assert "openssl rand" in raised.value.next


def test_what_takes_time_is_gathered_once_for_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT", 60.0)
    asked = Asked()
    first = asked.get("/metrics").body
    asked.status.tally.published["orders"] += 5
    assert asked.get("/metrics").body == first
    asked.status.change(State.STREAMING)
    assert asked.get("/readyz").document["state"] == "streaming", "probes are never old"


def test_a_fault_of_the_watch_is_an_answer_and_one_line(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bytes:
        raise ZeroDivisionError("hunter2")

    monkeypatch.setattr("cdc_outbox.watch.exposition.text", broken)
    for _ in range(5):
        answer = asked.get("/metrics")
        assert answer.code == 500
        assert b"hunter2" not in answer.body
    assert len(caplog.records) == 1
