"""Amounts: numbers, rates, durations and sizes, each within its bounds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cdc_outbox.settings.kind import Kind, Unquoted, type_name
from cdc_outbox.settings.units import format_duration, format_size, parse_duration, parse_size

_NUMBER = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?", re.ASCII)


class Integer(Unquoted):
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


class Rate(Unquoted):
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
