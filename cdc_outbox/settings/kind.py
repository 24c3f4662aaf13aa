"""Kinds of values: how a setting is read from text and from TOML, shown, and described to an editor.

A kind raises ValueError with a clause that says what a right value looks like; the caller knows whether the
value came from a flag, a variable or the file, and names it. `Refused` is for a value that is well formed
and can't be had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cdc_outbox.event import TableName
from cdc_outbox.settings.dsn import Dsn, parse_dsn
from cdc_outbox.settings.units import format_duration, format_size, parse_duration, parse_size

_TYPE_NAMES: Final = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "a table",
}
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})

_SLOT = re.compile(r"[a-z0-9_]+", re.ASCII)
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]@,]+)(?::([0-9]{1,5}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)


class Refused(ValueError):
    """The value is well formed, but this version, or this relay, can't do what it asks for."""

    def __init__(self, message: str, *, next: str) -> None:  # noqa: A002 - the contract's word for the remedy
        super().__init__(message)
        self.next = next


class Unquotable(ValueError):
    """The value may hold a secret where none belongs: no complaint quotes it."""


def type_name(value: object) -> str:
    """What TOML calls a value, for an error."""
    return _TYPE_NAMES.get(type(value), "a date or time")


class Kind:
    """Text that is not empty, and what all kinds share."""

    def __init__(self, example: str, metavar: str = "TEXT") -> None:
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


class Choice(Kind):
    """One of a few words. `later` are words whose feature comes in a later version."""

    def __init__(
        self,
        *values: str,
        later: Collection[str] = (),
        fold: Callable[[str], str] = str.lower,
        metavar: str | None = None,
    ) -> None:
        super().__init__(values[0], metavar or "|".join(values))
        self.values = values
        self.later = later
        self.fold = fold

    def text(self, text: str) -> str:
        value = self.fold(text.strip())
        if value in self.later:
            raise Refused(
                "it asks for something that this version can't do yet",
                next=f"choose {_either(self.values)}",
            )
        if value not in self.values:
            raise ValueError(f"it must be {_either(self.values)}")
        return value

    def schema(self) -> dict[str, object]:
        return {"enum": list(self.values)}


class _Unquoted(Kind):
    """A value that TOML writes without quotes."""

    @property
    def toml_example(self) -> str:
        return self.example


class Boolean(_Unquoted):
    """true or false; in the environment also yes, no, on, off, 1, 0."""

    def __init__(self) -> None:
        super().__init__("true", "true|false")

    def text(self, text: str) -> bool:
        word = text.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ValueError("it must be true or false")

    def toml(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise ValueError(f"it is {type_name(value)}, not true or false (without quotes)")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}


class Integer(_Unquoted):
    """A whole number from `least` to `most`, or one of `besides`."""

    def __init__(
        self, example: int, *, least: int, most: int = 2**31 - 1, besides: Sequence[int] = ()
    ) -> None:
        super().__init__(str(example), "N")
        self.least = least
        self.most = most
        self.besides = besides

    def text(self, text: str) -> int:
        word = text.strip()
        if not re.fullmatch(r"-?[0-9]{1,18}", word, re.ASCII):
            raise ValueError("it must be a whole number")
        return self._bounded(int(word))

    def toml(self, value: object) -> int:
        if type(value) is not int:
            raise ValueError(f"it is {type_name(value)}, not a whole number (without quotes)")
        return self._bounded(value)

    def _bounded(self, value: int) -> int:
        if value not in self.besides and not self.least <= value <= self.most:
            also = "".join(f", or {number}" for number in self.besides)
            raise ValueError(f"it must be between {self.least} and {self.most}{also}")
        return value

    def schema(self) -> dict[str, object]:
        bounded: dict[str, object] = {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"anyOf": [bounded, {"enum": list(self.besides)}]} if self.besides else bounded


