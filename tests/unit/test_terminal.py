"""What is written to a terminal can't steer it."""

from __future__ import annotations

import pytest

from cdc_outbox.terminal import printable


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("order-17 für Zoë", "order-17 für Zoë"),
        ("a\x1b[2J", r"a\x1b[2J"),
        ("line\nnext \x07", r"line\nnext \x07"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}txt", r"\u202etxt"),
    ],
)
def test_what_would_steer_a_terminal_is_spelled_out(said: str, shown: str) -> None:
    assert printable(said) == shown
