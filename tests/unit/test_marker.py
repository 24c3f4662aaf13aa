"""The task that marks: what fails is tried again, and a row that can't be marked holds up no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from cdc_outbox import mark
from cdc_outbox import marker as module
from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.mark import Marks
from cdc_outbox.marker import Marker
from cdc_outbox.postgres import marking
from cdc_outbox.postgres.marking import BLOCKS, PLACES, WIDTH, Delivered, Outcome
from cdc_outbox.postgres.whole import Whole
from tests.unit.noted import marking as shaped
from tests.unit.noted import note, table

WHOLE = Whole(frozenset({5}))


class Connection:
    closed = False

    async def close(self) -> None:
        self.closed = True


class Refused(Exception):
    sqlstate = "23514"


class Table:
    """How a table is marked, played: keys and places of `bad` are refused by a constraint; `away` fails once each.

    `mute`: no statement is ever answered.
    """

    def __init__(self, *bad: str | int, away: int = 0, mute: bool = False) -> None:
        self.how = shaped().how
        self.bad = bad
        self.away = away
        self.mute = mute
        self.marked: list[str] = []
        self.searched: list[range] = []
        self.statements = 0

    async def mark(self, _conn: object, keys: Sequence[str], count: int, _below: int | None) -> Outcome:
        if self.mute:
            await asyncio.get_running_loop().create_future()
        self.fail(*keys[0].strip("{}").split(","))
        self.marked += keys
        return Outcome(count)

    async def blocks(self, _conn: object) -> int:
        return 3 * BLOCKS

    async def search(self, _conn: object, place: int, delivered: Delivered, width: int) -> tuple[int, bool]:
        assert delivered == Delivered(40, WHOLE)
        places = range(place, place + width)
        self.fail(*(bad for bad in self.bad if bad in places))
        self.searched.append(places)
        return 1, False

    def fail(self, *asked: str | int) -> None:
        self.statements += 1
        if self.away:
            self.away -= 1
            raise PostgresUnavailable("away", next="wait")
        if set(asked) & set(self.bad):
            error: CdcOutboxError = PostgresUnavailable("refused", next="see")
            raise error from Refused()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object, **__: object) -> Connection:
        return Connection()

    async def parts(*_: object) -> Whole:
        return WHOLE

    async def following(*_: object) -> int:
        return 40

    monkeypatch.setattr(module, "PAUSES", (0.0,))
    monkeypatch.setattr(module, "REFUSED_PAUSE", 0.0)
    monkeypatch.setattr(mark, "LOCKED_PAUSE", 0.0)
    monkeypatch.setattr(marking, "connect", connect)
    monkeypatch.setattr(marking, "whole_parts", parts)
    monkeypatch.setattr(marking, "next_transaction", following)


def play(
    played: Table, *keys: bytes, search: bool = False, stopped: bool = False, within: float = 5.0
) -> Marks:
    """Confirm rows of these keys, each in a transaction of its own, and let them be marked."""
    unused: Any = None
    settings: Any = type("Settings", (), {"slot": "outbox_slot"})

    async def scene() -> Marks:
        marks = Marks()
        marks.begin([played])  # type: ignore[list-item]
        if not search:
            marks.searched(None)
        for number, key in enumerate(keys, 1):
            note(marks, table(), key)
            marks.cut(number * 100)
            marks.confirmed(LSN(number * 100 + 8))
        marks.proven(LSN(1), "40:40:", LSN(1))
        marks.proven(LSN(1), "40:40:", LSN(1))
        marker = Marker(settings, marks, lambda: unused)
        marker.start()
        if not stopped:
            async with asyncio.timeout(10):
                while marks.waiting or marks.search_wanted:
                    marks.awake.set()
                    await asyncio.sleep(0.001)
        await marker.close(within=within)
        return marks

    return asyncio.run(scene())


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_what_fails_is_tried_again() -> None:
    played = Table(away=3)
    marks = play(played, b"1", b"2")
    assert played.marked == ["{1,2}"]
    assert (marks.marked, marks.failures["postgres_unavailable"], marks.failing) == (2, 3, None)


def test_a_stop_marks_what_is_confirmed_though_it_failed_before() -> None:
    played = Table()
    marks = play(played, b"1", stopped=True)
    assert (played.marked, marks.waiting) == (["{1}"], 0)


def test_a_second_signal_within_the_last_marks_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Connection] = []
    unused: Any = None
    settings: Any = type("Settings", (), {"slot": "outbox_slot"})

    async def connect(*_: object, **__: object) -> Connection:
        made.append(Connection())
        return made[-1]

    async def scene() -> None:
        marks, played = Marks(), Table(mute=True)
        marks.begin([played])  # type: ignore[list-item]
        marks.searched(None)
        note(marks, table(), b"1")
        marks.cut(100)
        marks.confirmed(LSN(108))
        marker = Marker(settings, marks, lambda: unused)
        marker.start()
        closing = asyncio.create_task(marker.close(within=5.0))
        while not made:
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait({closing})

    monkeypatch.setattr(marking, "connect", connect)
    asyncio.run(scene())
    assert [each.closed for each in made] == [True]


def test_the_end_of_the_time_for_the_last_marks_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    marks = play(Table(mute=True), b"1", stopped=True, within=0.01)
    assert (marks.failing, marks.failures) == (None, {})
    [told] = warnings_of(caplog)
    assert (told.message, vars(told)["fields"]["rows"]) == ("rows stay unmarked until the next start", 1)


REFUSED = "a row can't be marked as sent, and stays as it is"


def keys(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def marked(played: Table) -> list[str]:
    """The keys of all that were marked, in no order."""
    return sorted((key for some in played.marked for key in some.strip("{}").split(",")), key=int)


def test_a_row_that_can_not_be_marked_is_given_up_and_told(caplog: pytest.LogCaptureFixture) -> None:
    played = Table("1")
    marks = play(played, b"1")
    assert (played.marked, marks.dropped, marks.refused, marks.waiting) == ([], 1, 1, 0)
    assert marks.failures == {mark.ROW_REFUSED: mark.REFUSED_TRIES}
    [told] = warnings_of(caplog)
    assert (told.message, vars(told)["fields"]["key"]) == (REFUSED, "{1}")


def test_a_key_that_is_no_text_is_given_up_and_told(caplog: pytest.LogCaptureFixture) -> None:
    """A SQL_ASCII database keeps whatever bytes it is given."""
    played = Table()
    marks = play(played, b"\xff", b"1")
    assert (marked(played), marks.refused, marks.waiting, marks.failing) == (["1"], 1, 0, None)
    [told] = warnings_of(caplog)
    assert (told.message, vars(told)["fields"]["key"]) == (REFUSED, r"{\xff}")


@pytest.mark.parametrize("bad", ["0", "7", "150", "299"])
def test_among_many_rows_it_alone_is_given_up(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    played = Table(bad)
    marks = play(played, *(key.encode() for key in keys(300)))
    assert marked(played) == [key for key in keys(300) if key != bad]
    assert (marks.marked, marks.dropped, marks.search_wanted, marks.failing) == (299, 1, False, None)
    assert [record.message for record in warnings_of(caplog)] == [REFUSED]
    assert played.statements < 25


def test_where_no_row_can_be_marked_it_is_told_as_any_failure(caplog: pytest.LogCaptureFixture) -> None:
    marks = play(Table(*keys(100)), *(key.encode() for key in keys(100)))
    assert (marks.marked, marks.refused, marks.failing) == (0, 100, "refused")
    assert [record.message for record in warnings_of(caplog)] == [REFUSED, "rows can't be marked as sent"]


@pytest.mark.parametrize("bad", [0, 5 * PLACES + 3, WIDTH - 1, WIDTH])
def test_a_search_passes_over_such_a_row_alone(bad: int, caplog: pytest.LogCaptureFixture) -> None:
    played = Table(bad)
    marks = play(played, search=True)
    assert [place for some in played.searched for place in some if place < 3 * WIDTH] == [
        place for place in range(3 * WIDTH) if place != bad
    ]
    assert (marks.refused, marks.search_wanted, marks.failing) == (1, False, None)
    [told] = warnings_of(caplog)
    assert (told.message, vars(told)["fields"]["ctid"]) == (REFUSED, marking.tid(bad))
    assert played.statements < 80


def test_a_search_passes_over_blocks_that_are_full_of_such_rows(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SINGLED_OUT", 5)
    played = Table(*range(100, 200))
    marks = play(played, search=True)
    assert (marks.refused, marks.search_wanted, marks.failing) == (5, False, None)
    assert [record.message for record in warnings_of(caplog)] == [REFUSED, "rows stay unmarked"]
    assert sum(map(len, played.searched)) >= 2 * WIDTH - 200
