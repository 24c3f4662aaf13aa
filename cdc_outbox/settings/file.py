"""Settings from the config file, in TOML. A key that we don't know is an error that names the nearest one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from cdc_outbox.errors import ConfigError
from cdc_outbox.settings.complaints import Complaints
from cdc_outbox.settings.declare import BY_KEY
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.kind import type_name
from cdc_outbox.settings.likeness import nearest
from cdc_outbox.settings.place import Value, file_place

DEFAULT: Final = "cdc-outbox.toml"

_NO_VALUE: Final = re.compile(r"Invalid value \(at line (\d+), ")
_BARE_TEXT: Final = re.compile(r"\s*([\w.-]+)\s*=\s*[^\s\"'\[{].*")
"""A line whose value is neither quoted nor a list nor a table."""

_KEYS_AND_SECTIONS: Final = frozenset(BY_KEY) | {key.rpartition(".")[0] for key in BY_KEY}


class File:
    """A config file that was read, or none. `name` is how the person called it."""

    def __init__(self, name: str, contents: Mapping[str, object], complaints: Complaints) -> None:
        self._name = name
        self._complaints = complaints
        self._scalars: dict[str, Value] = {}
        self._tables: dict[str, dict[str, Value]] = {}
        self._walk("", contents)

    @classmethod
    def find(cls, named: str | None, cwd: Path, complaints: Complaints) -> File:
        """The file of this name, else `cdc-outbox.toml`, if there is one. What is wrong in it goes to `complaints`."""
        name, contents = named or DEFAULT, dict[str, object]()
        if named is not None or (cwd / DEFAULT).exists():
            with complaints.heard():
                contents = _parse(cwd / name, name)
        return cls(name, contents, complaints)

    def scalars(self) -> dict[str, Value]:
        """The values of single settings, by key."""
        return self._scalars

    def tables(self) -> dict[str, dict[str, Value]]:
        """The entries of tables, by key and name."""
        return self._tables

    def _walk(self, section: str, contents: Mapping[str, object]) -> None:
        for name, raw in contents.items():
            with self._complaints.heard():
                self._take(section + name, raw)

    def _take(self, key: str, raw: object) -> None:
        setting = BY_KEY.get(key)
        if setting is None:
            if not any(known.startswith(key + ".") for known in BY_KEY):
                raise self._unknown(key, _KEYS_AND_SECTIONS)
            if not isinstance(raw, dict):
                raise self._not_a_table(key, raw, "a section with keys of its own")
            self._walk(key + ".", raw)
        elif isinstance(setting.kind, Entries):
            if not isinstance(raw, dict):
                raise self._not_a_table(key, raw, f"a table of {setting.kind.metavar.replace('=', ' = ')}")
            found = self._tables[key] = {}
            for name, value in _flat(raw) if setting.kind.dotted else raw.items():
                with self._complaints.heard():
                    normal, read = self._entry(key, setting.kind, name, value)
                    found[normal] = read
        else:
            section, _, name = key.rpartition(".")
            place = file_place(self._name, section, name, setting.kind)
            quoted = None if setting.secret or isinstance(raw, dict) else raw
            self._scalars[key] = place.read(partial(setting.kind.toml, raw), quoted)

    def _entry(self, key: str, entries: Entries, name: str, raw: object) -> tuple[str, Value]:
        place = file_place(self._name, key, name, entries.kind, dotted=entries.dotted)
        try:
            normal = entries.normal(name)
        except ValueError as reason:
            place.reject(reason, None)
        if entries.names is not None and normal not in entries.names:
            raise self._unknown(f"{key}.{name}", [f"{key}.{known}" for known in entries.names])
        place = file_place(self._name, key, name, entries.kind_of(normal), dotted=entries.dotted)
        quoted = None if normal in entries.secret or isinstance(raw, dict) else raw
        return normal, place.read(partial(entries.toml, normal, raw), quoted)

    def _unknown(self, key: str, known: Iterable[str]) -> ConfigError:
        return ConfigError(
            f"unknown key {key!r} in {self._name}",
            next=f"the nearest known key is {nearest(key, known)!r}; write that, or remove the line",
        )

    def _not_a_table(self, key: str, raw: object, what: str) -> ConfigError:
        return ConfigError(
            f"{key} in {self._name} is {type_name(raw)}, and it has to be {what}",
            next=f"write a line [{key}], and its keys below",
        )


def _parse(path: Path, name: str) -> dict[str, object]:
    import tomllib

    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"the config file {name!r} can't be read: {error.strerror}",
            next="correct --config or CDC_OUTBOX_CONFIG, or make the file readable for this user",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {name!r} isn't UTF-8 text", next="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"the config file {name!r} isn't TOML: {error}",
            next=f"correct {name} at that place{_quotes_advice(text, str(error))}",
        ) from None


def _quotes_advice(text: str, error: str) -> str:
    """What tomllib's error doesn't say where a text stands without quotes; without the text, which may be secret."""
    found = _NO_VALUE.search(error)
    line = text.split("\n")[int(found[1]) - 1] if found is not None else ""
    bare = _BARE_TEXT.fullmatch(line)
    return "" if bare is None else f': text stands in quotes, as in {bare[1]} = "…"'


def _flat(contents: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Nested tables as dotted names: TOML reads `ssl.ca.location = …` without quotes as three tables."""
    for name, value in contents.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
