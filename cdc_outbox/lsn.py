"""A position in PostgreSQL's write-ahead log.

An LSN has an order and a spelling and nothing else: there is no `+`, because a position that was computed
instead of received is how relays confirm what they never saw.
"""

from __future__ import annotations

import re
from typing import Final, NoReturn, final

_SPELLING: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@final
class LSN(int):
    """A 64-bit WAL position. Compares and hashes as an int; prints as PostgreSQL does (`16/B374D848`)."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> LSN:
        """Read `X/X`, as PostgreSQL prints a `pg_lsn`.

        Raises ValueError on anything else.
        """
        found = _SPELLING.fullmatch(text)
        if found is None:
            raise ValueError(f"not an LSN: {text!r}")
        return cls((int(found[1], 16) << 32) | int(found[2], 16))

    def __str__(self) -> str:
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        return f"LSN({self})"

    def _no_arithmetic(self, _other: object) -> NoReturn:
        raise TypeError("an LSN is received, never computed; use bytes_since() for a distance")

    __add__ = __radd__ = _no_arithmetic  # arithmetic is forbidden on purpose

    def bytes_since(self, earlier: int) -> int:
        """Bytes of WAL between an earlier position and this one; never negative."""
        return max(0, int(self) - int(earlier))


ZERO: Final = LSN(0)


def place(final_lsn: int, seq: int) -> str:
    """Where a row stands, in words: in its transaction, or (without an LSN) among the rows read from the table."""
    return f"at {LSN(final_lsn)}, row {seq}" if final_lsn else f"in the table, row {seq} in order"
