"""Kinds of values: how a setting is read from text and from TOML, shown, and described to an editor.

A kind raises ValueError with a clause that says what a right value looks like; the caller knows whether the
value came from a flag, a variable or the file, and names it. `Refused` is for a value that is well formed
and can't be had.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

_TYPE_NAMES: Final = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}


class Refused(ValueError):
    """The value is well formed, but this version, or this relay, can't do what it asks for."""

    def __init__(self, message: str, *, next: str) -> None:  # noqa: A002 - the contract's word for the remedy
        super().__init__(message)
        self.next = next


class Unknown(ValueError):
    """The value is none of a few words. `meant`: the one that it was surely to be; `instead`: what to do without."""

    def __init__(self, message: str, *, meant: str | None, instead: str) -> None:
        super().__init__(message)
        self.meant = meant
        self.instead = instead


class Unquotable(ValueError):
    """The value may hold a secret where none belongs: no complaint quotes it."""


def type_name(value: object) -> str:
    """What TOML calls a value, for an error."""
    return _TYPE_NAMES.get(type(value), "a date or time")


def one_or_more(one: dict[str, object]) -> dict[str, object]:
    """The JSON Schema of a value that the file may also have as a list of such."""
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


def plain_text(value: object) -> str:
    """The text of a TOML string, number or truth value.

    Raises ValueError for lists, tables and dates.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"it is {type_name(value)}, not text in quotes")


class Kind:
    """Text that is not empty, and what all kinds share: `text`, `texts` and `toml` raise ValueError."""

    def __init__(self, example: str, metavar: str = "TEXT") -> None:
        """`example`: a right value as one types it. `metavar`: what `--help` calls one."""
        self.example = example
        self.metavar = metavar

    def text(self, text: str) -> Any:
        """Read a flag or an environment variable."""
        if not text.strip():
            raise ValueError("it is empty")
        return text

    def texts(self, texts: Sequence[str]) -> Any:
        """Read a flag that may be repeated."""
        return self.text(texts[-1])

    def toml(self, value: object) -> Any:
        """Read a value of the file."""
        if not isinstance(value, str):
            raise ValueError(f"it is {type_name(value)}, not text in quotes")
        return self.text(value)

    @property
    def toml_example(self) -> str:
        """The example as the file spells it."""
        return f'"{self.example}"'

    def show(self, value: Any) -> object:
        """The value as the file would spell it."""
        return value

    def schema(self) -> dict[str, object]:
        """The value in JSON Schema."""
        return {"type": "string", "minLength": 1}


class Unquoted(Kind):
    """A value that TOML writes without quotes."""

    @property
    def toml_example(self) -> str:
        return self.example
