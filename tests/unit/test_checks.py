"""From a sample to a status, a summary and one next step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from cdc_outbox.errors import MissingRight, PostgresUnavailable
from cdc_outbox.watch.checks import unreachable
from cdc_outbox.watch.health import Level, worst
from tests.unit.judged import WITNESS, check, judged, stopped
from tests.unit.sampled import AT, MIB, at, sample


def test_all_is_well() -> None:
    health = judged(at(0, written=0, active=True), at(1, written=MIB, confirmed=MIB, active=True))
    assert health.status is Level.OK
    assert health.next is None
    assert health.culprit is None
    assert health.summary == "active, caught up; WAL kept 1.0 MiB of 1.0 GiB (0 %)"


class TestASingleLook:
    def test_a_reader_that_has_confirmed_lately_is_no_alarm(self) -> None:
        """A burst of others has just passed: what was written since is little, and none of it confirmed yet."""
        witness = replace(WITNESS, updated_at=AT - timedelta(seconds=8))
        known: dict[str, Any] = {"active": True, "witness": witness}
        health = judged(at(0, written=100 * MIB, **known), at(1, written=101 * MIB, **known))
        assert health.status is Level.OK, health.summary
        assert health.summary == "active, 101.0 MiB not confirmed; WAL kept 101.0 MiB of 1.0 GiB (10 %)"
        unsure = check(health, "time_to_loss")
        assert (unsure.status, unsure.value) == (Level.UNKNOWN, None)
        assert "nothing was confirmed in the moment that was looked at" in unsure.message


class TestThresholds:
    def test_are_replaced_one_by_one(self) -> None:
        idle = stopped(120)
        assert judged(idle).status is Level.WARNING
        assert judged(idle, warning={"inactive": "1h"}).status is Level.OK
        assert judged(idle, critical={"inactive": "2m"}).status is Level.CRITICAL

    def test_off_takes_one_away(self) -> None:
        assert (
            judged(stopped(9999), warning={"inactive": "off"}, critical={"inactive": "off"}).status
            is Level.OK
        )

    def test_are_shown_beside_their_value(self) -> None:
        document = judged(stopped(120), warning={"inactive": "90s"}).document()
        shown = next(each for each in document["checks"] if each["name"] == "inactive")
        assert (shown["value"], shown["warning"], shown["critical"]) == (120, 90, 600)


def test_the_gravest_counts() -> None:
    assert worst([Level.OK, Level.UNKNOWN]) is Level.UNKNOWN
    assert worst([Level.UNKNOWN, Level.WARNING]) is Level.WARNING
    assert worst([Level.CRITICAL, Level.WARNING]) is Level.CRITICAL
    assert worst([]) is Level.OK
    assert [level.exit_code for level in Level] == [0, 1, 2, 3]


class TestUnreachable:
    def test_is_critical(self) -> None:
        health = unreachable(
            "outbox_slot", PostgresUnavailable("nothing listens", next="start it"), last=sample()
        )
        assert (health.status, health.next) == (Level.CRITICAL, "start it")
        assert health.summary == "nothing listens; last seen 2026-05-04 10:00:00Z"
        assert health.document()["slot"]["exists"] is None

    def test_a_server_that_refuses_us_is_unknown(self) -> None:
        assert unreachable("outbox_slot", MissingRight("no", next="grant")).status is Level.UNKNOWN
