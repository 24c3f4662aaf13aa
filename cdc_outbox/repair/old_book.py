"""The old relay's book: in which of a table's columns it says of a row whether it was sent."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from cdc_outbox.table import doubt
from cdc_outbox.table.values import TIMES, epoch_us

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import Values
    from cdc_outbox.table.plan import Plan
    from cdc_outbox.table.sent import Bookkeeping
    from cdc_outbox.table.values import Field


@dataclass(frozen=True, slots=True)
class Book:
    """Where a table's row says whether it was sent: the columns to look at, in the order of the texts of a row."""

    keeping: Bookkeeping
    columns: tuple[str, ...]
    time: int | None
    """Place of the column with the time of the sending."""
    beside: Field | None = None
    """A column that looks like a status, in a table whose marks are none of words."""
    written: tuple[str, ...] = ()
    """The columns that a message is made of, which the old relay leaves as they were inserted."""
    id: str = "id"
    """The column of the event's id."""
    sent_at: Field | None = None
    """The column at `time`."""

    @classmethod
    def of(cls, plan: Plan) -> Book:
        keeping = plan.bookkeeping
        status = keeping.failed or keeping.taken
        named = [*(keeping.sent.fields if keeping.sent is not None else ())]
        named += [status.field] if status is not None else []
        times = [
            mark.field
            for mark in keeping.marks
            if mark.field.type_oid in TIMES and not mark.words and not mark.seconds
        ]
        beside = doubt.unmarked(plan)
        looked_at = [*named, *times[:1], *([beside] if beside is not None else [])]
        columns = list(dict.fromkeys(each.name for each in looked_at))
        time = times[0] if times else None
        at = None if time is None else columns.index(time.name)
        return cls(keeping, tuple(columns), at, beside, _written(plan), plan.layout.id.name, time)

    def sent(self, texts: Sequence[str | None]) -> bool:
        """Whether these texts mean that the row was sent."""
        mark = self.keeping.sent
        if mark is None:
            return False
        of = [texts[self.columns.index(field.name)] for field in mark.fields]
        return mark.says(of[0], of[-1])

    def digests(self, plan: Plan, values: Values) -> tuple[str | None, ...]:
        """Of a row as the stream has it, what `lookup.Found.digests` is of the same row in the table."""
        fields = [plan.shape.find(name) for name in self.written]
        raw = [None if field is None else values[field.at] for field in fields]
        return tuple(None if each is None else sha256(each).hexdigest() for each in raw)

    def status(self, texts: Sequence[str | None]) -> str:
        """The word that a row which wasn't sent has in its status; empty where the table has none, or NULL."""
        status = self.keeping.status or self.beside
        return "" if status is None else texts[self.columns.index(status.name)] or ""

    def sent_us(self, texts: Sequence[str | None]) -> int | None:
        """When it was sent, in µs since 1970, as far as the table says it."""
        text = None if self.time is None else texts[self.time]
        return None if text is None else epoch_us(text.encode(), self.columns[self.time or 0])


def _written(plan: Plan) -> tuple[str, ...]:
    """The columns of a message without those in which the old relay keeps its book."""
    book = plan.bookkeeping
    if book.annotated:
        return ()
    kept = {mark.field for mark in book.marks} | {*(book.sent.fields if book.sent is not None else ())}
    kept |= {each.field for each in (book.failed, book.taken) if each is not None}
    kept |= {plan.layout.id, *([plan.optional["due"]] if "due" in plan.optional else [])}
    return tuple(field.name for field in plan.shape.fields if field.at in plan.read and field not in kept)
