"""The keys of rows that wait for their mark, packed as a statement takes them.

On the hot path a row costs one more call and one reference; keys are packed once a drain.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.postgres.marking import BATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdc_outbox.event import Encoded, Values
    from cdc_outbox.postgres.marking import Marking

    Encode = Callable[[Values, int, int, int], Encoded | str]

_CHUNK: Final = 240
"""Bytes of memory that a chunk takes beside its keys, about."""

_PLAIN: Final = frozenset({"uuid", "smallint", "integer", "bigint"})
"""Types whose text needs no quotes in an array literal."""

_ELEMENT: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[^,]+', re.DOTALL)
"""One of the elements inside an array literal."""


class Chunk:
    """Keys of rows of one table. They are delivered when a position beyond `lsn` is confirmed.

    `keys` has for each column of the key the inside of an array literal; `tries`: how often rows of it were locked, or
    couldn't be marked; `visible`: what isn't found was deleted; `suspect`: one of its rows may be what can't be marked.
    `until`: when it stops being fresh, on the clock that goes on while the machine is suspended; `below`: the
    transactions whose rows it may mark, those below this number, once it isn't fresh any more.
    """

    __slots__ = ("below", "count", "keys", "lsn", "marking", "size", "suspect", "tries", "until", "visible")

    def __init__(
        self, marking: Marking, lsn: int, count: int, keys: tuple[bytes, ...], tries: int = 0
    ) -> None:
        self.visible = self.suspect = False
        self.until = math.inf
        self.below: int | None = None
        self.marking = marking
        self.lsn = lsn
        self.count = count
        self.keys = keys
        self.tries = tries
        self.size = _CHUNK + sum(map(len, keys))

    def goes_with(self, other: Chunk, now: float) -> bool:
        """Whether one statement may mark both."""
        if self.suspect or other.suspect or (self.until > now) is not (other.until > now):
            return False
        return self.marking is other.marking and self.visible is other.visible

    def halves(self) -> tuple[Chunk, Chunk]:
        """Two that have its rows, as suspect ones."""
        columns, middle = [_ELEMENT.findall(column) for column in self.keys], self.count // 2
        return self._part(columns, 0, middle), self._part(columns, middle, self.count)

    def _part(self, columns: list[list[bytes]], first: int, last: int) -> Chunk:
        keys = tuple(b",".join(column[first:last]) for column in columns)
        part = Chunk(self.marking, self.lsn, last - first, keys, self.tries)
        part.visible, part.suspect, part.until = self.visible, True, self.until
        return part

    def literals(self) -> list[str]:
        """An array literal for each column of the key."""
        return [f"{{{column.decode()}}}" for column in self.keys]

    def shown(self) -> str:
        """The same for a person to read, whatever bytes they are, as those of a SQL_ASCII database may be."""
        return ", ".join(f"{{{column.decode(errors='backslashreplace')}}}" for column in self.keys)


class Noted:
    """The keys of one table's rows since the last cut."""

    __slots__ = ("marking", "plain", "rows")

    def __init__(self, marking: Marking) -> None:
        self.marking = marking
        self.plain = [column.type in _PLAIN for column in marking.how.key]
        self.rows: list[Any] = []

    def chunks(self, lsn: int) -> Iterator[Chunk]:
        """All of them, packed; there are none afterwards."""
        rows = self.rows[:]
        self.rows.clear()
        for first in range(0, len(rows), BATCH):
            some = rows[first : first + BATCH]
            columns = [some] if len(self.plain) == 1 else list(zip(*some, strict=True))
            keys = tuple(_packed(*each) for each in zip(columns, self.plain, strict=True))
            yield Chunk(self.marking, lsn, len(some), keys)


def _packed(values: Sequence[bytes], plain: bool) -> bytes:
    if plain:
        return b",".join(values)
    return b",".join([b'"%b"' % each.replace(b"\\", b"\\\\").replace(b'"', b'\\"') for each in values])


def joined(some: Sequence[Chunk], count: int) -> Chunk:
    """Chunks that go with each other as one, of `count` rows."""
    columns = zip(*(chunk.keys for chunk in some), strict=True)
    keys = tuple(b",".join(column) for column in columns)
    whole = Chunk(some[0].marking, some[-1].lsn, count, keys, max(chunk.tries for chunk in some))
    whole.visible, whole.until = some[0].visible, min(chunk.until for chunk in some)
    return whole


def noting(encode: Encode, places: tuple[int, ...], rows: list[Any]) -> Encode:
    """The same function, which also notes in `rows` the values at these places of each row that is sent."""
    return (_note_one if len(places) == 1 else _note_several)(encode, places, rows)


def _note_one(encode: Encode, places: tuple[int, ...], rows: list[Any]) -> Encode:
    (at,), note = places, rows.append

    def encoding(values: Values, lsn: int, seq: int, commit_us: int) -> Encoded | str:
        encoded = encode(values, lsn, seq, commit_us)
        if encoded.__class__ is tuple:
            note(values[at])
        return encoded

    return encoding


def _note_several(encode: Encode, places: tuple[int, ...], rows: list[Any]) -> Encode:
    note = rows.append

    def encoding(values: Values, lsn: int, seq: int, commit_us: int) -> Encoded | str:
        encoded = encode(values, lsn, seq, commit_us)
        if encoded.__class__ is tuple:
            note([values[at] for at in places])
        return encoded

    return encoding
