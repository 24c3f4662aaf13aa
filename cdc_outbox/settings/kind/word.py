"""Words: one of a few, a truth value, any text, or the values of a column."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from cdc_outbox.settings.kind import Kind, Refused, Unknown, Unquoted, one_or_more, plain_text, type_name
from cdc_outbox.settings.likeness import meant

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class Choice(Kind):
    """One of a few words.

    `later` are words whose feature comes in a later version; `weak` those that protect less than others, which no
    typing error is taken for; `others` what a word is called elsewhere, with our word for it.
    """

    def __init__(
        self,
        *values: str,
        later: Collection[str] = (),
        weak: Collection[str] = (),
        others: Mapping[str, str] | None = None,
        fold: Callable[[str], str] = str.lower,
        metavar: str | None = None,
    ) -> None:
        super().__init__(values[0], metavar or "|".join(values))
        self.values = values
        self.later = later
        self.weak = weak
        self.others = others or {}
        self.fold = fold

    def text(self, text: str) -> str:
        value = self.fold(text.strip())
        if value in self.later:
            raise Refused(
                "that comes with a later version",
                next=f"choose {_either(self.values)}",
            )
        if value not in self.values:
            raise Unknown(
                f"it must be {_either(self.values)}",
                meant=meant(
                    value, {**dict(zip(self.values, self.values, strict=True)), **self.others}, self.weak
                ),
                instead=f"choose {_either(self.values)}",
            )
        return value

    def schema(self) -> dict[str, object]:
        return {"enum": list(self.values)}


class Boolean(Unquoted):
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


class Plain(Kind):
    """Text, or a number or truth value that stands for its text."""

    def text(self, text: str) -> str:
        return text

    def toml(self, value: object) -> str:
        return self.text(plain_text(value))

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "number", "boolean"]}


class Values(Kind):
    """One or several accepted values of a column."""

    def text(self, text: str) -> tuple[str, ...]:
        return self.texts([text])

    def texts(self, texts: Sequence[str]) -> tuple[str, ...]:
        if any("\0" in text for text in texts):
            raise ValueError("no text of PostgreSQL's holds a zero byte")
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
        return one_or_more({"type": ["string", "integer", "boolean"]})


def _either(values: Sequence[str]) -> str:
    if len(values) == 1:
        return values[0]
    return f"{', '.join(values[:-1])} or {values[-1]}"
