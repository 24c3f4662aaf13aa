"""What waits to be marked: never before its position is confirmed, bounded, and nothing forgotten for good."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cdc_outbox import clock, mark
from cdc_outbox.errors import MissingRight
from cdc_outbox.lsn import LSN
from cdc_outbox.mark import Marks
from cdc_outbox.mark_keys import Chunk
from cdc_outbox.postgres.marking import BATCH, Outcome
from tests.unit.noted import OTHER, marking, note, table


def marks(*tables: Any) -> Marks:
    made = Marks()
    made.begin(tables or [marking()])
    return made


def locked(monkeypatch: pytest.MonkeyPatch, confirmed: LSN) -> Marks:
    """With one row that may be marked, and that is tried again at once where it is locked."""
    monkeypatch.setattr(mark, "LOCKED_PAUSE", 0.0)
    queue = marks()
    queue.searched(None)
    note(queue, table(), b"1")
    queue.cut(100)
    queue.confirmed(confirmed)
    return queue


def ready() -> Marks:
    """With one row that may be marked, and nothing to search for."""
    queue = marks()
    queue.searched(None)
    note(queue, table(), b"1")
    queue.cut(100)
    queue.confirmed(LSN(108))
    return queue


def taken(queue: Marks) -> Iterator[Chunk]:
    while (chunk := queue.take()) is not None:
        yield chunk
        queue.settle(chunk, Outcome(chunk.count))


def keys(queue: Marks) -> list[str]:
    """Everything that may be marked now."""
    return [key for chunk in taken(queue) for key in chunk.literals()[0].strip("{}").split(",")]


def test_rows_are_marked_when_their_commit_is_confirmed_and_not_before() -> None:
    queue = marks()
    plan = table()
    note(queue, plan, b"1", b"2")
    queue.cut(100)
    note(queue, plan, b"3")
    queue.cut(200)
    assert (keys(queue), queue.waiting) == ([], 3)
    queue.confirmed(LSN(100))  # where the commit record begins: it isn't confirmed itself
    assert keys(queue) == []
    queue.confirmed(LSN(108))
    assert (keys(queue), queue.waiting, queue.marked) == (["1", "2"], 1, 2)
    queue.confirmed(LSN(208))
    assert (keys(queue), queue.waiting, queue.unmarked) == (["3"], 0, 0)


def test_rows_that_are_left_out_are_not_marked() -> None:
    queue = marks()
    note(queue, table(), b"1", reason="bus")
    note(queue, table(), b"2")
    queue.cut(100)
    queue.confirmed(LSN(108))
    assert keys(queue) == ["2"]


def test_what_is_not_confirmed_comes_again_in_the_next_session_and_what_is_stays() -> None:
    queue = marks()
    note(queue, table(), b"1")
    queue.cut(100)
    note(queue, table(), b"2")
    queue.cut(200)
    queue.confirmed(LSN(108))
    queue.begin([marking()])
    assert queue.waiting == 1
    queue.confirmed(LSN(300))
    assert keys(queue) == ["1"]


def test_on_another_server_keys_mean_nothing() -> None:
    queue = marks()
    note(queue, table(), b"1")
    queue.cut(100)
    queue.confirmed(LSN(108))
    queue.forget()
    assert (keys(queue), queue.waiting, queue.search_wanted) == ([], 0, True)


def test_a_statement_has_rows_of_one_table_and_a_batch_at_most() -> None:
    queue = marks(marking(), marking(OTHER))
    note(queue, table(), *[b"1"] * (BATCH + 1))
    queue.cut(100)
    for lsn in (200, 300):
        note(queue, table(), b"2")
        queue.cut(lsn)
    note(queue, table("other"), b"3")
    queue.cut(400)
    queue.confirmed(LSN(500))
    assert [chunk.count for chunk in taken(queue)] == [BATCH, 3, 1]
    assert queue.waiting == 0


def test_a_key_of_several_columns_is_quoted_where_it_has_to_be() -> None:
    queue = marks(marking(id="text", aggregate_id="integer"))
    note(queue, table(), rb'a"\,{}', beside=b"1")
    note(queue, table(), b"NULL", beside=b"2")
    queue.cut(100)
    queue.confirmed(LSN(200))
    [chunk] = taken(queue)
    assert chunk.literals() == [r'{"a\"\\,{}","NULL"}', "{1,2}"]


def test_suspect_keys_are_halved_as_they_are_and_go_behind_all_others() -> None:
    queue = marks(marking(id="text", aggregate_id="integer"))
    hostile = [rb'a"\,{}', b"", b"NULL", rb"\\", b'","', "é\n".encode()]
    for number, key in enumerate(hostile, 1):
        note(queue, table(), key, beside=str(number).encode())
    queue.cut(100)
    queue.confirmed(LSN(200))
    chunk = queue.take()
    assert chunk is not None
    whole = chunk.literals()
    queue.refuse(chunk, MissingRight("no", next="grant it"))
    assert (queue.unmarked, queue.waiting) == (6, 6)
    note(queue, table(), b"new", beside=b"7")
    queue.cut(300)
    queue.confirmed(LSN(400))
    new, *halves = taken(queue)
    assert (new.literals(), [half.count for half in halves]) == (['{"new"}', "{7}"], [3, 3])
    joined = zip(*(half.literals() for half in halves), strict=True)
    assert ["{" + ",".join(part[1:-1] for part in column) + "}" for column in joined] == whole
    assert queue.waiting == 0


def test_what_is_too_much_is_left_to_a_search(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mark, "BUDGET", 1000)
    queue = marks()
    queue.searched(None)
    assert queue.done
    for lsn in range(100, 2000, 100):
        note(queue, table(), b"1")
        queue.cut(lsn)
    assert (queue.waiting, queue.dropped, queue.search_wanted, queue.done) == (4, 15, True, False)
    assert [record.message for record in caplog.records] == ["marks are put off to a search of the table"]
    queue.confirmed(LSN(5000))
    assert len(keys(queue)) == 4
    note(queue, table(), b"2")
    queue.cut(6000)
    queue.confirmed(LSN(7000))
    assert keys(queue) == ["2"]


def test_a_key_that_has_waited_is_only_that_of_a_row_of_a_proven_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a lock, after a failure, and after a while; what is fresh needs no proof, and goes by itself."""
    queue = locked(monkeypatch, LSN(108))
    chunk = queue.take()
    assert chunk is not None
    assert chunk.below is None
    queue.settle(chunk, Outcome(0, locked=1))
    assert not queue.done  # it may be proven in a moment
    note(queue, table(), b"2")
    queue.cut(200)
    queue.confirmed(LSN(208))
    fresh, waited = queue.take(), queue.take()
    assert fresh is not None
    assert (fresh.below, fresh.literals()) == (None, ["{2}"])
    assert waited is chunk
    assert waited.below == 0
    queue.proven(LSN(208), "30:30:", LSN(208))
    queue.proven(LSN(208), "31:31:", LSN(208))
    queue.put_back(fresh)
    queue.settle(waited, Outcome(0, locked=1))
    again = queue.take()
    assert again is not None
    assert (again.below, sorted(again.literals()[0])) == (30, sorted("{2,1}"))
    queue.settle(again, Outcome(2))
    passed = 100.0
    monkeypatch.setattr(clock, "passing", lambda: passed)
    note(queue, table(), b"3")
    queue.cut(300)
    queue.confirmed(LSN(308))
    passed += mark.FRESH  # as after a suspension: the monotonic clock knows nothing of it
    late = queue.take()
    assert late is not None
    assert late.below == 30


