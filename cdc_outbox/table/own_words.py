"""A table with words of its own: what a person says of its marks, by `[outbox.status]` and `outbox.columns.sent_at`.

What is said outranks the profile and the usual names. A meaning of which nothing is said keeps its usual words, without
those that are named for another meaning. Where both are named, words that mean sent decide before the time. A status
beside a time that is named alone is left as it is: it may be another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from cdc_outbox.errors import MappingError
from cdc_outbox.event import quote
from cdc_outbox.table.sent import Bookkeeping, Failed, Find, Mark, Sent, Taken, by_status, folded
from cdc_outbox.table.values import BOOL, BPCHAR, FIRST_USER_TYPE, INTEGERS, OTHER, TEXTUAL, TIMES, Field

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.settings.model import OutboxSettings, StatusSettings

Column: TypeAlias = Callable[[str, str], Field]
"""A column that a setting names, by that name and the setting's. Raises MappingError."""

_WORDED = TEXTUAL | INTEGERS | {BOOL, BPCHAR, OTHER}
_BOOLEANS = {"true": "t", "false": "f", "t": "true", "f": "false"}


def is_told(settings: OutboxSettings) -> bool:
    """Whether a person has said anything of the marks."""
    return settings.status.column is not None or bool(settings.status.words) or "sent_at" in settings.columns


def bookkeeping(
    settings: OutboxSettings, table: TableName, found: Bookkeeping, find: Find, column: Column
) -> Bookkeeping:
    """What a person says of the table's marks, and where nothing is said what was `found`. Raises MappingError."""
    if not is_told(settings):
        return found
    time = _time(settings, table, column)
    status = settings.status
    if status.column is None and not status.words:
        worded = () if found.sent is None or found.sent.by == "word" else found.marks
        marks = (Mark(time), *(mark for mark in worded if mark.words)) if time is not None else found.marks
        sent = Sent(time, "time") if time is not None else found.sent
        return Bookkeeping(sent=sent, failed=found.failed, taken=found.taken, marks=marks)
    field = _status(status, table, found, column)
    known = field == found.status
    book = _worded(status, field, found if known else by_status(field, find), time)
    if status.sent is not None:
        return book
    if time is None and known and found.sent is not None and found.sent.by == "time":
        time = found.sent.field
    if time is None:
        return book
    marks = book.marks if known else tuple(mark for mark in book.marks if not mark.words)
    return replace(book, sent=Sent(time, "time"), marks=marks)


def describe(settings: OutboxSettings, book: Bookkeeping) -> str:
    """What is said, in words: `state: sent DISPATCHED, given_up GIVEN_UP`."""
    sent = book.sent
    if sent is None:
        return ""
    words = ", ".join(f"{meaning} {'/'.join(words)}" for meaning, words in settings.status.words.items())
    return f"{sent.field.name}: {words}" if words else sent.field.name


def _time(settings: OutboxSettings, table: TableName, column: Column) -> Field | None:
    name = settings.columns.get("sent_at")
    if name is None:
        return None
    field = column(name, "outbox.columns.sent_at")
    if field.type_oid not in TIMES:
        raise MappingError(
            f"column {field.name} of {table} can't be the sent_at: it is not timestamptz or timestamp",
            next="name the time that is NULL until a row was sent with --column sent_at=NAME; "
            "a column with words is --status column=NAME",
        )
    return field


def _status(status: StatusSettings, table: TableName, found: Bookkeeping, column: Column) -> Field:
    if status.column is None:
        if found.status is not None:
            return found.status
        raise MappingError(
            f"outbox.status says what words mean, and {table} has no column that is recognised as a status",
            next='name the column: --status column=NAME, or column = "NAME" under [outbox.status]',
        )
    field = column(status.column, "outbox.status.column")
    if field.type_oid not in _WORDED and field.type_oid < FIRST_USER_TYPE:
        raise MappingError(
            f"column {field.name} of {table} can't be the status: it holds no words",
            next="name a column of text, an enum, an integer or a boolean with --status column=NAME"
            + (f"; a time is --column sent_at={field.name}" if field.type_oid in TIMES else ""),
        )
    return field


def _worded(status: StatusSettings, field: Field, usual: Bookkeeping, time: Field | None) -> Bookkeeping:
    named = {meaning: _folded(field, words) for meaning, words in status.words.items()}
    claimed: dict[str, str] = {}
    for meaning, words in named.items():
        for word in sorted(words):
            if claimed.setdefault(word, meaning) != meaning:
                raise MappingError(
                    f"the word {word!r} of column {quote(field.name)} is to mean both {claimed[word]} and {meaning}",
                    next="leave it at one of them in [outbox.status]",
                )

    def meant(meaning: str, otherwise: frozenset[str]) -> frozenset[str]:
        return named[meaning] if meaning in named else otherwise - claimed.keys()

    by_word = usual.sent if usual.sent is not None and usual.sent.by == "word" else Sent(field, "word")
    failed = usual.failed or Failed(field, frozenset(), frozenset())
    taken = usual.taken or Taken(field, frozenset(), None)
    retried, given_up = meant("failed", failed.retried), meant("given_up", failed.given_up)
    in_hand = meant("taken", taken.words)
    written = status.sent or next((mark.words for mark in usual.marks if mark.words), ())
    times = (Mark(time),) if time is not None else tuple(mark for mark in usual.marks if not mark.words)
    return Bookkeeping(
        sent=Sent(field, "word", meant("sent", by_word.words), meant("waiting", by_word.waiting)),
        failed=Failed(field, retried, given_up) if retried | given_up else None,
        taken=Taken(field, in_hand, taken.since) if in_hand else None,
        marks=(Mark(field, written), *(mark for mark in times if mark.field != field)),
    )


def _folded(field: Field, words: tuple[str, ...]) -> frozenset[str]:
    """Words as they are compared, without the blanks of `char(n)`; a boolean's as cast and output spell them."""
    found = {folded(word.rstrip(" ") if field.type_oid == BPCHAR else word) for word in words}
    if field.type_oid == BOOL:
        found |= {_BOOLEANS[word] for word in found if word in _BOOLEANS}
    return frozenset(found)
