"""Who reads from the slot, and for how long what waits has waited."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.witness import Absent
from cdc_outbox.watch.health import Delivery, Level
from tests.unit.judged import WITNESS, check, judged, stopped
from tests.unit.sampled import AT, MIB, START, at, sample, slot


class TestInactive:
    @pytest.mark.parametrize(
        ("seconds", "status", "words"),
        [
            (59, Level.OK, "inactive for 59s"),
            (60, Level.WARNING, "inactive for 1m"),
            (599, Level.WARNING, "inactive for 9m"),
            (600, Level.CRITICAL, "inactive for 10m"),
        ],
    )
    def test_by_its_own_time(self, seconds: float, status: Level, words: str) -> None:
        health = judged(stopped(seconds))
        assert health.status is status
        assert health.summary.startswith(words)
        assert health.next == (None if status is Level.OK else "cdc-outbox start --slot outbox_slot")
        assert health.document()["slot"]["inactive_seconds"] == seconds

    def test_before_17_by_the_witness(self) -> None:
        witness = replace(WITNESS, position=LSN(2 * START), updated_at=AT - timedelta(minutes=3))
        idle = replace(stopped(0), slot=slot(active=False), version=150000, witness=witness)
        health = judged(idle)
        assert check(health, "inactive").value == 180
        assert health.summary.startswith("inactive for at most 3m")

    @pytest.mark.parametrize(("seconds", "status"), [(5, Level.OK), (65, Level.WARNING)])
    def test_before_17_since_it_was_seen_to_end(self, seconds: float, status: Level) -> None:
        """The witness row of a quiet database is hours old, and its relay was there a moment ago."""
        witness = replace(WITNESS, position=LSN(2 * START), updated_at=AT - timedelta(hours=5))
        known: dict[str, Any] = {"written": 0, "version": 150000, "witness": witness}
        health = judged(at(0, active=True, **known), at(4, **known), at(4 + seconds, **known))
        assert (health.status, check(health, "inactive").value) == (status, seconds)
        assert health.summary.startswith(f"inactive for {'5s' if seconds == 5 else '1m'};")

    def test_before_17_without_a_witness_nobody_knows(self) -> None:
        idle = replace(stopped(0), slot=slot(active=False), version=150000, witness=Absent.TABLE)
        health = judged(idle)
        assert check(health, "inactive").value is None
        assert health.status is Level.UNKNOWN
        assert "PostgreSQL 15 doesn't tell since when" in health.summary

    def test_before_17_as_long_as_it_was_seen(self) -> None:
        course = [at(seconds, written=0) for seconds in (0, 300, 700)]
        course = [replace(each, version=150000) for each in course]
        assert judged(*course[:2]).status is Level.WARNING
        assert judged(*course).status is Level.CRITICAL
        assert judged(*course).summary.startswith("inactive for at least 11m")

    def test_on_a_standby_it_is_no_fault(self) -> None:
        health = judged(replace(stopped(5000), in_recovery=True, insert_lsn=None))
        assert health.status is Level.OK
        assert health.summary.startswith("on a standby")


class TestDelivery:
    @pytest.mark.parametrize(
        ("seconds", "status"),
        [(None, Level.OK), (0.0, Level.OK), (30.0, Level.WARNING), (300.0, Level.CRITICAL)],
    )
    def test_oldest_unacknowledged(self, seconds: float | None, status: Level) -> None:
        health = judged(sample(), delivery=Delivery(seconds, AT))
        assert health.status is status
        assert health.document()["delivery"]["oldest_unacknowledged_seconds"] == seconds

    @pytest.mark.parametrize(
        ("seconds", "status"), [(59, Level.OK), (61, Level.WARNING), (301, Level.CRITICAL)]
    )
    def test_stalled(self, seconds: float, status: Level) -> None:
        waits = at(0, written=500 * MIB, confirmed=100 * MIB, active=True, limit=None)
        health = judged(waits, delivery=Delivery(None, waits.at - timedelta(seconds=seconds)))
        assert check(health, "stalled").status is status

    def test_what_little_waits_isnt_stalled(self) -> None:
        waits = at(0, written=MIB, confirmed=0, active=True)
        health = judged(waits, delivery=Delivery(None, waits.at - timedelta(hours=9)))
        assert check(health, "stalled").status is Level.OK

    def test_stalled_by_the_witness(self) -> None:
        waits = at(
            0, written=500 * MIB, active=True, witness=replace(WITNESS, updated_at=AT - timedelta(minutes=7))
        )
        assert check(judged(waits), "stalled").status is Level.CRITICAL

    def test_stalled_by_what_was_seen(self) -> None:
        course = [at(seconds, written=500 * MIB, active=True) for seconds in (0, 400)]
        assert check(judged(*course), "stalled").status is Level.CRITICAL
        moved = [course[0], at(400, written=500 * MIB, confirmed=MIB, active=True)]
        assert check(judged(*moved), "stalled").status is Level.OK

    @pytest.mark.parametrize("burst", [3 * MIB, 800 * MIB])
    def test_a_burst_after_a_quiet_hour_has_waited_for_no_longer_than_it_is_there(self, burst: int) -> None:
        """Nothing was acknowledged for an hour, since there was nothing."""
        witness = replace(WITNESS, updated_at=AT)
        quiet = [at(second, written=0, active=True, witness=witness) for second in range(0, 3600, 4)]
        came = [at(second, written=burst, active=True, witness=witness) for second in (3600, 3604, 3608)]
        old = Delivery(0.0, AT)
        for count in range(1, 4):
            found = check(judged(*quiet, *came[:count], delivery=old), "stalled")
            assert (found.status, found.value) == (Level.OK, 4.0 * count)
        late = at(3596 + 300, written=burst, active=True, witness=witness)
        assert check(judged(*quiet, *came, late, delivery=old), "stalled").status is Level.CRITICAL

    def test_one_look_doesnt_tell_how_long(self) -> None:
        found = check(judged(at(0, written=500 * MIB, active=True)), "stalled")
        assert (found.status, found.value) == (Level.UNKNOWN, None)

    def test_the_relays_own_state_is_named(self) -> None:
        health = judged(sample(), delivery=Delivery(45.0, AT, "held", "no broker answers"))
        assert health.summary.startswith("held (no broker answers); the oldest commit")

    @pytest.mark.parametrize("state", ["held", "blocked"])
    def test_one_that_is_stuck_is_a_warning_at_once_with_its_own_step(self, state: str) -> None:
        stuck = Delivery(0.0, AT, state, "topic a.b is missing", None, "make it")
        for reader in (sample(), stopped(3)):
            health = judged(reader, delivery=stuck)
            assert (health.status, health.next) == (Level.WARNING, "make it")
        assert judged(sample(), delivery=stuck).summary.startswith(
            f"{state} (topic a.b is missing); WAL kept"
        )
        assert judged(sample(), delivery=Delivery(0.0, AT, "streaming")).status is Level.OK
        assert judged(stopped(90), delivery=stuck).next == "make it", "start is what runs already"

    def test_what_comes_next_can_be_seen_while_the_relay_reads(self) -> None:
        health = judged(sample(), delivery=Delivery(45.0, AT, "streaming"))
        assert health.next is not None
        assert health.next.endswith("cdc-outbox peek --slot outbox_slot --follow")

    def test_what_is_late_isnt_called_caught_up_and_its_trouble_is_named(self) -> None:
        late = Delivery(45.0, AT, "streaming", None, "no broker answers", "start one")
        health = judged(at(0, written=0, active=True), at(1, written=0, active=True), delivery=late)
        assert health.status is Level.WARNING
        assert health.summary.startswith(
            "active, 0 B not confirmed; the oldest commit without an acknowledgement is 45s old (no broker answers)"
        )
        assert health.next == "start one"


def test_a_hot_standby_is_reached_and_knows_nothing_of_what_waits() -> None:
    asked = check(judged(sample(), delivery=Delivery(state="standby")), "oldest_unacknowledged")
    assert (asked.status, asked.message) == (
        Level.UNKNOWN,
        "not known: the relay says standby, and reads nothing",
    )
    alone = check(judged(sample()), "oldest_unacknowledged")
    assert alone.message == "not known: the relay's /status is not reachable from here"
