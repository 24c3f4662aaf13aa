"""Whether the server takes us as a synchronous standby, by the value of its setting."""

from __future__ import annotations

import pytest

from cdc_outbox.errors import SynchronousStandby
from cdc_outbox.postgres.synchronous import matches, names, require_none

OURS = "cdc-outbox/outbox_slot"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("", []),
        ("   ", []),
        ("*", ["*"]),
        ("a", ["a"]),
        ("a, b,c", ["a", "b", "c"]),
        ("2 (a, b)", ["a", "b"]),
        ("2(a,b)", ["a", "b"]),
        ("FIRST 1 (a, b)", ["a", "b"]),
        ("first 12(a)", ["a"]),
        ("ANY 1 (*)", ["*"]),
        ('any 2 (s1, "s 2", *)', ["s1", "s 2", "*"]),
        ('"FIRST", "any"', ["FIRST", "any"]),
        ('"a ""quoted"" name", "with,comma", "(1)"', ['a "quoted" name', "with,comma", "(1)"]),
        ("1", ["1"]),
        ("1, 2", ["1", "2"]),
        ("2 (1, 3)", ["1", "3"]),
        ("FIRST 1 (\n\ta\n)", ["a"]),
        ("höhle$1", ["höhle$1"]),
    ],
)
def test_names_in_all_forms_of_the_setting(value: str, expected: list[str]) -> None:
    assert names(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "*",
        '"*"',
        "FIRST 1 (other, *)",
        f'"{OURS}"',
        f'ANY 2 (a, b, "{OURS.upper()}")',
        f'1 ("{OURS}")',
    ],
)
def test_a_match(value: str) -> None:
    assert matches(value, OURS)
    with pytest.raises(SynchronousStandby, match="synchronous") as caught:
        require_none(value, OURS)
    assert caught.value.exit_code == 78
    assert "synchronous_standby_names" in caught.value.next


@pytest.mark.parametrize(
    "value",
    [
        "",
        "walreceiver",
        '"cdc-outbox/other"',
        f'"{OURS}x", "x{OURS}"',
        '"cdc-outbox"',
        '"**"',
        "FIRST 2 (a, b)",
    ],
)
def test_no_match(value: str) -> None:
    assert matches(value, OURS) is None
    require_none(value, OURS)


def test_the_name_is_compared_as_the_server_cuts_it() -> None:
    long = "cdc-outbox/" + "s" * 55
    assert matches(f'"{long[:63]}"', long)
    assert matches(f'"{long}"', long) is None


def test_case_is_ignored_for_ascii_letters_only() -> None:
    assert matches('"CDC-Outbox/ä"', "cdc-outbox/ä")
    assert matches('"cdc-outbox/Ä"', "cdc-outbox/ä") is None
