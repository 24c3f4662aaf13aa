"""The progress of a long command, on a terminal and elsewhere."""

from __future__ import annotations

import errno
import io

import pytest

from cdc_outbox.cli.progress import Phases, Progress, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Full(io.StringIO):
    """The disk under it is full."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.tried = 0
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self.tried += 1
        raise OSError(errno.ENOSPC, "No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_on_a_terminal_one_line_in_place_which_is_wiped_out_at_the_end() -> None:
    clock, stream = Clock(), Terminal()
    with Progress("rows", 10_000, stream=stream, now=clock) as progress:
        progress.moved(10)
        assert stream.getvalue() == ""
        clock.now += 5
        progress.moved(2500)
        progress.moved(2600)
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown == ["", "[######------------------]   25 %  2 500 of 10 000 rows  500/s  15 s left", ""]


def test_what_is_counted_after_something_else_begins_anew() -> None:
    clock, stream = Clock(), Terminal()
    with Phases(stream=stream, now=clock) as phases:
        for what, done in (
            ("pieces read", 1),
            ("pieces read", 4),
            ("rows removed", 100),
            ("rows removed", 300),
        ):
            phases.moved(what, done, 0)
            clock.now += 1
    shown = stream.getvalue().split("\r\x1b[K")
    assert shown == ["", "4 pieces read  4/s", "", "300 rows removed  300/s", ""]


@pytest.mark.parametrize("terminal", [False, True])
def test_where_it_cannot_be_written_the_work_goes_on(terminal: bool) -> None:
    clock, stream = Clock(), Full(terminal)
    with Progress("rows", 3000, stream=stream, now=clock) as progress:
        for second in range(1, 31):
            clock.now += 1
            progress.moved(second * 100)
    assert stream.tried


def test_elsewhere_a_line_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    with Progress("rows", 3000, stream=stream, now=clock) as progress:
        for second in range(1, 31):
            clock.now += 1
            progress.moved(second * 100)
    assert stream.getvalue().splitlines() == [
        " 33 %  1 000 of 3 000 rows  100/s  20 s left",
        " 67 %  2 000 of 3 000 rows  100/s  10 s left",
        "100 %  3 000 of 3 000 rows  100/s",
    ]


def test_the_rate_is_that_of_the_last_moments() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("rows", 100_000, stream=stream, now=clock)
    for second in range(1, 61):
        clock.now += 1
        progress.moved(second * 1000 if second <= 30 else 30_000 + (second - 30) * 10)
    assert stream.getvalue().splitlines()[-1].split("  ")[2] == "10/s"


def test_without_a_total_it_counts() -> None:
    clock, stream = Clock(), io.StringIO()
    progress = Progress("events", stream=stream, now=clock)
    clock.now += 10
    progress.moved(1234)
    assert stream.getvalue() == "1 234 events  123/s\n"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.7, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