class Rate(_Unquoted):
    """A positive number, or `none`."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "N")

    def text(self, text: str) -> float | None:
        word = text.strip()
        if word.lower() == "none":
            return None
        if not _NUMBER.fullmatch(word):
            raise ValueError("it must be a positive number, or none")
        return self._positive(float(word))

    def toml(self, value: object) -> float | None:
        if isinstance(value, str):
            return self.text(value)
        if type(value) not in (int, float):
            raise ValueError(f"it is {type_name(value)}, not a number")
        return self._positive(float(value))  # type: ignore[arg-type]  # the line above leaves int and float

    def _positive(self, value: float) -> float:
        if not 0 < value < 1e15:
            raise ValueError("it must be a positive number, or none")
        return value

    def show(self, value: float | None) -> object:
        if value is None:
            return "none"
        return int(value) if value.is_integer() else value

    def schema(self) -> dict[str, object]:
        return {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"enum": ["none"]}]}


class Duration(Kind):
    """`200ms`, `30s`, `5m`, `2h`, `7d`; in seconds."""

    def __init__(self, example: str, *, least: str, most: str) -> None:
        super().__init__(example, "DURATION")
        self.least = least
        self.most = most

    def text(self, text: str) -> float:
        seconds = parse_duration(text)
        if not parse_duration(self.least) <= seconds <= parse_duration(self.most):
            raise ValueError(f"it must be between {self.least} and {self.most}")
        return seconds

    def toml(self, value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f'it is {type_name(value)}, not a duration in quotes like "{self.example}"')
        return self.text(value)

    def show(self, value: float) -> object:
        return format_duration(value)

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)$"}


class Size(Kind):
    """`16MiB`, `512KiB`, `64kB`, or a plain number of bytes."""

    def __init__(self, example: str, *, least: str, most: str) -> None:
        super().__init__(example, "SIZE")
        self.least = least
        self.most = most

    def text(self, text: str) -> int:
        return self._bounded(parse_size(text))

    def toml(self, value: object) -> int:
        if type(value) is int:
            return self._bounded(value)
        if not isinstance(value, str):
            raise ValueError(f'it is {type_name(value)}, not a size like "{self.example}"')
        return self.text(value)

    def _bounded(self, size: int) -> int:
        if not parse_size(self.least) <= size <= parse_size(self.most):
            raise ValueError(f"it must be between {self.least} and {self.most}")
        return size

    def show(self, value: int) -> object:
        return format_size(value)

    def schema(self) -> dict[str, object]:
        text: dict[str, object] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?([kMGT]?B|[KMGT]iB)?$"}
        return {"anyOf": [{"type": "integer", "minimum": 1}, text]}


class SlotName(Kind):
    """A name for a replication slot, short enough for `<slot>_pending` beside it."""

    LONGEST: Final = 55

    def __init__(self, example: str) -> None:
        super().__init__(example, "NAME")

    def text(self, text: str) -> str:
        if not _SLOT.fullmatch(text):
            raise ValueError("a slot's name is made of lower-case letters, digits and _ only")
        if len(text) > self.LONGEST:
            raise ValueError(
                f"it has {len(text)} bytes; at most {self.LONGEST} leave room for '<slot>_pending' "
                "within the 63 that PostgreSQL allows"
            )
        return text

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^[a-z0-9_]{{1,{self.LONGEST}}}$"}


class Identifier(Kind):
    """A PostgreSQL name, exactly as it is in the catalogue."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "NAME")

    def text(self, text: str) -> str:
        if not text or "\0" in text:
            raise ValueError("it is not a name")
        if len(text.encode()) > 63:
            raise ValueError(f"it has {len(text.encode())} bytes, and PostgreSQL's names have at most 63")
        return text

    def schema(self) -> dict[str, object]:
        return {"type": "string", "minLength": 1, "maxLength": 63}


