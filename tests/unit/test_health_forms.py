"""The forms of a health: text, document, monitoring plug-in, textfile, live table."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.witness import Incident, IncidentKind
from cdc_outbox.watch import words
from cdc_outbox.watch.checks import unasked, unreachable
from cdc_outbox.watch.health import Delivery, Health, several
from cdc_outbox.watch.reads import Known
from cdc_outbox.watch.render.nagios import nagios
from cdc_outbox.watch.render.prometheus import prometheus
from cdc_outbox.watch.render.table import line, redraw, table
from cdc_outbox.watch.render.text import headline, text
from cdc_outbox.watch.sample import Holder, Limits, Sample, Spill
from tests.unit.health_schema import SCHEMA, require_valid
from tests.unit.judged import WITNESS, judged
from tests.unit.sampled import GIB, HOLDER, MIB, START, at, sample, slot

NOW = datetime(2026, 5, 4, 10, 16, 11, tzinfo=UTC)


def page() -> Health:
    """A slot that nobody has read from for fourteen minutes."""

    def seen(seconds: float, written: int) -> Sample:
        lsn = LSN(4 * GIB + written)
        return sample(
            at=NOW + timedelta(seconds=seconds),
            current_lsn=lsn,
            insert_lsn=lsn,
            limits=Limits(4 * GIB, 0, 16 * MIB),
            slot=slot(
                active=False,
                active_pid=None,
                inactive_since=NOW - timedelta(minutes=14),
                restart_lsn=LSN(int(0.9 * GIB)),
                confirmed_flush_lsn=LSN(int(2.1 * GIB)),
                wal_status="extended",
                safe_wal_size=int(0.94 * GIB) - written,
            ),
            publishes=("inserts",),
        )

    return judged(seen(-10, 0), seen(0, 4 * MIB))


def test_text_is_a_line_for_a_pager_then_evidence_then_one_step() -> None:
    assert text(page()).splitlines() == [
        "outbox_slot  CRITICAL  inactive for 14m; WAL kept 3.1 GiB of 4.0 GiB (78 %), lost in about 39m at 0.4 MiB/s",
        "  slot          pgoutput, database app, inactive since 10:02:11Z, wal_status extended",
        "  delivery      1.9 GiB not confirmed",
        "  retention     3.1 GiB kept, 0.9 GiB left",
        "  publication   outbox_pub: public.outbox, inserts only",
        "  next step     cdc-outbox start --slot outbox_slot",
    ]


def test_text_of_a_healthy_slot_has_no_next_step() -> None:
    reader = Holder(4711, "relay", "cdc-outbox/outbox_slot", None, None)
    health = judged(sample(holder=reader), delivery=Delivery(0.0, NOW, "streaming"))
    lines = text(health).splitlines()
    assert lines[1].endswith("active, pid 4711 (user relay, cdc-outbox/outbox_slot), wal_status reserved")
    assert lines[2] == "  delivery      2.0 MiB not confirmed, relay streaming"
    assert not any("next step" in each for each in lines)


def test_a_relay_that_is_not_asked_is_not_praised() -> None:
    """What is stuck may be the little that isn't confirmed: only the relay knows."""
    reader = Holder(4711, "relay", "cdc-outbox/outbox_slot", None, None)
    behind = at(1, written=MIB, confirmed=MIB - 700, active=True)
    health = judged(at(0, written=0, active=True), replace(behind, holder=reader))
    lines = text(health).splitlines()
    assert "active, caught up but for 0.7 KiB;" in lines[0]
    assert "relay doesn't answer here: name its address with --http" in lines[2]


def test_a_relay_that_refuses_is_not_taken_for_one_that_is_not_there() -> None:
    reader = Holder(4711, "relay", "cdc-outbox/outbox_slot", None, None)
    health = judged(sample(holder=reader), delivery=Delivery(refusal="the token is missing or wrong"))
    said = text(health).splitlines()[2]
    assert "its relay tells us nothing: the token is missing or wrong; name the file with its token" in said
    messages = {each.name: each.message for each in health.checks}
    for name in ("relay", "oldest_unacknowledged"):
        assert messages[name] == "not known: the relay tells us nothing: the token is missing or wrong"


def test_text_has_colour_only_where_it_is_wanted() -> None:
    assert headline(page(), colour=True).startswith("outbox_slot  \x1b[31;1mCRITICAL\x1b[0m  inactive")
    assert "\x1b" not in text(page())


def test_a_hostile_application_name_cant_move_the_cursor() -> None:
    evil = replace(HOLDER, application="x\x1b[2J\ny|z")
    known: dict[str, Any] = {"active": True, "oldest": evil}
    health = judged(
        at(0, written=400 * MIB, confirmed=400 * MIB, **known),
        at(1, written=401 * MIB, confirmed=401 * MIB, **known),
    )
    assert "\x1b" not in text(health)
    assert text(health).count("\n") == len(text(health).splitlines()) - 1
    assert nagios([health]).splitlines()[0].count("|") == 1
    assert "\x1b" not in "".join(table([health], NOW, width=200, colour=False))


