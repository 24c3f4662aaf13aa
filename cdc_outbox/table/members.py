"""Kafka headers from the members of a JSON object.

Text goes out as raw UTF-8, numbers and booleans as the document spells them, objects and arrays as their
own text without blanks, null not at all. Nearly all rows hold an object of short texts, which the fast
parser reads; where it would have to round a number or can't read a document that PostgreSQL accepts, an
exact walk takes over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

import orjson

from cdc_outbox.event import Headers
from cdc_outbox.table.unfit import LEAVE_OUT, Unfit

RESERVED: Final = "cdc."
"""Names that begin so are ours."""

Append: TypeAlias = Callable[[bytes, Headers], None]

_BLANK: Final = re.compile(r"[ \t\n\r]*")
_COMPACT: Final = re.compile(r'("[^"\\]*(?:\\.[^"\\]*)*")|[ \t\n\r]+', re.DOTALL)


def _refuse(_word: str) -> object:
    raise ValueError("not JSON")


_scan: Final = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_refuse).raw_decode


def compile(  # noqa: A001 - as in re.compile
    column: str,
    taken: Collection[str],
    dropped: dict[str, int],
    read: Callable[[bytes, str], dict[str, bytes | None]] | None = None,
) -> Append:
    """A function that appends the members of a JSON text to a message's headers.

    `read` reads another form of names and values, from a text and the column's name. `taken` are names that a
    member can't have: those of the event's own headers and of placed columns. Members that lose their name are
    counted in `dropped` under the reserved name or `placed`. Raises Unfit where the text isn't an object, or a
    name or value can't be a header.
    """
    loads = orjson.loads
    used = frozenset(taken)

    def drop(name: str) -> None:
        counted = name if name in {"id", "type"} else RESERVED if name[:4] == RESERVED else "placed"
        dropped[counted] = dropped.get(counted, 0) + 1

    def exactly(raw: bytes, headers: Headers) -> None:
        for name, value in (read or _walk)(raw, column).items():
            if name in used or name[:4] == RESERVED:
                drop(name)
            elif value is not None:
                headers.append((name, value))

    if read is not None:
        return exactly

    def append(raw: bytes, headers: Headers) -> None:
        try:
            members = loads(raw)
        except ValueError:
            return exactly(raw, headers)
        if members.__class__ is not dict:
            raise _not_an_object(column)
        found: Headers = []
        lost = None
        for name, value in members.items():
            if name in used or name[:4] == RESERVED:
                lost = [name] if lost is None else [*lost, name]
            elif value.__class__ is str:
                found.append((name, value.encode()))
            elif value is True:
                found.append((name, b"true"))
            elif value is False:
                found.append((name, b"false"))
            elif value.__class__ is int and value != 0:
                found.append((name, b"%d" % value))
            elif value is not None:
                return exactly(raw, headers)
        if lost is not None:
            for name in lost:
                drop(name)
        headers += found
        return None

    return append


def _not_an_object(column: str) -> Unfit:
    return Unfit(
        "headers",
        f"column {column} isn't a JSON object",
        f"write an object or NULL into {column}, or {LEAVE_OUT}",
    )


def _walk(raw: bytes, column: str) -> dict[str, bytes | None]:
    """The members in the document's spelling: of doubled names the first place and the last value."""
    members: dict[str, bytes | None] = {}
    try:
        # In a SQL_ASCII database a text may hold any bytes; they pass as they are.
        text = raw.decode("utf-8", "surrogateescape")
        at = _skip(text, 0)
        if text[at : at + 1] != "{":
            _scan(text, at)
            raise _not_an_object(column)
        at = _skip(text, at + 1)
        if text[at : at + 1] == "}":
            return _ended(members, text, at)
        while True:
            quoted = text[at : at + 1] == '"'
            name, at = _scan(text, at)
            at = _skip(text, at)
            if not quoted or text[at : at + 1] != ":":
                raise ValueError("not a member")
            start = _skip(text, at + 1)
            value, end = _scan(text, start)
            name.encode()  # a header's name is text: no stray bytes, no half characters
            members[name] = _spell(value, text[start:end])
            at = _skip(text, end)
            if text[at : at + 1] == "}":
                return _ended(members, text, at)
            if text[at : at + 1] != ",":
                raise ValueError("no comma")
            at = _skip(text, at + 1)
    except UnicodeError:
        problem = f"a name or text in column {column} isn't valid Unicode"
    except (ValueError, RecursionError):
        problem = f"column {column} isn't JSON that can be read"
    raise Unfit("headers", problem, f"write a JSON object or NULL into {column}, or {LEAVE_OUT}")


def _skip(text: str, at: int) -> int:
    blank = _BLANK.match(text, at)
    return blank.end() if blank else at


def _ended(members: dict[str, bytes | None], text: str, at: int) -> dict[str, bytes | None]:
    if _skip(text, at + 1) != len(text):
        raise ValueError("text after the object")
    return members


def _spell(value: object, span: str) -> bytes | None:
    if value is None:
        return None
    if span[0] == '"':
        return str(value).encode("utf-8", "surrogateescape")
    if span[0] in "{[":
        span = _COMPACT.sub(lambda found: found[1] or "", span)
    return span.encode("utf-8", "surrogateescape")
