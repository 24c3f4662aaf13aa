"""What a look at the publication means after the looks before it, and when a snapshot is proven."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.errors import PublicationReplaced
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.guard import Finding, ProvenSnapshot, PublicationWatch
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.publication_identity import Identity, Member, Row
from cdc_outbox.postgres.witness import Incident, IncidentKind, Witness

IDENTITY = Identity(Row(1, "10"), (("public.outbox", Member(2, 3, frozenset({Row(4, "11")}))),))
ALTERED = replace(IDENTITY, publication=Row(1, "20"))
AGAIN = replace(IDENTITY, publication=Row(5, "20"))
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def sound(identity: Identity, ends: int) -> PublicationState:
    return PublicationState("p", None, "", identity, LSN(ends))


def wrong(problem: str, ends: int, identity: Identity | None = None) -> PublicationState:
    return PublicationState("p", problem, "mend it", identity, LSN(ends))


def test_the_first_look_without_a_witness_only_learns() -> None:
    watch = PublicationWatch()
    assert watch.look(sound(IDENTITY, 10), LSN(9)) == Finding()
    assert watch.known == IDENTITY
    assert watch.look(sound(IDENTITY, 20), LSN(19)) == Finding()


def test_altered_is_an_incident_between_the_two_looks() -> None:
    watch = PublicationWatch()
    watch.look(sound(IDENTITY, 10), LSN(9))
    incident = watch.look(sound(ALTERED, 20), LSN(19), at=NOW).incident
    assert incident is not None
    assert incident.kind is IncidentKind.ALTERED
    assert (incident.from_lsn, incident.to_lsn, incident.at) == (LSN(9), LSN(20), NOW)
    assert watch.look(sound(ALTERED, 30), LSN(29)) == Finding()


def test_made_again_since_the_witness_bars() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    incident = watch.look(sound(AGAIN, 20), LSN(19)).incident
    assert incident is not None
    assert incident.kind.bars
    assert (incident.from_lsn, incident.to_lsn) == (LSN(5), LSN(20))
    assert "made again between 0/5 and 0/14" in incident.message


def test_a_problem_holds_and_passes_with_the_same_identity() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    held = watch.look(wrong("publication p does not exist", 20), LSN(19))
    assert (held.problem, held.next) == ("publication p does not exist", "mend it")
    assert held.incident is not None
    assert held.incident.kind is IncidentKind.HIDDEN
    assert (held.incident.from_lsn, held.incident.to_lsn) == (LSN(5), LSN(20))
    assert watch.look(wrong("publication p does not exist", 25), LSN(24)).incident is None
    assert watch.look(sound(IDENTITY, 30), LSN(29)) == Finding()


def test_what_hid_rows_and_was_mended_by_an_alter_bars_with_the_whole_window() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    watch.look(wrong("publication p does not publish inserts", 20, ALTERED), LSN(19))
    watch.look(wrong("publication p does not publish inserts", 30, ALTERED), LSN(29))
    incident = watch.look(sound(replace(IDENTITY, publication=Row(1, "30")), 40), LSN(39)).incident
    assert incident is not None
    assert incident.kind is IncidentKind.MADE_AGAIN
    assert (incident.from_lsn, incident.to_lsn) == (LSN(5), LSN(40))
    assert "meanwhile publication p does not publish inserts" in incident.message


def test_rows_of_an_unlogged_table_are_lost_whatever_comes_after() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    unlogged = replace(wrong("table public.outbox is unlogged", 20, IDENTITY), traceless=True)
    hidden = watch.look(unlogged, LSN(19)).incident
    assert hidden is not None
    assert watch.look(unlogged, LSN(29)).incident is None
    for later in (watch, recalled(hidden)):
        incident = later.look(sound(IDENTITY, 40), LSN(39)).incident
        assert incident is not None
        assert (incident.from_lsn, incident.to_lsn) == (LSN(5), LSN(40))
        assert later.incidents == (incident,)
        with pytest.raises(PublicationReplaced, match="unlogged"):
            later.require("s")


def test_what_was_merely_hidden_first_may_lose_its_trace_later() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    watch.look(wrong("publication p lacks table public.outbox", 20), LSN(19))
    gone = replace(wrong("table public.outbox does not exist", 30), traceless=True)
    assert watch.look(gone, LSN(29)).incident is not None
    assert watch.look(wrong("publication p lacks table public.outbox", 35), LSN(34)).incident is None
    incident = watch.look(sound(IDENTITY, 40), LSN(39)).incident
    assert incident is not None
    assert (incident.kind, incident.from_lsn, incident.to_lsn) == (IncidentKind.MADE_AGAIN, LSN(5), LSN(40))


def recalled(*incidents: Incident, publication: str | None = str(IDENTITY)) -> PublicationWatch:
    """The watch of a process that has just read its witness row."""
    watch = PublicationWatch()
    watch.recall(Witness("s", "77", 1, LSN(5), publication, incidents))
    return watch


@pytest.mark.parametrize(
    "publication",
    [str(IDENTITY), None, "", "what another version wrote"],
    ids=["the same", "none", "empty", "of another version"],
)
def test_the_publication_of_the_witness_passes(publication: str | None) -> None:
    watch = recalled(publication=publication)
    assert watch.look(sound(IDENTITY, 10), LSN(9)) == Finding()
    watch.require("s")


def test_a_publication_made_again_while_nobody_looked_bars_until_it_is_accepted() -> None:
    watch = recalled()
    incident = watch.look(sound(AGAIN, 20), LSN(9)).incident
    assert incident is not None
    assert watch.unwritten == (incident,)
    for later in (watch, recalled(incident, publication=str(AGAIN))):
        later.look(sound(AGAIN, 30), LSN(29))
        with pytest.raises(PublicationReplaced, match="between 0/5 and 0/14") as caught:
            later.require("s")
        assert "cdc-outbox start --slot s --accept-gap" in caught.value.next
        later.accept()
        later.require("s")
        assert later.look(sound(AGAIN, 40), LSN(39)) == Finding()


def test_what_hid_rows_before_a_restart_and_was_altered_then_bars() -> None:
    before = PublicationWatch(IDENTITY, LSN(3))
    hidden = before.look(wrong("publication p does not publish inserts", 20, ALTERED), LSN(19)).incident
    assert hidden is not None
    watch = recalled(hidden)
    assert watch.hidden == (hidden,)
    assert watch.look(wrong("publication p does not publish inserts", 30, ALTERED), LSN(29)).incident is None
    incident = watch.look(sound(ALTERED, 40), LSN(39)).incident
    assert incident is not None
    assert incident.kind is IncidentKind.MADE_AGAIN
    assert (incident.from_lsn, incident.to_lsn) == (LSN(3), LSN(40))
    assert watch.incidents == (incident,)


def test_what_hid_rows_before_a_restart_and_passes_as_it_was_is_forgotten() -> None:
    hidden = PublicationWatch(IDENTITY, LSN(3)).look(wrong("no p", 20), LSN(19)).incident
    assert hidden is not None
    watch = recalled(hidden)
    assert watch.look(sound(IDENTITY, 40), LSN(39)) == Finding()
    assert watch.incidents == ()
    watch.require("s")


def test_what_hid_rows_and_was_never_known_otherwise_bars() -> None:
    hidden = PublicationWatch(IDENTITY, LSN(3)).look(wrong("no p", 20), LSN(19)).incident
    assert hidden is not None
    watch = recalled(hidden, publication=None)
    incident = watch.look(sound(IDENTITY, 40), LSN(39)).incident
    assert incident is not None
    assert incident.kind.bars


def test_an_altered_publication_bars_nobody() -> None:
    watch = recalled()
    incident = watch.look(sound(ALTERED, 20), LSN(9)).incident
    assert incident is not None
    assert "altered between 0/5 and 0/14" in incident.message
    watch.require("s")


def test_an_incident_that_could_not_be_written_is_kept_until_it_is() -> None:
    watch = PublicationWatch(IDENTITY, LSN(5))
    incident = watch.look(wrong("no p", 20), LSN(19)).incident
    assert incident is not None
    watch.recall(Witness("s", "77", 1, LSN(5), str(IDENTITY)))
    assert watch.hidden == (incident,)
    assert watch.unwritten == (incident,)


@pytest.mark.parametrize(
    ("xmin", "horizon", "since"),
    [
        ("10", 11, False),
        ("11", 11, True),
        ("12", 11, True),
        ("4294967290", 5, False),
        ("5", 4294967290, True),
    ],
)
def test_a_publication_is_older_than_the_slot_or_not(xmin: str, horizon: int, since: bool) -> None:
    old = Row(1, str((horizon - 5) % 2**32))
    young = Row(1, xmin)
    assert Identity(young, (("t", Member(2, 3, frozenset({old}))),)).since(horizon) is since
    assert Identity(old, (("t", Member(2, 3, frozenset({old, young}))),)).since(horizon) is since


def test_a_snapshot_is_proven_when_the_position_reaches_its_lsn() -> None:
    snapshots = ProvenSnapshot()
    snapshots.offer("1:1:", LSN(100))
    assert snapshots.advance(LSN(99)) is None
    snapshots.offer("2:2:", LSN(200))  # the first is still on its way
    assert snapshots.advance(LSN(100)) == "1:1:"
    snapshots.offer("3:3:", LSN(300))
    assert snapshots.advance(LSN(299)) == "1:1:"
    assert snapshots.advance(LSN(900)) == "3:3:"
    snapshots.offer("4:4:", None)  # a standby has no insert position
    assert snapshots.advance(LSN(999)) == "3:3:"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=50))
def test_no_snapshot_is_proven_early(steps: list[tuple[bool, int]]) -> None:
    snapshots = ProvenSnapshot()
    reached = 0
    for offers, lsn in steps:
        if offers:
            snapshots.offer(str(lsn), LSN(lsn))
        else:
            reached = max(reached, lsn)
            proven = snapshots.advance(LSN(reached))
            assert proven is None or int(proven) <= reached