def test_nor_can_a_hostile_name_of_a_prepared_transaction() -> None:
    evil = replace(HOLDER, pid=None, gid="x\x1b]0;y\x07", application=None, began=NOW - timedelta(days=1))
    known: dict[str, Any] = {"active": True, "oldest_prepared": evil}
    health = judged(
        at(0, written=600 * MIB, confirmed=600 * MIB, **known),
        at(1, written=601 * MIB, confirmed=601 * MIB, **known),
    )
    assert health.next is not None
    assert "rollback prepared" in health.next
    for shown in (text(health), nagios([health]), "\n".join(table([health], NOW, width=200, colour=False))):
        assert all(each.isprintable() for each in shown.split("\n"))


def test_incidents_and_advice_have_their_lines() -> None:
    incident = Incident(IncidentKind.ALTERED, NOW, LSN(16), LSN(32), "publication outbox_pub was altered")
    witness = replace(WITNESS, position=LSN(2 * START), incidents=(incident,))
    limits = Limits(None, 0, 16 * MIB)
    lines = text(judged(sample(witness=witness, limits=limits, slot=slot(safe_wal_size=None)))).splitlines()
    assert "  incident      2026-05-04 10:16:11Z publication outbox_pub was altered" in lines
    assert any(each.startswith("  advice        without max_slot_wal_keep_size") for each in lines)
    assert any(each.endswith("kept, no max_slot_wal_keep_size") for each in lines)


def scenes() -> dict[str, Health]:
    hidden = PublicationState("outbox_pub", "publication outbox_pub does not exist", "create it", None, None)
    held: dict[str, Any] = {"active": True, "oldest": replace(HOLDER, began=NOW - timedelta(days=1))}
    return {
        "page": page(),
        "well": judged(sample(spill=Spill(1, 2)), delivery=Delivery(0.25, NOW, "streaming")),
        "missing": judged(sample(slot=None)),
        "pending": judged(sample(slot=None, pending=slot(name="outbox_slot_pending", active=False))),
        "lost": judged(
            sample(slot=slot(active=False, wal_status="lost", restart_lsn=None, safe_wal_size=None))
        ),
        "physical": judged(
            sample(
                slot=slot(
                    slot_type="physical", plugin=None, database=None, here=False, confirmed_flush_lsn=None
                )
            )
        ),
        "foreign": judged(sample(publication=hidden, publishes=()), known=Known.DEFAULT),
        "held": judged(
            at(0, written=400 * MIB, confirmed=400 * MIB, **held),
            at(1, written=401 * MIB, confirmed=401 * MIB, **held),
        ),
        "volume": judged(
            at(0, written=0, limit=None), at(1, written=MIB, limit=None, wal_bytes=64 * MIB), volume=100 * GIB
        ),
        "unreachable": unreachable("outbox_slot", PostgresUnavailable("nothing listens", next="start it")),
    }


@pytest.mark.parametrize("scene", scenes())
def test_the_document_is_as_its_schema_says(scene: str) -> None:
    require_valid(scenes()[scene].document())


def test_the_document_of_several_has_the_gravest_status() -> None:
    document = several([scenes()["well"], scenes()["missing"]])
    require_valid(document)
    assert document["status"] == "critical"
    assert [each["slot"]["exists"] for each in document["slots"]] == [True, False]


def test_the_schema_names_each_check() -> None:
    seen = {check.name for health in scenes().values() for check in health.checks}
    seen |= {check.name for check in judged(sample(witness=WITNESS)).checks}
    seen |= {check.name for check in judged(at(0, written=0, limit=None)).checks}
    seen |= {check.name for check in unasked("", "a flag is wrong", "another").checks}
    assert seen == set(SCHEMA["$defs"]["check"]["properties"]["name"]["enum"])


def test_a_plug_in_says_status_and_performance_data() -> None:
    first, *evidence = nagios([page()]).splitlines()
    said, _, data = first.partition(" | ")
    assert said.startswith("CDC-OUTBOX CRITICAL - outbox_slot: inactive for 14m; WAL kept 3.1 GiB")
    values = dict(re.findall(r"'(\w+)'=(\S+)", data))
    assert values["retained"] == "77.598%;50;75;0"
    assert values["inactive"] == "840s;60;600;0"
    assert re.fullmatch(r"2[0-9.]+s;21600:;3600:;0", values["time_to_loss"])
    assert values["unconfirmed_wal"].endswith("B;;;0")
    assert evidence[0].startswith("outbox_slot  CRITICAL")


