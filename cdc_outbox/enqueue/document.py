"""Texts and JSON as PostgreSQL takes them: what it would refuse is refused here, for there it spoils the transaction.

https://www.postgresql.org/docs/current/datatype-json.html
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import orjson

from cdc_outbox.errors import EventUnfit

Default = Callable[[Any], Any]

# An escaped NUL after an even number of backslashes.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)

_NO_NUL: Final = "leave the character out, or send what is binary as base64"


def text(name: str, value: object) -> str:
    """A text, or a number or UUID as text. Raises EventUnfit."""
    if isinstance(value, str):
        found = str.__str__(value)  # of an enum's member its value
    elif isinstance(value, int) and not isinstance(value, bool):
        found = int.__repr__(value)
    elif isinstance(value, UUID):
        found = str(value)
    elif value is None:
        raise EventUnfit(
            f"{name} is None",
            next=f"name it; of a row that has no key yet, flush first, then take its {name}",
        )
    else:
        raise EventUnfit(
            f"{name} is {_shown(value)}, which is neither text nor a number nor a UUID",
            next=f"hand {name} over as text",
        )
    _encoded(name, found)
    return found


def json(name: str, value: object, *, binary: bool, default: Default | None) -> bytes:
    """A value as JSON text in UTF-8; text and bytes are taken as JSON already. `binary`: for a `jsonb` column.

    Raises EventUnfit.
    """
    if isinstance(value, str | bytes):
        raw = _encoded(name, value) if isinstance(value, str) else value
        try:
            orjson.loads(raw)
        except ValueError as error:
            raise EventUnfit(
                f"{name} isn't valid JSON: {error}",
                next=f"hand {name} over as dict, list or JSON text; a text alone is JSON within quotes",
            ) from None
    else:
        try:
            raw = orjson.dumps(value, default=default)
        except TypeError as error:
            raise EventUnfit(
                f"{name} can't be written as JSON: {error}",
                next="convert what JSON has no type for (str(amount) of a Decimal), or say how once: "
                "Outbox(default=str)",
            ) from None
    if binary and _NUL.search(raw) is not None:
        raise EventUnfit(f"{name} holds the character U+0000, which jsonb can't keep", next=_NO_NUL)
    return raw


def most_printed(raw: bytes) -> int:
    """At most so many bytes come out when `jsonb` is printed, which sets a blank behind each comma and colon."""
    return len(raw) + raw.count(b",") + raw.count(b":")


def printed(raw: bytes) -> int:
    """The bytes that come out when `jsonb` is printed, as far as numbers are printed as they were written."""
    compact = orjson.dumps(orjson.loads(raw))
    bare = _STRING.sub(b"", compact)
    return len(compact) + bare.count(b",") + bare.count(b":")


def uuid(name: str, value: str) -> str:
    """The text of a UUID. Raises EventUnfit."""
    try:
        UUID(value)
    except ValueError:
        raise EventUnfit(
            f"{name} is {value!r}, which is no UUID", next=f"hand a UUID over as {name}"
        ) from None
    return value


def _encoded(name: str, value: str) -> bytes:
    if "\x00" in value:
        raise EventUnfit(f"{name} holds the character U+0000, which PostgreSQL can't keep", next=_NO_NUL)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise EventUnfit(
            f"{name} holds half of a surrogate pair, which isn't text",
            next='decode the text with errors="replace" where it comes from',
        ) from None


def _shown(value: object) -> str:
    """A value that is no plain one is told by its type: it may be large, or a secret."""
    return f"of type {type(value).__name__}"
