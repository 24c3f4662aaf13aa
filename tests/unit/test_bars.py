"""What bars delivery whatever the figures are: no slot, another hand on it, a publication that hides rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.postgres.witness import Absent, Incident, IncidentKind
from cdc_outbox.watch.health import Health, Level
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.render.text import text
from cdc_outbox.watch.sample import Holder
from tests.unit.judged import WITNESS, check, judged
from tests.unit.sampled import AT, MIB, START, at, sample, slot


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
