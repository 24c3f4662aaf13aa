"""Columns that look as if they said what became of a row, and that nothing reads.

Their names are all that is known of them, so nothing is concluded but that a person should be asked: a table without
such a column is published whole, one with such a column might have sent most of its rows long ago.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cdc_outbox.table.values import BOOL, FIRST_USER_TYPE, INTEGERS, TEXTUAL, TIMES, Field

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdc_outbox.table.plan import Plan
    from cdc_outbox.table.recognise import Shape
    from cdc_outbox.table.sent import Bookkeeping

_LOOKS: Final = re.compile("state|status|sent|publish|process|dispatch|deliver", re.IGNORECASE)


def doubtful(shape: Shape, ignored: Collection[str], book: Bookkeeping) -> Field | None:
    """The first of the `ignored` columns that looks like a mark and is none; one with words before one with a time."""
    known = {mark.field for mark in book.marks}
    known |= {each.field for each in (book.sent, book.failed, book.taken) if each is not None}
    found = [
        field
        for field in shape.fields
        if field.name in ignored and field not in known and _LOOKS.search(field.name) and _could_be(field)
    ]
    return min(found, key=lambda field: field.type_oid in TIMES, default=None)


def unmarked(plan: Plan) -> Field | None:
    """A column that looks like a status of words, which a mark of this plan's rows leaves as it is."""
    book = plan.bookkeeping
    if book.status is not None:
        return book.status if all(mark.field != book.status for mark in book.marks) else None
    field = doubtful(plan.shape, plan.ignored, book)
    return None if field is None or field.type_oid in TIMES else field


def remedy(field: Field) -> str:
    """How the column is named for what it is."""
    if field.type_oid in TIMES:
        return f"--column sent_at={field.name}"
    return f"--status column={field.name} --status sent=WORD (and failed, given_up, taken, waiting)"


def _could_be(field: Field) -> bool:
    return field.type_oid in TEXTUAL | INTEGERS | TIMES | {BOOL} or field.type_oid >= FIRST_USER_TYPE
