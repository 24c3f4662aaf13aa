"""How a table tells the rows that were sent from those that wait.

A polling relay leaves its marks in the table: a word in a status column, a time that is NULL until then, or nothing,
because it deletes what it has sent. Whoever counts, publishes or marks rows of the table asks here. Words are compared
in the text that PostgreSQL prints for the column, whatever its type, as `folded` has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cdc_outbox.table.recognise import plain
from cdc_outbox.table.values import FIRST_USER_TYPE, INTEGERS, TEXTUAL, TIMES, Field

SPELLED: Final = ("sent", "published", "processed", "delivered", "done", "completed")
"""The words that mean sent, in the order in which one is to be chosen for a column that takes only some of them."""

SENT_WORDS: Final = frozenset(SPELLED)
"""Values of a status column that mean: this row needs no sending. In lower case."""

SENT_TIMES: Final = ("sent_at", "processed_at", "published_at")
DUE_TIMES: Final = ("next_run_at", "available_at")

FAILED_WORDS: Final = frozenset({"failed", "error"})
"""Values of a status column that mean: sending failed. The old relay tries again where rows have a time for that."""

DEAD_WORDS: Final = frozenset({"dead"})
"""Values that mean: the old relay gave this row up."""

TAKEN_WORDS: Final = frozenset({"processing", "in_progress", "sending", "claimed", "locked"})
"""Values that mean: a worker of the old relay has the row in hand, and may have sent it already."""

WAITING_WORDS: Final = frozenset(
    {
        *(
            "",
            "pending",
            "new",
            "queued",
            "ready",
            "waiting",
            "scheduled",
            "created",
            "retry",
            "unsent",
            "open",
        ),
        *("unpublished", "unprocessed", "enqueued", "delayed"),
    }
)
"""Values that mean: the row is still to be sent. NULL means it too; any other word is unknown, and not guessed."""

TAKEN_TIMES: Final = ("locked_at", "claimed_at", "processing_at", "updated_at")


def folded(text: str) -> str:
    """The text with A to Z in lower case, which is all that the stream and each database agree on.

    What becomes of other letters the database's locale says: a Turkish one even makes another letter of the I.
    """
    return text.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")


@dataclass(frozen=True, slots=True)
class Sent:
    """How a table says that a row was sent already: one of `words` in the column, or a time that isn't NULL."""

    field: Field
    by: Literal["word", "time"]
    words: frozenset[str] = SENT_WORDS
    """In lower case; without a meaning for a time."""
    waiting: frozenset[str] = WAITING_WORDS
    """Words that mean the opposite."""
    beside: Field | None = None
    """A time of sending beside the words: where it is NULL, only the word with its verb (`alone`) means sent.

    Nobody has said whose status it is: `completed` may be the order's, of which nobody hears if the row is left out.
    """

    @property
    def alone(self) -> frozenset[str]:
        """The words that mean sent whatever a time says."""
        if self.beside is None:
            return self.words
        return self.words & {plain(self.beside.name).removesuffix("at")}

    @property
    def fields(self) -> tuple[Field, ...]:
        """All columns that are looked at."""
        return (self.field,) if self.beside is None else (self.field, self.beside)

    def says(self, text: str | None, beside: str | None) -> bool:
        """Whether a row with these texts in the column and in the time beside it was sent."""
        if self.by == "time":
            return text is not None
        word = None if text is None else folded(text)
        return word in self.alone or (word in self.words and beside is not None)


@dataclass(frozen=True, slots=True)
class Failed:
    """How a table says that sending failed: rows with `retried` words are tried again, with `given_up` words not."""

    field: Field
    retried: frozenset[str]
    given_up: frozenset[str]


@dataclass(frozen=True, slots=True)
class Taken:
    """How a table says that a worker has a row in hand; `since`: the column with the time of that, if there is one."""

    field: Field
    words: frozenset[str]
    since: Field | None


