"""What a table says of its rows: which were sent, failed, taken, and what a row is to hold once it was sent."""

from __future__ import annotations

from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.sent import Bookkeeping, Mark, usual
from tests.unit.mapped import DEFAULT, INT4, TABLE_A, TABLE_B, TABLE_C, TEXT, Mapped, relation


def shape(columns: dict[str, int]) -> Shape:
    return Shape(relation(columns).columns)


def test_a_status_with_a_time_for_the_next_attempt_tries_again_what_failed():
    book = usual(shape(TABLE_A).find)
    assert book.sent is not None
    assert (book.sent.field.name, book.sent.by) == ("status", "word")
    assert book.failed is not None
    assert book.failed.retried >= {"failed"}
    assert book.failed.given_up == {"dead"}
    assert book.taken is not None
    assert "processing" in book.taken.words
    assert book.taken.since is not None
    assert book.taken.since.name == "locked_at"


def test_a_status_without_one_has_given_up_what_failed():
    book = usual(shape(TABLE_B).find)
    assert book.failed is not None
    assert book.failed.retried == frozenset()
    assert book.failed.given_up >= {"failed"}
    assert book.taken is not None
    assert book.taken.since is None


def test_a_time_alone_knows_nothing_of_failures():
    book = usual(shape(TABLE_C).find)
    assert book.sent is not None
    assert (book.sent.field.name, book.sent.by) == ("sent_at", "time")
    assert (book.failed, book.taken) == (None, None)


def test_what_a_row_is_to_hold_once_it_was_sent():
    marks = usual(shape(TABLE_A).find).marks
    assert [mark.field.name for mark in marks] == ["status", "sent_at"]
    assert marks[0].words[0] == "sent"
    assert marks[1].words == ()
    table_c = shape(TABLE_C)
    sent_at = table_c.find("sent_at")
    assert sent_at is not None
    assert usual(table_c.find).marks == (Mark(sent_at),)


def test_a_table_that_keeps_no_book():
    assert usual(shape(DEFAULT).find) == Bookkeeping()
    assert usual(shape({**DEFAULT, "status": INT4, "sent_at": TEXT}).find) == Bookkeeping()


def test_a_plan_tells_it():
    assert Mapped(TABLE_A).plan.bookkeeping == usual(shape(TABLE_A).find)
