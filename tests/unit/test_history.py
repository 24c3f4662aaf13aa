"""The last hour in points, figures by what came since the point before, and a line for a minute that wasn't idle."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest

from cdc_outbox.watch.history import MINUTE, POINTS, STEP
from cdc_outbox.watch.pace import Pace
from tests.unit.sampled import MIB, Watched, sample


@pytest.fixture
def watched() -> Watched:
    return Watched()


def deliver(watched: Watched, events: int, *, seconds: float = 0.004) -> None:
    now = time.time_ns() // 1000
    committed = now - int(seconds * 1e6)
    watched.status.tally.confirmed(
        "orders", events, events * 100, since=time.monotonic(), commits_us=(committed, committed)
    )
    watched.status.tally.received += events


def minutes(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [each.__dict__["fields"] for each in caplog.records if each.getMessage() == "delivered"]


def test_figures_are_of_what_came_since_the_last(watched: Watched) -> None:
    deliver(watched, 1000, seconds=100)
    pace = Pace(watched.status.tally, 50.0)
    deliver(watched, 30, seconds=0.004)
    figures = pace.take(60.0)
    assert (figures.events, figures.bytes, figures.events_per_second) == (30, 3000, 3.0)
    assert figures.p99 is not None
    assert figures.p99 < 1
    nothing = pace.take(70.0)
    assert (nothing.events, nothing.p50, nothing.p99) == (0, None, None)


def test_no_time_is_no_rate(watched: Watched) -> None:
    assert Pace(watched.status.tally, 50.0).take(50.0).events_per_second == 0


def test_a_point_has_the_slots_lags_where_they_are_known(watched: Watched) -> None:
    now = time.monotonic()
    watched.history.tick(now + STEP)
    watched.sampler.fresh = sample()
    deliver(watched, 50)
    watched.history.tick(now + 2 * STEP)
    before, after = watched.history.points
    assert (before.unconfirmed, before.retained) == (None, None)
    assert (after.unconfirmed, after.retained) == (2 * MIB, 4 * MIB)
    assert after.figures.events_per_second == pytest.approx(5, rel=0.1)


def test_an_hour_is_kept(watched: Watched) -> None:
    now = time.monotonic()
    for step in range(POINTS + 10):
        watched.history.tick(now + step * STEP)
    assert len(watched.history.points) == POINTS == 3600 / STEP


def test_a_minute_with_load_is_one_line_named_as_the_metrics_are(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic()
    watched.sampler.fresh = sample()
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        for step in range(1, 7):
            deliver(watched, 100)
            watched.history.tick(now + step * STEP)
    (line,) = minutes(caplog)
    assert line["slot"] == "outbox_slot"
    assert (line["events_received"], line["events_published"], line["published_bytes"]) == (600, 600, 60_000)
    assert line["events_per_second"] == pytest.approx(10, rel=0.1)
    assert 0 < line["event_latency_seconds_p50"] <= line["event_latency_seconds_p99"]
    assert line["slot_unconfirmed_wal_bytes"] == 2 * MIB
    assert line["slot_retained_wal_bytes"] == 4 * MIB
    assert line["inflight_events"] == line["inflight_bytes"] == line["oldest_unacked_commit_age_seconds"] == 0


def test_an_idle_minute_says_nothing_and_the_next_with_load_speaks_of_itself_alone(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    now = time.monotonic()
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        for step in range(1, 61):
            watched.history.tick(now + step * STEP)
        assert not minutes(caplog)
        deliver(watched, 7)
        for step in range(61, 67):
            watched.history.tick(now + step * STEP)
    (line,) = minutes(caplog)
    assert line["events_published"] == 7
    assert line["seconds"] == pytest.approx(MINUTE, abs=2)
