"""Names as PostgreSQL has them: a slot, a table, a column, and a key that is made from columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cdc_outbox.event import TableName
from cdc_outbox.settings.kind import Kind, one_or_more

_SLOT = re.compile(r"[a-z0-9_]+", re.ASCII)
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")


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
        return one_or_more({"type": "string", "minLength": 1})


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
