"""From a sample to a status, a summary and one next step."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from cdc_outbox.errors import MissingRight, PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.postgres.witness import Absent, Incident, IncidentKind, Witness
from cdc_outbox.settings import HealthSettings
from cdc_outbox.watch.checks import judge, unreachable
from cdc_outbox.watch.forecast import Course
from cdc_outbox.watch.health import Check, Delivery, Health, Level, worst
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.render.text import text
from cdc_outbox.watch.sample import Holder, Limits, Sample
from cdc_outbox.watch.thresholds import Thresholds
from tests.unit.sampled import AT, MIB, SLOT, sample, slot
from tests.unit.test_forecast import HOLDER, START, at

GIB = 1024 * MIB
WITNESS = Witness("outbox_slot", "7", 1, LSN(START), updated_at=AT)


def judged(
    *course: Sample,
    delivery: Delivery | None = None,
    warning: dict[str, str] | None = None,
    critical: dict[str, str] | None = None,
    volume: int | None = None,
    known: Known = Known.NAMED,
) -> Health:
    followed = Course(volume=volume)
    *_, forecast = [followed.add(each) for each in course]
    thresholds = Thresholds.of(HealthSettings(warning or {}, critical or {}))
    return judge(course[-1], forecast, thresholds, delivery, volume=volume, known=known)


def check(health: Health, name: str) -> Check:
    return next(each for each in health.checks if each.name == name)


def stopped(seconds: float, **changes: Any) -> Sample:
    """A slot that nobody reads for so many seconds, with everything else well."""
    given = sample(**changes)
    since = given.at - timedelta(seconds=seconds)
    return replace(given, slot=slot(active=False, active_pid=None, inactive_since=since))


def test_all_is_well() -> None:
    health = judged(at(0, written=0, active=True), at(1, written=MIB, confirmed=MIB, active=True))
    assert health.status is Level.OK
    assert health.next is None
    assert health.culprit is None
    assert health.summary == "active, caught up; WAL kept 1.0 MiB of 1.0 GiB (0 %)"


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


class TestRetained:
    @pytest.mark.parametrize(
        ("kept", "status"),
        [(500, Level.OK), (512, Level.WARNING), (767, Level.WARNING), (768, Level.CRITICAL)],
    )
    def test_as_a_share_of_the_limit(self, kept: int, status: Level) -> None:
        # Read and catching up, so that there is no time to a loss.
        health = judged(
            at(0, written=kept * MIB, active=True),
            at(1, written=kept * MIB, confirmed=100 * MIB, active=True),
        )
        assert check(health, "retained").status is health.status is status
        assert health.advice is None

    @pytest.mark.parametrize(
        ("kept", "status"), [(1023, Level.OK), (1024, Level.WARNING), (5120, Level.CRITICAL)]
    )
    def test_in_bytes_without_a_limit(self, kept: int, status: Level) -> None:
        health = judged(at(0, written=kept * MIB, active=True, limit=None))
        assert check(health, "retained_bytes").status is status
        assert health.advice is not None
        assert health.advice.startswith("without max_slot_wal_keep_size")

    @pytest.mark.parametrize(("kept", "status"), [(9, Level.OK), (10, Level.WARNING), (25, Level.CRITICAL)])
    def test_as_a_share_of_the_volume(self, kept: int, status: Level) -> None:
        health = judged(at(0, written=kept * GIB, active=True, limit=None), volume=100 * GIB)
        assert check(health, "retained_volume").status is status
        assert f"on a volume of 100.0 GiB ({kept} %)" in health.summary

    @pytest.mark.parametrize(
        ("word", "status"),
        [
            ("reserved", Level.OK),
            ("extended", Level.WARNING),
            ("unreserved", Level.CRITICAL),
            ("lost", Level.CRITICAL),
        ],
    )
    def test_wal_status(self, word: str, status: Level) -> None:
        health = judged(sample(slot=slot(wal_status=word)))
        assert check(health, "wal_status").status is status

    def test_wal_status_is_named_where_nothing_else_is_as_bad(self) -> None:
        extended = sample(slot=slot(wal_status="extended"))
        assert "wal_status is extended; WAL kept" in judged(extended).summary
        assert "wal_status" not in judged(extended, warning={"retained": "1%"}).summary

    def test_a_wal_status_of_a_server_to_come_is_unknown(self) -> None:
        health = judged(sample(slot=slot(wal_status="borrowed")))
        assert (health.status, check(health, "wal_status").status) == (Level.OK, Level.UNKNOWN)


class TestTimeToLoss:
    @pytest.mark.parametrize(
        ("rate", "status"), [(0.04, Level.OK), (0.06, Level.WARNING), (0.3, Level.CRITICAL)]
    )
    def test_by_hours(self, rate: float, status: Level) -> None:
        health = judged(at(0, written=0), at(10, written=int(rate * 10 * MIB)))
        assert check(health, "time_to_loss").status is status
        assert "lost in about" in health.summary

    def test_is_unknown_without_a_limit_and_says_so(self) -> None:
        health = judged(at(0, written=0, limit=None), at(1, written=MIB, limit=None))
        found = check(health, "time_to_loss")
        assert (found.status, found.value) == (Level.UNKNOWN, None)
        assert "--wal-volume-size" in found.message
        assert health.document()["forecast"]["seconds_to_loss"] is None


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


class TestHeld:
    def test_by_whom_and_not_by_the_relay(self) -> None:
        known: dict[str, Any] = {"active": True, "oldest": HOLDER}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=520 * MIB, confirmed=520 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.document() == {
            "kind": "transaction",
            "pid": 815,
            "gid": None,
            "slot": None,
            "user": "app",
            "application": "batch",
            "database": "app",
            "age_seconds": None,
            "query_start": None,
            "held_bytes": 520 * MIB,
            "message": "pid 815 (user app, database app, application batch, age unknown) holds 0.5 GiB of WAL that"
            " was delivered; grant pg_read_all_stats to the relay's role, and its age is shown",
        }
        assert health.summary.startswith("active, caught up; pid 815 (user app")
        assert health.next == "let that transaction end, or end it: select pg_terminate_backend(815);"

    def test_a_prepared_one_by_its_name_as_sql_spells_it(self) -> None:
        known: dict[str, Any] = {"active": True, "oldest_prepared": replace(HOLDER, pid=None, gid="it's")}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=520 * MIB, confirmed=520 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.kind == "prepared_transaction"
        assert health.next == "in database app: rollback prepared 'it''s'; or commit prepared"

    def test_with_its_age_where_it_may_be_seen(self) -> None:
        began = AT - timedelta(hours=3)
        seen = replace(HOLDER, began=began, query_began=began + timedelta(minutes=2))
        known: dict[str, Any] = {"active": True, "oldest": seen, "sees_sessions": True}
        health = judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **known),
            at(1, written=420 * MIB, confirmed=420 * MIB, **known),
        )
        assert health.culprit is not None
        assert health.culprit.age_seconds == 3 * 3600 + 1
        assert "open for 3h, query since 07:02:00Z) holds" in health.culprit.message
        assert "grant" not in health.culprit.message

    def test_by_another_slot(self) -> None:
        other = slot(
            name="abandoned", active=False, restart_lsn=LSN(START - 900 * MIB), wal_status="extended"
        )
        health = judged(at(0, written=MIB, active=True, others=(other,)))
        assert health.culprit is not None
        assert (health.culprit.kind, health.culprit.slot) == ("slot", "abandoned")
        assert "nobody reads from it" in health.culprit.message
        assert health.status is Level.OK


class TestPublication:
    GONE = PublicationState("outbox_pub", "publication outbox_pub does not exist", "create it", None, None)

    def test_a_problem_is_critical_whatever_the_figures(self) -> None:
        health = judged(sample(publication=self.GONE, publishes=()))
        assert health.status is Level.CRITICAL
        assert health.next == "create it"
        assert "publication outbox_pub does not exist" in health.summary
        assert health.document()["publication"] == {
            "name": "outbox_pub",
            "ok": False,
            "problem": "publication outbox_pub does not exist",
        }

    def test_of_another_tools_slot_it_is_unknown(self) -> None:
        debezium = Holder(4711, "debezium", "Debezium Streaming", None, None)
        health = judged(sample(publication=self.GONE, publishes=(), holder=debezium), known=Known.DEFAULT)
        assert health.status is Level.OK
        assert check(health, "publication").status is Level.UNKNOWN
        assert health.document()["publication"] == {"name": None, "ok": None, "problem": None}

    @pytest.mark.parametrize(
        "ours",
        [
            {"witness": replace(WITNESS, position=LSN(2 * START))},
            {"holder": Holder(4711, "relay", "cdc-outbox/outbox_slot", None, None)},
        ],
        ids=["witness", "reader"],
    )
    def test_of_our_own_slot_it_is_missing_all_the_same(self, ours: dict[str, Any]) -> None:
        health = judged(sample(publication=self.GONE, publishes=(), **ours), known=Known.DEFAULT)
        assert health.status is Level.CRITICAL

    def test_one_that_is_guessed_neither_blames_nor_praises(self) -> None:
        for publication in (self.GONE, sample().publication):
            mine = judged(sample(publication=publication), known=Known.GUESSED)
            assert mine.status is Level.UNKNOWN, "the witness row can't be read"
            assert "isn't known through which publication" in check(mine, "publication").message
            theirs = judged(sample(publication=publication, witness=Absent.ROW), known=Known.GUESSED)
            assert theirs.status is Level.OK

    def test_one_that_was_read_through_and_is_gone(self) -> None:
        health = judged(sample(), known=Known.GONE)
        assert health.status is Level.CRITICAL
        assert "the publication that slot outbox_slot was read through is gone" in health.summary
        assert health.next == "name the one that took its place with --publication"
        assert judged(sample(publication=self.GONE), known=Known.GONE).next == "create it"


class TestIncidents:
    MADE_AGAIN = Incident(IncidentKind.MADE_AGAIN, AT, LSN(16), LSN(32), "publication p was made again")
    HIDDEN = Incident(IncidentKind.HIDDEN, AT, LSN(16), LSN(32), "publication p lacks the table")
    ALTERED = Incident(IncidentKind.ALTERED, AT, LSN(16), LSN(32), "publication p was altered")

    def found(self, *incidents: Incident, **changes: Any) -> Health:
        witness = replace(WITNESS, position=LSN(2 * START), incidents=incidents)
        return judged(sample(witness=witness, **changes))

    @pytest.mark.parametrize("incident", [MADE_AGAIN, HIDDEN, ALTERED])
    def test_each_is_critical_until_it_is_accepted(self, incident: Incident) -> None:
        health = self.found(incident)
        assert health.status is Level.CRITICAL
        assert incident.message in health.summary
        assert health.next is not None
        assert ("start --slot outbox_slot --accept-gap" in health.next) == incident.kind.bars
        assert ("health --slot outbox_slot --accept" in health.next) == (not incident.kind.bars)
        assert self.found().status is Level.OK

    def test_what_still_lasts_is_said_once(self) -> None:
        lacks = PublicationState("p", "publication p lacks the table", "add it", None, None)
        health = self.found(self.HIDDEN, publication=lacks)
        assert health.summary.count("lacks the table") == 1


def test_a_hot_standby_is_reached_and_knows_nothing_of_what_waits() -> None:
    asked = check(judged(sample(), delivery=Delivery(state="standby")), "oldest_unacknowledged")
    assert (asked.status, asked.message) == (
        Level.UNKNOWN,
        "not known: the relay says standby, and reads nothing",
    )
    alone = check(judged(sample()), "oldest_unacknowledged")
    assert alone.message == "not known: the relay's /status is not reachable from here"


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


class TestPosition:
    def test_beyond_the_witness(self) -> None:
        witness = replace(WITNESS, position=LSN(START + MIB))
        moved: dict[str, Any] = {"written": 9 * MIB, "confirmed": 5 * MIB, "active": True, "witness": witness}
        health = judged(at(0, **moved), at(1, **moved))
        assert health.status is Level.CRITICAL
        assert check(health, "position").status is Level.CRITICAL
        assert "those between may be missing" in health.summary

    def test_a_row_that_was_read_a_moment_earlier_is_no_gap(self) -> None:
        witness = replace(WITNESS, position=LSN(START + MIB))
        health = judged(
            at(0, written=9 * MIB, confirmed=MIB, active=True, witness=witness),
            at(1, written=9 * MIB, confirmed=5 * MIB, active=True, witness=witness),
        )
        assert check(health, "position").status is Level.OK

    def test_beyond_the_end_of_the_wal(self) -> None:
        health = judged(sample(slot=slot(confirmed_flush_lsn=LSN(0x1400001))))
        assert health.status is Level.CRITICAL
        assert "beyond the end of the server's WAL" in health.summary

    def test_on_another_server(self) -> None:
        health = judged(sample(witness=replace(WITNESS, position=LSN(2 * START), system_identifier="8")))
        assert check(health, "position").status is Level.CRITICAL


class TestSlot:
    def of(self, found: Slot | None, **changes: Any) -> Health:
        return judged(sample(slot=found, **changes))

    def test_missing(self) -> None:
        other = slot(name="another")
        health = self.of(None, others=(other,), witness=Absent.ROW)
        assert health.status is Level.CRITICAL
        assert health.summary == 'there is no replication slot "outbox_slot"; this database has: another'
        assert health.next == "cdc-outbox init --slot outbox_slot"
        assert health.document()["slot"]["exists"] is False

    def test_a_name_that_is_much_like_another(self) -> None:
        others = (slot(name="another"), slot(name="outbox_slto"))
        assert self.of(None, others=others, witness=Absent.ROW).next == (
            "if outbox_slto is meant: cdc-outbox health --slot outbox_slto; else, to make outbox_slot: "
            "cdc-outbox init --slot outbox_slot"
        )
        assert "if " not in str(self.of(None, others=others, witness=WITNESS).next), "this one was there"

    def test_on_its_way_to_a_standby(self) -> None:
        """PostgreSQL's own worker has it, as a temporary one, until the primary's has moved on."""
        worker = Holder(4711, None, "", None, None)
        half = slot(temporary=True, synced=True, confirmed_flush_lsn=None)
        health = self.of(half, in_recovery=True, insert_lsn=None, holder=worker)
        assert (health.status, check(health, "slot").status) == (Level.WARNING, Level.WARNING)
        assert health.summary.startswith('the slot "outbox_slot" is on its way to this standby')
        assert health.next is not None
        assert "select pg_log_standby_snapshot();" in health.next
        assert "active, pid 4711, wal_status reserved" in text(health)

    def test_on_a_standby_that_does_not_carry_it(self) -> None:
        """The witness row came with the data, and proves no loss there."""
        health = self.of(None, in_recovery=True, insert_lsn=None, witness=WITNESS, version=160000)
        assert health.status is Level.CRITICAL
        assert (
            health.summary
            == 'this server is a standby, and has no replication slot "outbox_slot" of the primary\'s'
        )
        assert health.next is not None
        assert health.next.startswith("look at the primary: cdc-outbox health --slot outbox_slot")

    def test_gone_with_a_witness_left(self) -> None:
        health = self.of(None, witness=WITNESS)
        assert "the replication slot outbox_slot is gone; events were delivered up to" in health.summary
        assert health.next is not None
        assert health.next.startswith("recover")

    def test_only_the_pending_one(self) -> None:
        health = self.of(None, pending=slot(name="outbox_slot_pending", active=False), witness=WITNESS)
        assert health.status is Level.CRITICAL
        assert health.summary.startswith('only "outbox_slot_pending" exists')
        assert health.document()["slot"]["exists"] is False
        assert health.document()["slot"]["retained_bytes"] == 4 * MIB

    def test_a_name_that_only_a_pending_one_has(self) -> None:
        """Streamed from it could not be, so nobody is told to."""
        given = sample(name="outbox_slot_pending", slot=slot(name="outbox_slot_pending"))
        health = judged(given)
        assert health.status is Level.CRITICAL
        assert 'is how the slot "outbox_slot" is called until it is ready' in health.summary
        assert "cdc-outbox start" not in (health.next or "")

    def test_only_a_pending_one_that_is_lost(self) -> None:
        lost = slot(name="outbox_slot_pending", active=False, wal_status="lost", safe_wal_size=None)
        health = self.of(None, pending=lost)
        steps = [each.next or "" for each in health.checks if each.status is Level.CRITICAL]
        assert len(steps) >= 2
        assert all("cdc-outbox backfill" in each for each in steps)
        assert not any("--no-backfill" in each for each in steps)

    def test_lost(self) -> None:
        gone = slot(active=False, wal_status="lost", safe_wal_size=None, restart_lsn=None)
        health = self.of(gone)
        assert health.status is Level.CRITICAL
        assert health.summary.startswith('the replication slot "outbox_slot" is lost')
        assert health.next is not None
        assert health.next.startswith("recover")
        assert check(health, "time_to_loss").message == "the slot is lost"
        document = health.document()
        assert document["slot"]["safe_wal_bytes"] is None
        assert document["forecast"] | {"basis": None} == {
            "loss": "now",
            "seconds_to_loss": 0.0,
            "caught_up": "never",
            "seconds_to_caught_up": None,
            "basis": None,
        }

    @pytest.mark.parametrize("reason", ["idle_timeout", "rows_removed", "wal_level_insufficient"])
    def test_for_one_that_was_given_up_nothing_is_kept(self, reason: str) -> None:
        """It has its restart_lsn still, from which the WAL goes on to grow without end."""
        gone = slot(active=False, wal_status="lost", safe_wal_size=None, invalidation_reason=reason)
        health = self.of(gone)
        assert gone.restart_lsn is not None
        assert health.document()["slot"]["retained_bytes"] is None
        assert check(health, "retained").status is Level.UNKNOWN
        assert "WAL kept" not in health.summary

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"slot_type": "physical", "plugin": None, "database": None, "here": False},
                "is a physical replication slot",
            ),
            ({"database": "shop", "here": False}, 'belongs to the database "shop"'),
            ({"plugin": "wal2json"}, 'belongs to the output plugin "wal2json"'),
            ({"temporary": True}, "is temporary"),
        ],
    )
    def test_not_ours_to_use(self, changes: dict[str, Any], words: str) -> None:
        health = self.of(slot(**changes))
        assert health.status is Level.CRITICAL
        assert words in health.summary
        assert health.next


def test_a_synchronous_standby_is_critical() -> None:
    health = judged(sample(synchronous_standby_names="ANY 1 (*)"))
    assert health.status is Level.CRITICAL
    assert "every COMMIT of the application would wait" in health.summary


def test_a_standby_that_delivery_waits_for_is_named() -> None:
    waits = sample(slot=slot(failover=True), synchronized_standby_slots="away", others=())
    health = judged(waits)
    assert health.status is Level.WARNING
    assert "delivery waits for away of synchronized_standby_slots" in health.summary
    there = slot(name="away", slot_type="physical", active=True, here=False)
    assert judged(replace(waits, others=(there,))).status is Level.OK


@pytest.mark.parametrize(
    ("age", "status"), [(99_999_999, Level.OK), (10**8, Level.WARNING), (5 * 10**8, Level.CRITICAL)]
)
def test_catalog_xmin_age(age: int, status: Level) -> None:
    assert judged(sample(catalog_xmin_age=age)).status is status


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


def test_a_limit_of_nought_is_no_division_by_it() -> None:
    tight = sample(
        limits=Limits(slot_keep=0, wal_keep=0, segment=16 * MIB),
        slot=replace(SLOT, safe_wal_size=9),
    )
    assert check(judged(tight), "retained").value == pytest.approx(0.25)


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
