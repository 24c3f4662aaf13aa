"""Templates for topics and keys: `orders.{event_type}`, where a name in braces stands for a column.

`{{` and `}}` are braces themselves. Which column a name means is the plan's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from cdc_outbox.event import Values
from cdc_outbox.table.values import Field

Part: TypeAlias = bytes | Field
Source: TypeAlias = Callable[[Values], bytes | None]


def parse(text: str) -> list[tuple[str, str]]:
    """Split a template into pairs of literal text and the name that follows it (empty after the last).

    Raises ValueError, saying which brace is wrong.
    """
    pieces: list[tuple[str, str]] = []
    literal = ""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter in "{}" and text[at : at + 2] == letter * 2:
            literal += letter
            at += 2
        elif letter == "{":
            end = text.find("}", at)
            name = text[at + 1 : end]
            if end < 0 or not name or "{" in name:
                raise ValueError(f"the brace at character {at + 1} of {text!r} doesn't hold a column's name")
            pieces.append((literal, name))
            literal = ""
            at = end + 1
        elif letter == "}":
            raise ValueError(f"the brace at character {at + 1} of {text!r} closes nothing")
        else:
            literal += letter
            at += 1
    return [*pieces, (literal, "")] if literal or not pieces else pieces


def resolve(text: str, find: Callable[[str], Field]) -> list[Part]:
    """The template's parts, with `find` naming the field of each placeholder."""
    parts: list[Part] = []
    for literal, name in parse(text):
        if literal:
            parts.append(literal.encode())
        if name:
            parts.append(find(name))
    return parts


def compose(parts: Sequence[Part], *, empty: bool) -> Source:
    """A function from a row to the text that its values make.

    It answers None where a value is NULL, and where one is the empty text unless `empty` allows it.
    """
    if len(parts) == 1 and isinstance(parts[0], Field):
        return _single(parts[0], empty=empty)

    def composed(values: Values) -> bytes | None:
        pieces: list[bytes] = []
        for part in parts:
            if isinstance(part, bytes):
                pieces.append(part)
                continue
            value = values[part.at]
            if value is None or not (value or empty):
                return None
            pieces.append(value if part.read is None else part.read(value))
        return b"".join(pieces)

    return composed


def _single(field: Field, *, empty: bool) -> Source:
    at = field.at
    read = field.read

    def single(values: Values) -> bytes | None:
        value = values[at]
        if value is None or not (value or empty):
            return None
        return value if read is None else read(value)

    return single
