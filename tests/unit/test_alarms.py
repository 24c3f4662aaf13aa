"""Each crossing of a threshold is said once on the way in and once on the way out, also by a value that wavers."""

from __future__ import annotations

from cdc_outbox.watch.alarms import CALM, Alarms
from cdc_outbox.watch.health import Check, Level
from tests.unit.sampled import health

OK, WARNING, CRITICAL, UNKNOWN = Level.OK, Level.WARNING, Level.CRITICAL, Level.UNKNOWN


def said(*levels: Level) -> list[tuple[int, Level, Level]]:
    """Which sample of a signal's levels said something: its number, the level before and that one."""
    alarms = Alarms()
    lines = []
    for number, level in enumerate(levels):
        check = Check("retained", level, 0.5, 0.5, 0.75, "half of it")
        lines += [
            (number, crossing.was, crossing.check.status) for crossing in alarms.look(health(checks=(check,)))
        ]
    return lines


def test_in_once_and_out_once() -> None:
    assert said(OK, WARNING, WARNING, WARNING, *[OK] * 9) == [
        (1, OK, WARNING),
        (3 + CALM, WARNING, OK),
    ]


def test_worse_is_said_at_once_and_better_when_it_lasts() -> None:
    assert said(WARNING, CRITICAL, *[WARNING] * 9) == [
        (0, OK, WARNING),
        (1, WARNING, CRITICAL),
        (1 + CALM, CRITICAL, WARNING),
    ]


def test_a_value_that_wavers_fills_no_log() -> None:
    assert said(*[WARNING, OK] * 50) == [(0, OK, WARNING)]


def test_what_is_unknown_says_nothing_either_way() -> None:
    assert said(UNKNOWN, UNKNOWN) == []
    assert said(WARNING, *[UNKNOWN] * 9, WARNING) == [(0, OK, WARNING)]
    assert said(WARNING, OK, OK, UNKNOWN, OK, OK) == [(0, OK, WARNING)]


def test_signals_are_apart() -> None:
    alarms = Alarms()
    checks = [Check(name, WARNING, None, None, None, "") for name in ("retained", "stalled")]
    assert [each.check.name for each in alarms.look(health(checks=tuple(checks)))] == ["retained", "stalled"]
    assert not [*alarms.look(health(checks=(checks[1],)))]


def test_what_the_relay_itself_logs_is_not_said_again() -> None:
    """At each start after a pause the slot has been inactive, and to start is what was done."""
    checks = tuple(Check(name, CRITICAL, None, None, None, "") for name in ("slot", "inactive", "relay"))
    assert not [*Alarms().look(health(checks=checks))]
