"""The text of a column's value, as SQL: what the stream has of it, where a cast to text differs for some types.

`format` gives what the type's output function gives. Statements with these are run with parameters, if with none at
all, so that `%%` is a per cent sign.
"""

from __future__ import annotations

from typing import Final, LiteralString

from psycopg import sql

_TEXT: Final[LiteralString] = (
    "case when {0} is not distinct from null then null else pg_catalog.format('%%s', {0}) end"
)

# In the encoding in which the stream has it, so that both sides can be compared without fetching it.
_DIGEST: Final[LiteralString] = (
    "case when {0} is not distinct from null then null else pg_catalog.encode(pg_catalog.sha256("
    "pg_catalog.convert_to(pg_catalog.format('%%s', {0}), pg_catalog.pg_client_encoding())), 'hex') end"
)


def text_of(column: sql.Identifier) -> sql.Composed:
    """The column's value as text, NULL where it has none."""
    return sql.SQL(_TEXT).format(column)


def digest_of(column: sql.Identifier) -> sql.Composed:
    """The SHA-256 of that text, in hex; NULL where there is none."""
    return sql.SQL(_DIGEST).format(column)