class Tables(Kind):
    """One or several table names as SQL reads them: folded unless quoted."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "NAME")

    def text(self, text: str) -> tuple[TableName, ...]:
        return self.texts(_split_outside_quotes(text))

    def texts(self, texts: Sequence[str]) -> tuple[TableName, ...]:
        try:
            return tuple(dict.fromkeys(TableName.parse(text) for text in texts))
        except ValueError:
            raise ValueError("it is not a table's name as SQL writes it") from None

    def toml(self, value: object) -> tuple[TableName, ...]:
        if isinstance(value, str):
            return self.texts([value])
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            raise ValueError("it is not a table's name, or a list of names")
        return self.texts(value)

    def show(self, value: tuple[TableName, ...]) -> object:
        return str(value[0]) if len(value) == 1 else [str(name) for name in value]

    def schema(self) -> dict[str, object]:
        name: dict[str, object] = {"type": "string", "minLength": 1}
        return {"anyOf": [name, {"type": "array", "items": name, "minItems": 1}]}


class Key(Kind):
    """A template, `payload:/json/pointer`, `headers:/json/pointer`, or `none`."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "KEY")

    def text(self, text: str) -> str:
        if not text.strip():
            raise ValueError("it is empty")
        role, colon, pointer = text.partition(":")
        if colon and role in ("payload", "headers") and not _POINTER.fullmatch(pointer):
            raise ValueError(f"what follows '{role}:' is not a JSON pointer, which begins with a slash")
        return text


class Servers(Kind):
    """Kafka's bootstrap servers, `host:port` with commas between."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "HOST:PORT[,...]")

    def text(self, text: str) -> str:
        if "@" in text:
            raise Unquotable(
                "there is an '@' in it, and Kafka takes user and password as sasl.username and sasl.password"
            )
        servers = []
        for server in text.split(","):
            match = _HOST_PORT.fullmatch(server.strip())
            if match is None or not 0 < int(match[2] or 9092) < 65536:
                raise ValueError("it is not a list of HOST:PORT with commas between")
            servers.append(f"{match[1]}:{match[2] or 9092}")
        return ",".join(servers)

    def toml(self, value: object) -> str:
        if isinstance(value, list) and value and all(isinstance(server, str) for server in value):
            return self.text(",".join(value))
        return super().toml(value)  # type: ignore[no-any-return]  # ends in our own text()

    def schema(self) -> dict[str, object]:
        text: dict[str, object] = {"type": "string", "minLength": 1}
        return {"anyOf": [text, {"type": "array", "items": text, "minItems": 1}]}


class Address(Kind):
    """`HOST:PORT` to listen on, or `off` (None)."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "HOST:PORT")

    def text(self, text: str) -> tuple[str, int] | None:
        word = text.strip()
        if word == "off":
            return None
        match = _HOST_PORT.fullmatch(word)
        if match is None or match[2] is None or int(match[2]) > 65535:
            raise ValueError("an address is HOST:PORT")
        return match[1].strip("[]"), int(match[2])

    def show(self, value: tuple[str, int] | None) -> object:
        if value is None:
            return "off"
        host, port = value
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class FilePath(Kind):
    """A file's path, from the working directory."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "FILE")

    def text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise ValueError("it is not a file's path")
        return Path(text)

    def show(self, value: Path | None) -> object:
        return None if value is None else str(value)


class Connection(Kind):
    """A connection string; never shown, and never part of a message."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "DSN")

    def text(self, text: str) -> Dsn:
        return parse_dsn(text)

    def schema(self) -> dict[str, object]:
        return {"type": "string"}


class Values(Kind):
    """One or several accepted values of a column."""

    def text(self, text: str) -> tuple[str, ...]:
        return (text,)

    def texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(texts))

    def toml(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            value = [value]
        if not value:
            raise ValueError("the list of accepted values is empty")
        return self.texts([plain_text(one) for one in value])

    def show(self, value: tuple[str, ...]) -> object:
        return list(value)

    def schema(self) -> dict[str, object]:
        one: dict[str, object] = {"type": ["string", "integer", "boolean"]}
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


class Plain(Kind):
    """Text, or a number or truth value that stands for its text."""

    def text(self, text: str) -> str:
        return text

    def toml(self, value: object) -> str:
        return self.text(plain_text(value))

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "number", "boolean"]}


