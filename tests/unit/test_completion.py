"""The shell completes commands, flags and the words that a flag accepts (`docs/how-to/complete-commands.md`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.cache import CHECKOUT
from tests.servers.shell import blocks

PAGE = blocks((CHECKOUT / "docs" / "how-to" / "complete-commands.md").read_text())
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def in_bash(script: str) -> list[str]:
    environment = {"PATH": PATH, "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        ["bash", "--norc", "-ec", script],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=60,
    )
    assert not done.stderr
    return done.stdout.split()


def completed(*words: str) -> list[str]:
    """What bash offers for the last of these words, with the page's line in the start-up file."""
    assert list(PAGE) == ["bash"]
    line = " ".join(["cdc-outbox", *(f"'{word}'" for word in words)])
    return in_bash(
        f"{PAGE['bash']}COMP_WORDS=({line}); COMP_CWORD={len(words)}; _cdc_outbox_completion cdc-outbox\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )


def test_commands() -> None:
    assert completed("st") == ["start"]
    assert completed("config", "") == ["show", "validate", "schema"]


def test_flags() -> None:
    assert completed("start", "--on-p") == ["--on-poison"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("start", "--on-poison", ""), ["stop", "block"]),
        (("start", "--log-level", "w"), ["warning"]),
        (("health", "--format", "n"), ["nagios"]),
        (("peek", "--profile", "spring"), ["spring-modulith"]),
    ],
)
def test_words_that_a_flag_accepts(words: tuple[str, ...], offered: list[str]) -> None:
    assert completed(*words) == offered


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_what_other_shells_evaluate(shell: str) -> None:
    assert "_CDC_OUTBOX_COMPLETE" in " ".join(in_bash(f"_CDC_OUTBOX_COMPLETE={shell}_source cdc-outbox"))