@dataclass(frozen=True, slots=True)
class Mark:
    """What a row is to hold once it was sent: the first of `words` that the column takes; without words a time.

    The time is that of the marking and `seconds` on top.
    """

    field: Field
    words: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Bookkeeping:
    """What a table knows of its rows. Nothing of it is there in a table that keeps no book."""

    sent: Sent | None = None
    failed: Failed | None = None
    taken: Taken | None = None
    marks: tuple[Mark, ...] = ()
    deleted: bool = False
    """The old relay deletes what it has sent: each row that is in the table waits."""
    annotated: bool = False
    """The old relay writes notes of its own into the columns that a message is made of."""

    @property
    def status(self) -> Field | None:
        """The column with words, if there is one."""
        if self.sent is not None and self.sent.by == "word":
            return self.sent.field
        return next((each.field for each in (self.failed, self.taken) if each is not None), None)


@dataclass(frozen=True, slots=True)
class Words:
    """The words of a column that is not a usual status: of a profile."""

    column: str
    sent: frozenset[str] = frozenset()
    retried: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()
    taken: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    """Beside the usual ones."""
    written: str | None = None
    """The spelling of `sent` that a mark writes."""


Find = Callable[[str], Field | None]
"""A table's column by its name, whatever case and underscores."""


def usual(find: Find) -> Bookkeeping:
    """What the usual columns say: `status` before the times, as wire formats of polling relays have them."""
    sent = usual_sent(find)
    if sent is None:
        return Bookkeeping()
    if sent.by == "time":
        return Bookkeeping(sent=sent, marks=(Mark(sent.field),))
    return by_status(sent.field, find)


def by_status(status: Field, find: Find) -> Bookkeeping:
    """What a status with the usual words says, and the usual times beside it."""
    retried = FAILED_WORDS if due(find) is not None else frozenset()
    times = tuple(Mark(field) for field in _times(find, SENT_TIMES))
    return Bookkeeping(
        sent=Sent(status, "word", beside=next((mark.field for mark in times), None)),
        failed=Failed(status, retried, (FAILED_WORDS | DEAD_WORDS) - retried),
        taken=Taken(status, TAKEN_WORDS, next(iter(_times(find, TAKEN_TIMES)), None)),
        marks=(Mark(status, SPELLED), *times),
    )


def usual_sent(find: Find) -> Sent | None:
    """How a table with the usual columns marks a row as sent, if it does: by its status, else by a time."""
    status = find("status")
    if status is not None and (status.type_oid in TEXTUAL or status.type_oid >= FIRST_USER_TYPE):
        return Sent(status, "word")
    times = _times(find, SENT_TIMES)
    return Sent(times[0], "time") if times else None


def due(find: Find, names: tuple[str, ...] = DUE_TIMES) -> Field | None:
    """The column with the time before which a row shouldn't be sent."""
    for name in names:
        field = find(name)
        if field is not None and field.type_oid in TIMES | INTEGERS:
            return field
    return None


def by_words(words: Words, find: Find, times: Mapping[str, float]) -> Bookkeeping:
    """What a column with words of its own says. `times`: further columns that a mark sets, with seconds from now."""
    status = find(words.column)
    if status is None:
        return Bookkeeping()
    marked = [(find(name), seconds) for name, seconds in times.items()]
    return Bookkeeping(
        sent=Sent(status, "word", words.sent, words.waiting | WAITING_WORDS),
        failed=Failed(status, words.retried, words.given_up) if words.retried | words.given_up else None,
        taken=Taken(status, words.taken, None) if words.taken else None,
        marks=(
            Mark(status, (words.written,) if words.written is not None else ()),
            *(Mark(field, (), seconds) for field, seconds in marked if field is not None),
        ),
    )


def by_time(name: str, words: Words | None, find: Find) -> Bookkeeping:
    """What a time says that is NULL until a row was sent, with a status beside it where the table has one."""
    time = find(name)
    if time is None:
        return Bookkeeping()
    beside = by_words(words, find, {}) if words is not None else Bookkeeping()
    return Bookkeeping(
        sent=Sent(time, "time"), failed=beside.failed, taken=beside.taken, marks=(Mark(time), *beside.marks)
    )


def _times(find: Find, names: tuple[str, ...]) -> tuple[Field, ...]:
    found = (find(name) for name in names)
    return tuple(field for field in found if field is not None and field.type_oid in TIMES)