def test_rows_that_are_locked_are_tried_again_and_then_left_to_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = locked(monkeypatch, LSN(200))
    for _ in range(mark.LOCKED_TRIES + 1):
        chunk = queue.take()
        assert chunk is not None
        assert not queue.search_wanted
        queue.settle(chunk, Outcome(0, locked=1))
    assert (queue.take(), queue.waiting, queue.search_wanted) == (None, 0, True)


def test_what_waits_is_marked_as_its_table_is_now() -> None:
    """A statement for the table as it was fails for ever, and is tried first."""
    queue = ready()
    failed = queue.take()
    assert failed is not None
    queue.put_back(failed)
    now = marking()
    queue.begin([now])
    again = queue.take()
    assert again is not None
    assert again.marking is now
    queue.put_back(again)
    queue.begin([marking(number="bigint")])
    assert (queue.take(), queue.waiting, queue.search_wanted) == (None, 0, True)


def test_a_row_that_is_not_seen_is_looked_for_again_when_its_transaction_must_have_ended() -> None:
    queue = ready()
    chunk = queue.take()
    assert chunk is not None
    queue.settle(chunk, Outcome(0, unseen=20))
    queue.proven(LSN(108), "19:30:19", LSN(108))
    assert (queue.take(), queue.waiting) == (None, 1)
    queue.proven(LSN(108), "20:30:20", LSN(108))
    again = queue.take()
    assert again is chunk
    queue.settle(chunk, Outcome(0, unseen=30))  # it was deleted
    assert (queue.take(), queue.waiting, queue.search_wanted) == (None, 0, False)


