"""Another session's statement, as it may be told: its shape without its values. Pure.

A query in `pg_stat_activity` has the literals that an application wrote into it: names, card numbers, a password of
ALTER ROLE. So strings and numbers become `?`, and comments are left out. The server cuts a long query off, in the
midst of a literal too, and what has no end is one until the end.

https://www.postgresql.org/docs/current/sql-syntax-lexical.html
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<value>
          [eE]'(?:[^'\\]|\\.|'')*'?                         # with escapes
        | (?:[bBnNxX]|[uU]&)?'(?:[^']|'')*'?
        | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z)
        | \.?\d(?:[eE][+-]?\d|[\w.])*
      )
    | "(?:[^"]|"")*"? | \$\d+ | [^\W\d][\w$]*               # a name, a parameter, a word
    """,
    re.VERBOSE | re.DOTALL,
)


def shape(query: str) -> str:
    """The statement on one line, with `?` for each string and number."""
    return " ".join(_TOKEN.sub(_told, query).split())


def _told(token: re.Match[str]) -> str:
    if token["value"] is not None:
        return "?"
    return " " if token["comment"] is not None else token[0]