def plain_text(value: object) -> str:
    """The text of a TOML string, number or truth value.

    Raises ValueError for lists, tables and dates.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"it is {type_name(value)}, not text in quotes")


class Entries:
    """A table of settings whose names are free, or come from a list of their own.

    `names` are the known names (None: any); `normal` spells a name as we keep it, or raises ValueError;
    `dotted`: the names contain dots, and nested tables of the file are joined by them; `spelled` tells an
    entry's name from the rest of a variable's name (None: no such variables); `secret` has the variable of
    each name whose value is secret.
    """

    def __init__(
        self,
        kind: Kind,
        example: str,
        metavar: str,
        *,
        names: Collection[str] | None = None,
        normal: Callable[[str], str] = str,
        dotted: bool = False,
        spelled: Callable[[str], str] | None = None,
        secret: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.example = example
        self.metavar = metavar
        self.names = names
        self.normal = normal
        self.dotted = dotted
        self.spelled = spelled
        self.secret = secret or {}

    def kind_of(self, name: str) -> Kind:
        """How the value of the entry `name` is read."""
        return self.kind

    def texts(self, name: str, texts: Sequence[str]) -> Any:
        """Read an entry from flags or a variable."""
        return self.kind.texts(texts)

    def toml(self, name: str, value: object) -> Any:
        """Read an entry from the file."""
        return self.kind.toml(value)

    def show(self, name: str, value: Any) -> object:
        """The entry as the file would spell it."""
        return self.kind.show(value)

    def schema(self) -> dict[str, object]:
        """The table in JSON Schema."""
        if self.names is None:
            return {"type": "object", "additionalProperties": self.kind.schema()}
        properties = {name: self.kind_of(name).schema() for name in self.names}
        return {"type": "object", "properties": properties, "additionalProperties": False}


class StatusEntries(Entries):
    """The name of a status column (`column`), and the words of it by their meaning."""

    def __init__(self, example: str, meanings: Sequence[str]) -> None:
        super().__init__(
            Values("DISPATCHED"),
            example,
            "column=NAME|MEANING=WORD",
            names=("column", *meanings),
            normal=lambda name: name.strip().lower().replace("-", "_"),
            spelled=str.lower,
        )
        self.column = Identifier("state")

    def kind_of(self, name: str) -> Kind:
        return self.column if name == "column" else self.kind

    def texts(self, name: str, texts: Sequence[str]) -> Any:
        return self.kind_of(name).texts(texts)

    def toml(self, name: str, value: object) -> Any:
        return self.kind_of(name).toml(value)

    def show(self, name: str, value: Any) -> object:
        return self.kind_of(name).show(value)


class OptionEntries(Entries):
    """Options of a library: each name has a kind of its own, and values are kept as text."""

    def __init__(
        self,
        kinds: Mapping[str, Kind],
        example: str,
        *,
        normal: Callable[[str], str],
        spelled: Callable[[str], str],
        secret: Mapping[str, str],
    ) -> None:
        super().__init__(
            Plain("text"),
            example,
            "NAME=VALUE",
            names=tuple(kinds),
            normal=normal,
            dotted=True,
            spelled=spelled,
            secret=secret,
        )
        self.kinds = kinds

    def kind_of(self, name: str) -> Kind:
        return self.kinds[name]

    def texts(self, name: str, texts: Sequence[str]) -> str:
        return str(self.kinds[name].texts(texts))

    def toml(self, name: str, value: object) -> str:
        return str(self.kinds[name].text(plain_text(value)))

    def schema(self) -> dict[str, object]:
        # A dotted name without quotes is a nested table for TOML, so tables are allowed at the first level.
        return super().schema() | {"additionalProperties": {"type": "object"}}


def _either(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _split_outside_quotes(text: str) -> list[str]:
    parts = [""]
    quoted = False
    for letter in text:
        quoted ^= letter == '"'
        if letter == "," and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts
