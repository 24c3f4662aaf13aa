"""The sampler beside a relay: it samples while there is a connection, ages without, and ends nothing when it fails."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_outbox.errors import CdcOutboxError, KafkaUnavailable, MissingRight, PostgresUnavailable
from cdc_outbox.settings import load
from cdc_outbox.state import State, Status
from cdc_outbox.watch import answers
from cdc_outbox.watch import sample as samples
from cdc_outbox.watch import sampler as module
from cdc_outbox.watch.checks import unreachable
from cdc_outbox.watch.forecast import Course
from cdc_outbox.watch.health import Check, Health, Level
from cdc_outbox.watch.sample import Sample
from cdc_outbox.watch.sampler import Sampler
from cdc_outbox.watch.thresholds import Thresholds
from tests.unit.sampled import FORECAST, health, sample

SETTINGS = load("start", {}, {}, Path("/nonexistent"))


class Played:
    """A sampler whose server answers what `answer` does, and whose judge says `judged`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "EVERY", 0.01)
        monkeypatch.setattr(module, "SOON", 0.01)
        monkeypatch.setattr(Thresholds, "of", classmethod(lambda _cls, _settings: None))
        monkeypatch.setattr(Course, "add", lambda _self, _sample: FORECAST)
        monkeypatch.setattr(samples, "take", self._take)
        monkeypatch.setattr(module, "judge", lambda *_: self.judged)
        monkeypatch.setattr(module, "unreachable", self._unreachable)
        self.answer: Callable[[], Sample] = sample
        self.judged: Health = health()
        self.asked = 0
        self.lost = False
        self.status = Status("outbox_slot")
        self.sampler = Sampler(SETTINGS, self.status)

    async def _take(self, *_: object, **__: object) -> Sample:
        self.asked += 1
        return self.answer()

    def _unreachable(self, slot: str, error: CdcOutboxError, *, last: Sample | None) -> Health:
        assert slot == "outbox_slot"
        return health(Level.CRITICAL, f"{error} ({error.next})", sample=last)

    def connect(self, *, admitted: bool = True) -> None:
        self.status.admitted = admitted

        class Control:
            lost = SimpleNamespace(done=lambda: self.lost)

            async def run(self, query: Callable[[object], Coroutine[Any, Any, Sample]]) -> Sample:
                return await query(None)

        class Admission:
            control = Control()

        self.status.connect(cast(Any, Admission()))

    def run(self, until: Callable[[], object]) -> None:
        async def watch() -> None:
            running = asyncio.create_task(self.sampler.run())
            async with asyncio.timeout(20):
                while not until():
                    assert not running.done()
                    await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait({running})

        asyncio.run(watch())


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


