"""What the witness says at start: each case in which a relay may, or may not, go on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime

import pytest

from cdc_outbox.errors import GapFound, SlotMissing
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.publication_identity import Identity, Member, Row
from cdc_outbox.postgres.server import Server
from cdc_outbox.postgres.witness import Absent, Incident, IncidentKind, Witness, judge

IDENTITY = Identity(Row(1, "10"), (("public.outbox", Member(2, 3, frozenset({Row(4, "11")}))),))
SERVER = Server(
    version=180001, system_identifier="77", timeline=1, in_recovery=False, place="h:5432", started="1.5"
)
WITNESS = Witness("s", "77", 1, LSN.parse("0/500"), str(IDENTITY))
INCIDENT = Incident(
    IncidentKind.MADE_AGAIN,
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    LSN.parse("0/400"),
    LSN.parse("1/0"),
    "publication p was made again between 0/400 and 1/0",
)


@dataclass(frozen=True)
class Slot:
    confirmed_flush_lsn: LSN | None
    synced: bool = False


@pytest.mark.parametrize("confirmed", ["0/1", "0/4FF", "0/500"])
def test_a_slot_at_or_behind_the_witness_goes_on(confirmed: str) -> None:
    verdict = judge("s", WITNESS, Slot(LSN.parse(confirmed)), SERVER)
    assert verdict.error is None
    assert verdict.note is None


def test_a_slot_beyond_the_witness_is_a_gap_with_its_range() -> None:
    error = judge("s", WITNESS, Slot(LSN.parse("0/501")), SERVER).error
    assert isinstance(error, GapFound)
    assert error.exit_code == 78
    assert "0/500" in str(error)
    assert "0/501" in str(error)
    assert "recover" in error.next
    assert "cdc-outbox start --slot s --accept-gap" in error.next


def test_a_row_without_a_slot_is_a_slot_that_went_away() -> None:
    error = judge("s", WITNESS, None, SERVER).error
    assert isinstance(error, SlotMissing)
    assert "0/500" in str(error)
    assert "recover" in error.next


def test_another_system_is_a_gap() -> None:
    error = judge("s", WITNESS, Slot(LSN(1)), replace(SERVER, system_identifier="78")).error
    assert isinstance(error, GapFound)
    assert "77" in str(error)
    assert "78" in str(error)


def test_another_timeline_passes_only_with_a_slot_that_was_carried_over() -> None:
    promoted = replace(SERVER, timeline=2)
    carried = judge("s", WITNESS, Slot(LSN.parse("0/600"), synced=True), promoted)
    assert carried.error is None
    assert carried.note is not None
    assert "timeline 1 to 2" in carried.note
    assert isinstance(judge("s", WITNESS, Slot(LSN.parse("0/100")), promoted).error, GapFound)


def test_a_slot_that_was_carried_over_earlier_may_still_have_a_gap() -> None:
    assert isinstance(judge("s", WITNESS, Slot(LSN.parse("0/600"), synced=True), SERVER).error, GapFound)


@pytest.mark.parametrize("absent", Absent)
def test_without_a_witness_the_relay_runs_and_says_so(absent: Absent) -> None:
    verdict = judge("s", absent, Slot(LSN(9)), SERVER)
    assert verdict.error is None
    assert verdict.note


def test_an_incident_survives_its_json() -> None:
    assert Incident.from_json(INCIDENT.as_json()) == INCIDENT