def test_a_search_is_over_when_it_has_seen_what_was_there_when_it_was_wanted() -> None:
    queue = marks()
    queue.target = 20
    queue.proven(LSN(50), "10:20:10,12", LSN(100))
    assert (queue.target, queue.horizon) == (20, None)
    queue.proven(LSN(99), "11:21:11", LSN(110))
    assert (queue.target, queue.horizon) == (20, None)
    queue.proven(LSN(100), "11:21:11", LSN(110))
    assert queue.horizon == 10
    queue.searched(10)
    # A transaction was open that may have brought rows; but nobody waits for it.
    assert (queue.search_wanted, queue.done) == (True, True)
    queue.proven(LSN(130), "30:30:", LSN(130))
    queue.proven(LSN(140), "31:31:", LSN(140))
    assert queue.horizon == 30
    queue.searched(30)
    assert (queue.search_wanted, queue.done) == (False, True)


def test_a_failure_is_told_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    queue = marks()
    for _ in range(3):
        queue.fail(MissingRight("no", next="grant it"))
    assert (queue.failures["missing_right"], queue.failing, queue.done) == (3, "no", True)
    queue.well()
    queue.well()
    assert [record.message for record in caplog.records] == [
        "rows can't be marked as sent",
        "rows are marked as sent again",
    ]


def test_rows_from_before_a_column_had_its_name_are_left_to_a_search() -> None:
    queue = marks(marking(event_id="uuid"))
    queue.searched(None)
    plan = table()
    assert queue.noting(plan) == (plan.encode, plan.read)
    assert queue.search_wanted


@given(
    st.lists(st.one_of(st.integers(0, 5), st.just("cut"), st.tuples(st.just("confirm"), st.integers(0, 30))))
)
def test_in_any_order_nothing_is_marked_that_is_not_confirmed(steps: list[Any]) -> None:
    queue = marks()
    plan = table()
    lsn = confirmed = number = 0
    committed: dict[str, int] = {}
    done: list[str] = []
    for step in steps:
        if isinstance(step, int):
            lsn += 10
            for _ in range(step):
                number += 1
                committed[str(number)] = lsn
                note(queue, plan, str(number).encode())
            queue.cut(lsn)
        elif step == "cut":
            queue.cut(lsn)
        else:
            confirmed = max(confirmed, min(step[1] * 10 + 8, lsn + 8))
            queue.confirmed(LSN(confirmed))
        done += keys(queue)
        assert all(committed[key] < confirmed for key in done)
    queue.confirmed(LSN(lsn + 8))
    done += keys(queue)
    assert done == list(committed)
