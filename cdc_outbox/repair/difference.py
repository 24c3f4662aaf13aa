"""What would be different with our relay, in words: each kind with its reason and the next step."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from cdc_outbox.event import quote
from cdc_outbox.table.sent import WAITING_WORDS, folded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.repair.old_book import Book
    from cdc_outbox.table.sent import Bookkeeping

NAMED: Final = 10
"""Ids that are named of each kind of difference."""

Kind: TypeAlias = Literal[
    "not sent", "left out", "poison", "stuck", "same id", "no id", "changed", "never inserted"
]

Trouble: TypeAlias = tuple[Kind, str, str, str]
"""Kind, `what`, `error` and `next` of a difference."""


@dataclass(slots=True)
class Difference:
    """Rows of which something would be different in the same way.

    `what` is a bounded word: the status, the reason. `sent`: whether the old relay marked them as sent. `error` tells
    of the first of them.
    """

    kind: Kind
    what: str
    sent: bool
    error: str
    next: str
    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, id_: str) -> None:
        self.count += 1
        if len(self.ids) < NAMED:
            self.ids.append(id_)


def as_sent(book: Bookkeeping) -> Trouble:
    """Ours leaves the row out, for its columns said from the start that it was sent."""
    columns = " and ".join(quote(field.name) for field in book.sent.fields) if book.sent is not None else ""
    remedy = (
        "name what tells that a row was sent: --column sent_at=NAME, or --status column=NAME; or, if that column is "
        "another time and the old relay deletes what it has sent: --column created_at=NAME"
    )
    error = (
        f"{columns} said at its insert that it was sent already, and the old relay took it up all the same"
    )
    return ("left out", "inserted as sent", error, remedy)


_INSERTS: Final = (
    "have the application write each event as a row of its own, whole, in one INSERT, before you move: "
    "docs/how-to/leave-a-polling-relay.md has the ways"
)

NEVER_INSERTED: Final[Trouble] = (
    "never inserted",
    "",
    "no INSERT has brought it: an UPDATE has written the row anew, or has set it back to unsent",
    _INSERTS,
)


def changed(now: Sequence[str | None], before: Sequence[str | None], names: Sequence[str]) -> Trouble:
    """Ours sends the row as it was inserted, and the old relay as an UPDATE has made it."""
    columns = ", ".join(name for name, a, b in zip(names, now, before, strict=True) if a != b)
    return ("changed", columns, f"an UPDATE has changed {columns} since, and ours sends no UPDATE", _INSERTS)


REPEATED: Final[Trouble] = (
    "same id",
    "",
    "another row bears the same event id, and consumers tell events apart by it",
    "name a column that is unique with --column id=NAME",
)

NAMELESS: Final[Trouble] = (
    "no id",
    "",
    "its event id is NULL: consumers can't tell it from another, and it can't be looked up",
    "name a column that is never NULL with --column id=NAME",
)


def unsent(status: str, book: Book) -> Trouble:
    """Ours would have sent it; why the old relay hasn't, by the status that it left in the row."""
    keeping, word = book.keeping, folded(status)
    shown = f"status {status}" if status else "not marked"
    failed, taken = keeping.failed, keeping.taken
    if failed is not None and word in failed.retried:
        why, remedy = (
            "sending has failed there, and it tries again later",
            "see what the old relay notes of it; ours would have sent it at its commit",
        )
    elif failed is not None and word in failed.given_up:
        why, remedy = (
            "sending has failed there, and it was given up",
            "see what the old relay notes of it; at the cut-over: cdc-outbox backfill --failed skip or publish",
        )
    elif taken is not None and word in taken.words:
        why, remedy = (
            "a worker of the old relay has it in hand, or died with it",
            "see whether all its workers live",
        )
    elif keeping.sent is not None and keeping.sent.beside is not None and word in keeping.sent.words:
        column, time = keeping.sent.field.name, keeping.sent.beside.name
        why = f"its {quote(column)} looks as if it said that it was sent, and its {quote(time)} is NULL"
        remedy = (
            f"say which of them tells it, and compare again: --column sent_at={time}, if rows wait while that is NULL; "
            f"or --status column={column}"
        )
    elif word in (keeping.sent.waiting if keeping.sent is not None else WAITING_WORDS):
        why, remedy = (
            "the old relay hasn't sent it",
            "see whether the old relay runs and keeps up, then compare for longer",
        )
    else:
        field = keeping.status or book.beside
        column = quote(field.name) if field is not None else "status"
        why = f"nobody has said what this word of {column} means: the old relay may have sent it, or given it up"
        named = "" if keeping.status is not None else f"--status column={column} "
        remedy = (
            f"name it under [outbox.status], or with {named}--status {shlex.quote(f'sent={status}')} (or failed, "
            "given_up, taken, waiting), and compare again"
        )
    return ("not sent", shown, f"{why}; ours would send it", remedy)
