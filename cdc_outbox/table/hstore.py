"""An hstore as PostgreSQL prints it: `"a"=>"1", "b"=>NULL`.

https://www.postgresql.org/docs/current/hstore.html
"""

from __future__ import annotations

import re
from typing import Final

from cdc_outbox.table.unfit import LEAVE_OUT, Unfit

_TEXT: Final = rb'"((?:[^"\\]|\\.)*)"'
_PAIR: Final = re.compile(_TEXT + rb"=>(?:NULL|" + _TEXT + rb")(?:, |\Z)", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)


def pairs(raw: bytes, column: str) -> dict[str, bytes | None]:
    """Names and values, NULL as None. Raises Unfit on other text, and on names that aren't UTF-8."""
    found: dict[str, bytes | None] = {}
    at = 0
    while at < len(raw):
        pair = _PAIR.match(raw, at)
        if pair is None:
            raise _unreadable(column)
        try:
            name = _ESCAPED.sub(rb"\1", pair[1]).decode()
        except UnicodeDecodeError:
            raise _unreadable(column) from None
        found[name] = None if pair[2] is None else _ESCAPED.sub(rb"\1", pair[2])
        at = pair.end()
    return found


def _unreadable(column: str) -> Unfit:
    return Unfit(
        "headers",
        f"column {column} isn't an hstore that can be read",
        f"write NULL into {column}, or {LEAVE_OUT}",
    )
