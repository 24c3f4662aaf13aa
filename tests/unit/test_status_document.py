"""The document of `/status`: the keys of the contract, plain values, no secret."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any, cast

import orjson
import pytest

from cdc_outbox import faults
from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.mark import Marks
from cdc_outbox.state import State
from cdc_outbox.watch.health import Health
from cdc_outbox.watch.status import document
from tests.servers.cache import CHECKOUT
from tests.unit.sampled import Watched, health, sample


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Health, "document", lambda self: {"summary": self.summary})


def said(watched: Watched, about: Health | None = None) -> dict[str, Any]:
    """As a client reads it."""
    shown = document(watched.status, about, watched.history, lambda text: text.replace("hunter2", "***"))
    return cast(dict[str, Any], orjson.loads(orjson.dumps(shown)))


def test_before_anything_has_happened() -> None:
    watched = Watched()
    shown = said(watched)
    datetime.fromisoformat(shown.pop("since"))
    assert shown.pop("version")
    assert shown == {
        "schema_version": 1,
        "state": "connecting",
        "reason": "",
        "slot": "outbox_slot",
        "system_identifier": None,
        "health": None,
        "lsn": {"received": "0/0", "confirmable": "0/0", "confirmed": "0/0"},
        "inflight": {"events": 0, "bytes": 0},
        "events": {"received": 0, "published": 0, "skipped": {}},
        "topics": {},
        "marks": None,
        "errors": [],
        "mapping": {},
        "faults": [],
        "delivery": {
            "oldest_unacknowledged_seconds": None,
            "last_acknowledged_at": None,
            "confirmable_since": None,
        },
        "throughput": {"events_per_second": None},
        "latency": {"p50_seconds": None, "p99_seconds": None},
        "history": {"step_seconds": 10, "points": []},
    }


def test_under_load() -> None:
    watched = Watched()
    status = watched.status
    now = time.time_ns() // 1000
    status.change(State.STREAMING)
    status.tally.confirmed("orders", 40, 9000, since=time.monotonic(), commits_us=(now - 5000, now - 5000))
    status.tally.skipped["bus"] += 2
    watched.sampler.fresh = sample()
    watched.history.tick(time.monotonic() + 10)
    shown = said(watched, health(summary="all is well"))
    assert shown["state"] == "streaming"
    assert shown["health"] == {"summary": "all is well"}
    assert shown["topics"] == {"orders": 40}
    assert shown["events"] == {"received": 0, "published": 40, "skipped": {"bus": 2}}
    assert shown["delivery"]["last_acknowledged_at"].endswith("Z")
    assert shown["throughput"]["events_per_second"] == pytest.approx(4, rel=0.1)
    assert shown["latency"]["p50_seconds"] > 0
    (point,) = shown["history"]["points"]
    assert set(point) == {
        "at",
        "unconfirmed_bytes",
        "retained_bytes",
        "events_per_second",
        "p50_seconds",
        "p99_seconds",
    }
    assert point["unconfirmed_bytes"] == sample().unconfirmed


def test_errors_have_time_and_remedy_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    monkeypatch.setenv(faults.HOLD_CONFIRMATION, "/nowhere")
    watched.status.mapping = lambda: {"public.outbox": "key from hunter2"}
    watched.status.change(State.HELD, "password hunter2")
    watched.status.trouble(KafkaUnavailable("said hunter2", next="ask hunter2"))
    shown = said(watched, health(summary="hunter2 is late"))
    assert "hunter2" not in str(shown)
    (error,) = shown["errors"]
    assert (error["error"], error["next"]) == ("said ***", "ask ***")
    assert datetime.fromisoformat(error["at"]).timestamp() == pytest.approx(time.time(), abs=5)
    assert shown["mapping"] == {"public.outbox": "key from ***"}
    assert shown["faults"] == [faults.HOLD_CONFIRMATION]


def test_each_field_is_documented_and_no_other() -> None:
    """In the table of docs/reference/http.md; what is below `health` has a schema of its own."""
    watched = Watched()
    watched.status.trouble(KafkaUnavailable("away", next="start it"))
    watched.status.marks = Marks()
    watched.sampler.fresh = sample()
    watched.history.tick(time.monotonic() + 10)
    shown = said(watched, health())
    nested = {"lsn", "inflight", "events", "marks", "delivery", "throughput", "latency", "history"}
    there = {(name, "") for name in shown if name not in nested | {"errors"}} | {("marks", "")}
    there |= {(name, below) for name in nested for below in shown[name]}
    there |= {("errors", below) for below in shown["errors"][0]}
    there |= {("points", below) for below in shown["history"]["points"][0]}
    assert set(documented()) == there


def documented() -> Iterator[tuple[str, str]]:
    """Field and field below it, "" where the row is about the field itself."""
    page = (CHECKOUT / "docs" / "reference" / "http.md").read_text()
    section = page.partition("## What `/status` says\n")[2].partition("\n## ")[0]
    field = ""
    for row in re.findall(r"^\| .* \|$", section, re.MULTILINE)[1:]:
        _, first, within, *_ = row.split("|")
        (field,) = re.findall(r"`(\w+)`", first) or [field]
        yield from ((field, below) for below in re.findall(r"`(\w+)`", within) or [""])
