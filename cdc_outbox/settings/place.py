"""Where a value stands (a flag, a variable, a line of the file), and how to complain about it.

A malformed flag is wrong usage (exit 2); a malformed value in the environment or the file is wrong
configuration (exit 78); a value that can't be had is the latter wherever it stands. No complaint quotes a
secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from cdc_outbox.errors import ConfigError, UsageError
from cdc_outbox.log import json_text
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.kind import Kind, Refused, Unknown, Unquotable
from cdc_outbox.settings.likeness import likeness, nearest

_LONGEST_QUOTE: Final = 80

_ALIKE: Final = 0.5
"""From which likeness on an unknown name is a known one mistyped."""

_FEW: Final = 16
"""Names that a person reads to the end."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value that was read, and where it came from, in the words of `config show`."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Place:
    """`origin` is for `config show`, `label` for a complaint; `example` says what would be right there.

    `written`: how another word is written there.
    """

    origin: str
    label: str
    example: str
    error: type[UsageError | ConfigError] = ConfigError
    written: Callable[[str], str] = str

    def read(self, reader: Callable[[], Any], quoted: object | None) -> Value:
        """Read a value. What the reader refuses becomes an error that quotes `quoted`, unless that is None."""
        try:
            return Value(reader(), self.origin)
        except ValueError as reason:
            self.reject(reason, quoted)

    def reject(self, reason: ValueError, quoted: object | None) -> NoReturn:
        """Raise the error that says what is wrong here."""
        unquoted = quoted is None or isinstance(reason, Unquotable)
        what = self.label if unquoted else f"{self.label} is {_quote(quoted)}"
        if isinstance(reason, Refused):
            raise ConfigError(f"{what}: {reason}", next=reason.next) from None
        example = self.example
        if isinstance(reason, Unknown):
            if reason.meant is None:
                raise self.error(f"{what}: {reason}", next=reason.instead) from None
            example = self.written(reason.meant)
        raise self.error(f"{what}: {reason}", next=f"write it like this: {example}") from None

    def entry(self, entries: Entries, name: str) -> Place:
        """The place of one entry within a flag or a variable that holds names and values."""
        between = " " if self.error is UsageError else "="

        def written(word: str) -> str:
            return f"{self.label}{between}{shell(f'{name}={word}')}"

        example = written(entries.kind_of(name).example)
        return Place(self.origin, f"{self.label} {name}", example, self.error, written)

    def known(self, entries: Entries, name: str) -> str:
        """An entry's name as we keep it, where there is such an entry."""
        try:
            normal = entries.normal(name)
        except ValueError as reason:
            self.reject(reason, name)
        if entries.names is not None and normal not in entries.names:
            near = nearest(normal, entries.names)
            step = f"the nearest known name is {near!r}; write that, or leave it out"
            if likeness(normal.lower(), near) < _ALIKE:
                step = (
                    f"the known names are {', '.join(entries.names)}"
                    if len(entries.names) <= _FEW
                    else "no known name is like it; all of them are in: cdc-outbox config schema"
                )
            raise self.error(f"{self.label}: unknown name {_quote(name)}", next=step)
        return normal


def flag_place(flag: str, kind: Kind | Entries) -> Place:
    """A flag on the command line; what is wrong there is wrong usage."""

    def written(word: str) -> str:
        return f"{flag} {shell(word)}"

    return Place(f"flag {flag}", flag, written(kind.example), UsageError, written)


def variable_place(variable: str, example: str) -> Place:
    """A variable of the environment."""

    def written(word: str) -> str:
        return f"{variable}={shell(word)}"

    return Place(f"environment {variable}", variable, written(example), written=written)


def file_place(file: str, section: str, name: str, kind: Kind, *, dotted: bool = False) -> Place:
    """A line of the config file. `section`: `kafka.client`, or empty; `dotted`: the names there may have dots."""
    key = name if re.fullmatch(r"[\w.-]+" if dotted else r"[\w-]+", name, re.ASCII) else json_text(name)

    def written(word: str) -> str:
        return f'{key} = "{word}"'

    label = f"{section}.{name}" if section else name
    return Place(f"file {file}", f"{label} in {file}", f"{key} = {kind.toml_example}", written=written)


def shell(example: str) -> str:
    """An example as one types it in a shell."""
    return example if re.fullmatch(r"[\w@%+=:,./-]*", example, re.ASCII) else f"'{example}'"


def _quote(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")
