"""The nouns that an outbox event is made of, on its way from a row to a Kafka message.

Pure and without dependencies, so that every room of the house can name them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

Values: TypeAlias = list[bytes | None]
"""One row as it arrives: the text of each column in the relation's order, None for NULL."""

Headers: TypeAlias = list[tuple[str, bytes]]

Encoded: TypeAlias = tuple[str, int | None, bytes | None, bytes | None, int, Headers]
"""One Kafka message: topic, partition (None: by the key), key, value, timestamp in ms, headers."""

_PLAIN: Final = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_PART: Final = re.compile(
    r'\s*(?:"((?:[^"\x00]|"")+)"|([A-Za-z_\u0080-\U0010ffff][\w$\u0080-\U0010ffff]*))\s*'
)
_UPPER: Final = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}

# https://www.postgresql.org/docs/current/sql-keywords-appendix.html, the reserved ones.
_RESERVED: Final = re.compile(
    r"all|analyse|analyze|and|any|array|as|asc|asymmetric|authorization|binary|both|case|"
    r"cast|check|collate|collation|column|concurrently|constraint|create|cross|current_catalog|"
    r"current_date|current_role|current_schema|current_time|current_timestamp|current_user|default|"
    r"deferrable|desc|distinct|do|else|end|except|false|fetch|for|foreign|freeze|from|full|"
    r"grant|group|having|ilike|in|initially|inner|intersect|into|is|isnull|join|lateral|"
    r"leading|left|like|limit|localtime|localtimestamp|natural|not|notnull|null|offset|on|"
    r"only|or|order|outer|overlaps|placing|primary|references|returning|right|select|"
    r"session_user|similar|some|symmetric|system_user|table|tablesample|then|to|trailing|true|"
    r"union|unique|user|using|variadic|verbose|when|where|window|with"
)


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A table's schema and name, as the catalogue spells them."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read a name as SQL does: folded to lower case unless quoted; unqualified means schema `public`.

        Raises ValueError on anything that isn't one or two identifiers.
        """
        parts: list[str] = []
        at = 0
        while True:
            found = _PART.match(text, at)
            if found is None:
                raise ValueError(f"not a table name: {text!r}")
            quoted, plain = found.groups()
            # PostgreSQL folds ASCII letters only, where the encoding is a multibyte one.
            parts.append(quoted.replace('""', '"') if quoted is not None else plain.translate(_UPPER))
            at = found.end()
            if at == len(text):
                break
            if text[at] != "." or len(parts) == 2:
                raise ValueError(f"not a table name: {text!r}")
            at += 1
        return cls(*parts) if len(parts) == 2 else cls("public", parts[0])

    def __str__(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"


def quote(identifier: str) -> str:
    """Spell an identifier for SQL: quoted where it needs to be, for a person to read and to paste."""
    if _PLAIN.match(identifier) and not _RESERVED.fullmatch(identifier):
        return identifier
    return '"' + identifier.replace('"', '""') + '"'


def event_id(message: Encoded) -> str | None:
    """The event's id, as its header says it."""
    return next((value.decode(errors="replace") for name, value in message[5] if name == "id"), None)
