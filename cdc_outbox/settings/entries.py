"""Tables of settings: names that are free, or come from a list of their own, each with a value of some kind."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from cdc_outbox.settings.kind import Kind, plain_text
from cdc_outbox.settings.kind.name import Identifier
from cdc_outbox.settings.kind.word import Plain, Values


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
        """Read an entry from flags or a variable. Raises ValueError, as `toml` does."""
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