def age(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last sample, or the beginning, be long ago."""
    monkeypatch.setattr(module, "CURRENT", 0.0)
    monkeypatch.setattr(module, "FRESH", 0.0)


def test_with_a_connection_it_samples_again_and_again(played: Played) -> None:
    played.connect()
    played.run(lambda: played.asked > 3)
    assert played.sampler.fresh is not None
    assert played.sampler.forecast is FORECAST
    assert played.sampler.health is played.judged


def test_without_a_connection_it_waits_and_says_after_a_while_that_it_could_not_ask(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    played.status.change(State.CONNECTING, "nothing listens at db:5432")
    played.status.trouble(PostgresUnavailable("nothing listens at db:5432", next="start it"))
    first = played.sampler.health
    assert first is None, "the first sample may be on its way"
    age(monkeypatch)
    said = played.sampler.health
    assert said is not None
    assert said.status is Level.CRITICAL
    assert "nothing listens at db:5432" in said.summary
    assert "start it" in said.summary
    assert played.asked == 0


def test_a_sample_that_has_aged_tells_nothing_of_now(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    played.connect()
    played.run(lambda: played.sampler.fresh)
    played.status.leave()
    age(monkeypatch)
    assert played.sampler.fresh is None
    said = played.sampler.health
    assert said is not None
    assert (said.status, said.sample) == (Level.CRITICAL, sample())


def test_what_is_late_is_unknown_and_its_figures_stay_for_a_while(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that stops for a moment is no alarm; and nobody is told that all is well by what is old."""
    monkeypatch.setattr(module, "unreachable", unreachable)
    played.connect()
    played.run(lambda: played.sampler.fresh)
    assert played.sampler.health is played.judged
    monkeypatch.setattr(module, "CURRENT", 0.0)
    said = played.sampler.health
    assert said is not None
    assert (said.status, said.sample) == (Level.UNKNOWN, None)
    assert "could not ask PostgreSQL" in said.summary
    assert played.sampler.fresh == sample()
    monkeypatch.setattr(module, "FRESH", 0.0)
    assert played.sampler.health is not None
    assert played.sampler.health.status is Level.CRITICAL
    assert played.sampler.fresh is None


def test_no_health_that_is_served_is_older_than_five_seconds() -> None:
    assert module.CURRENT + answers.KEPT <= 5.0
    assert 2 * module.EVERY > module.CURRENT > module.EVERY + module.SOON, (
        "it may be late, but not be left out"
    )


def test_a_session_that_ends_under_it_is_no_news(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    def gone() -> Sample:
        raise PostgresUnavailable("the control connection was lost", next="wait")

    played.connect()
    played.answer, played.lost = gone, True
    played.run(lambda: played.asked > 3)
    assert not caplog.records
    played.answer = sample
    played.run(lambda: played.sampler.fresh)


def test_a_server_that_refuses_to_tell_is_one_line_and_the_healths_reason(
    played: Played, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Sample:
        raise MissingRight("permission denied for function pg_current_wal_lsn", next="grant it")

    played.connect()
    played.answer = refused
    played.run(lambda: played.asked > 3)
    (line,) = caplog.records
    assert line.__dict__["fields"]["next"] == "grant it"
    age(monkeypatch)
    said = played.sampler.health
    assert said is not None
    assert "permission denied" in said.summary


def test_a_fault_of_its_own_is_one_line_and_no_end(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Sample:
        raise ZeroDivisionError("broken")

    played.connect()
    played.answer = broken
    played.run(lambda: played.asked > 3)
    assert [record.getMessage() for record in caplog.records] == ["the slot watch failed"]
    played.answer = sample
    played.run(lambda: played.sampler.fresh)


def test_a_crossing_is_a_line_with_value_and_remedy(played: Played, caplog: pytest.LogCaptureFixture) -> None:
    def retained(status: Level, value: float, remedy: str | None) -> Health:
        return health(status, checks=(Check("retained", status, value, 0.5, 0.75, "kept", remedy),))

    played.connect()
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        for judged in (
            retained(Level.OK, 0.1, None),
            retained(Level.WARNING, 0.6, "look"),
            retained(Level.CRITICAL, 0.8, "act"),
            retained(Level.OK, 0.1, "none is needed any more"),
        ):
            played.judged = judged
            seen = played.asked
            played.run(lambda seen=seen: played.asked > seen + 4)  # type: ignore[misc]
    lines = [(each.levelname, each.getMessage(), each.__dict__["fields"]) for each in caplog.records]
    told = [
        (level, text, fields["value"], fields["threshold"], fields["next"]) for level, text, fields in lines
    ]
    assert told == [
        ("WARNING", "threshold crossed", 0.6, 0.5, "look"),
        ("ERROR", "threshold crossed", 0.8, 0.75, "act"),
        ("INFO", "threshold left", 0.1, 0.5, None),
    ]
    assert {fields["signal"] for _, _, fields in lines} == {"retained"}


def test_nothing_is_said_before_a_session_is_admitted(
    played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    """A start that is refused for a mistyped name has the better step; once it isn't refused, it is said."""
    wrong = Check("publication", Level.CRITICAL, None, None, None, "outbox_pb does not exist", "make it")
    played.judged = health(Level.CRITICAL, checks=(wrong,))
    played.connect(admitted=False)
    played.run(lambda: played.asked > 3)
    assert not caplog.records
    assert played.sampler.health is played.judged
    played.status.admitted = True
    seen = played.asked
    played.run(lambda: played.asked > seen + 3)
    assert [each.getMessage() for each in caplog.records] == ["threshold crossed"]


def test_a_step_has_the_flags_that_were_given(played: Played) -> None:
    played.sampler = Sampler(SETTINGS, played.status, repeat=lambda text: f"{text} --config shop.toml")
    played.judged = replace(health(Level.CRITICAL), next="cdc-outbox start")
    played.connect()
    played.run(lambda: played.sampler.fresh)
    told = played.sampler.health
    assert told is not None
    assert told.next == "cdc-outbox start --config shop.toml"


@pytest.mark.parametrize("ahead", [-400.0, 0.0, 400.0])
def test_ages_are_by_the_servers_clock(ahead: float, played: Played) -> None:
    """A commit of five seconds ago is five seconds old, whatever time it is for the server."""
    played.answer = lambda: sample(at=datetime.now(UTC) + timedelta(seconds=ahead))
    played.connect()
    played.run(lambda: played.sampler.fresh)
    now = time.time()
    played.status.tally.last_acknowledged = now - 7
    played.status._waiting_since_us = round((now + ahead - 5) * 1_000_000)
    told = played.sampler._delivery()
    assert told.oldest_unacknowledged_seconds == pytest.approx(5, abs=1)
    assert told.last_acknowledged_at is not None
    assert told.last_acknowledged_at.timestamp() == pytest.approx(now + ahead - 7, abs=1)


def test_who_reads_nothing_doesnt_know_what_waits(played: Played) -> None:
    played.status.change(State.STANDBY, "pid 7 has the slot")
    assert played.sampler._delivery().oldest_unacknowledged_seconds is None


def test_a_relay_that_is_held_says_its_own_step_of_now(played: Played) -> None:
    played.status.trouble(KafkaUnavailable("no broker answers", next="start one"))
    played.status.trouble(PostgresUnavailable("nothing listens", next="start the server"))
    played.status.change(State.HELD, "no broker answers")
    told = played.sampler._delivery()
    assert (told.stuck, told.reason, told.next) == (True, "no broker answers", "start one")
    played.status.change(State.STREAMING)
    told = played.sampler._delivery()
    assert (told.stuck, told.reason, told.next) == (False, None, None)