def test_a_plug_in_gets_no_figure_twice() -> None:
    limits = Limits(None, 0, 16 * MIB)
    first = nagios([judged(sample(limits=limits, slot=slot(safe_wal_size=None)))]).splitlines()[0]
    assert "'retained_bytes'=" in first
    assert "retained_wal" not in first
    assert "'retained_wal'=" in nagios([page()])


def test_what_is_left_may_be_more_than_the_limit_by_a_segment() -> None:
    left = judged(sample(slot=slot(safe_wal_size=75 * MIB)))
    assert "75.0 MiB left, for the server counts whole segments" in text(left)


def test_a_plug_in_names_each_of_several_slots() -> None:
    other = replace(scenes()["well"], slot="other")
    first = nagios([page(), other]).splitlines()[0]
    assert first.startswith("CDC-OUTBOX CRITICAL - outbox_slot critical (inactive for 14m; WAL kept 3.1 GiB")
    assert "); other ok | " in first
    assert "'outbox_slot_retained'=" in first
    assert "'other_retained'=" in first


def test_a_textfile_has_each_family_once() -> None:
    healths = [page(), replace(scenes()["well"], slot="other")]
    healths[1] = replace(healths[1], sample=sample(name="other"))
    families = list(text_string_to_metric_families(prometheus(healths) + "\n"))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    active = next(family for family in families if family.name == "cdc_outbox_slot_active")
    assert {each.labels["slot"]: each.value for each in active.samples} == {"outbox_slot": 0.0, "other": 1.0}


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_textfile_of_several_says_that_one_publication_hides_rows(bad: int) -> None:
    states = [PublicationState("outbox_pub", None, "", None, None) for _ in range(3)]
    states[bad] = replace(states[bad], problem="publication outbox_pub hides rows", next="mend it")
    healths = [judged(sample(name=f"slot_{at}", publication=state)) for at, state in enumerate(states)]
    families = {each.name: each for each in text_string_to_metric_families(prometheus(healths) + "\n")}
    (told,) = families["cdc_outbox_publication_ok"].samples
    assert (told.labels, told.value) == ({}, 0.0)


@pytest.mark.parametrize("scene", scenes())
def test_a_textfile_can_be_read(scene: str) -> None:
    health = scenes()[scene]
    families = {each.name: each for each in text_string_to_metric_families(prometheus([health]) + "\n")}
    told = {each.labels["status"]: each.value for each in families["cdc_outbox_slot_health"].samples}
    assert told == {status: float(status == health.status.value) for status in told}
    assert ("cdc_outbox_slot_time_to_loss_seconds" in families) == (
        scene in ("page", "lost", "held", "volume")
    )


def test_the_table_fits_the_terminal_and_tells_what_isnt_well() -> None:
    lines = table([page(), replace(scenes()["well"], slot="other")], NOW, width=110, colour=False)
    assert lines[0] == "2026-05-04 10:16:11Z"
    assert lines[1].split()[:2] == ["slot", "status"]
    assert lines[2].split()[:2] == ["outbox_slot", "CRITICAL"]
    assert "in 39m" in lines[2]
    assert lines[3].split()[:2] == ["other", "OK"]
    assert lines[5].startswith("outbox_slot  CRITICAL  inactive for 14m")
    assert lines[6] == "  next step     cdc-outbox start --slot outbox_slot"
    assert max(map(len, lines)) <= 110
    narrow = table([page()], NOW, width=20, colour=False)
    assert all(len(each) <= 20 for each in narrow)
    told = "".join("".join(narrow[4:]).split())
    assert "lostinabout39m" in told
    assert told.endswith("cdc-outboxstart--slotoutbox_slot"), "nothing is cut off"


def test_the_table_replaces_itself() -> None:
    assert redraw(["a", "b"], 0) == "\r\x1b[Ja\nb\n"
    assert redraw(["a"], 2) == "\x1b[2A\r\x1b[Ja\n"


def test_a_line_has_its_time() -> None:
    assert line(page(), NOW).startswith("2026-05-04T10:16:11Z  outbox_slot  CRITICAL  inactive")


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 B"),
        (341, "341 B"),
        (342, "0.3 KiB"),
        (129 * MIB, "129.0 MiB"),
        (410 * 1024, "0.4 MiB"),
        (int(3.1 * GIB), "3.1 GiB"),
        (2**63, "8.0 EiB"),
    ],
)
def test_sizes(size: int, said: str) -> None:
    assert words.size(size) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (840, "14m"),
        (3600, "1h"),
        (7500, "2h 5m"),
        (273_600, "3d 4h"),
        (1e8, "1157d"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_moments() -> None:
    assert words.moment(NOW - timedelta(hours=1), NOW) == "09:16:11Z"
    assert words.moment(NOW - timedelta(hours=11), NOW) == "2026-05-03 23:16:11Z"
