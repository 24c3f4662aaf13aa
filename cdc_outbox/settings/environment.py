"""Settings from the process's environment. An empty variable counts as not set.

Every setting has its long name, `CDC_OUTBOX_<SECTION>_<KEY>`; short names and those that other tools use come
before it. A secret may stand in a file that `…_FILE` names. A table is one variable (`name=value` with commas
between, or a JSON object), or one variable for each entry whose name can be told from the variable's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from cdc_outbox.errors import ConfigError
from cdc_outbox.settings.complaints import Complaints
from cdc_outbox.settings.declare import PREFIX, SETTINGS, Setting
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.flag import read_pairs
from cdc_outbox.settings.kind import Refused
from cdc_outbox.settings.likeness import nearest
from cdc_outbox.settings.model import Notice
from cdc_outbox.settings.place import Value, variable_place

CONFIG: Final = PREFIX + "CONFIG"

_IGNORED: Final = re.compile(PREFIX + r"(SERVICE_.*|PORT.*|TEST_.*|FAULT.*)", re.DOTALL)
FILE: Final = "_FILE"
"""What the name of a variable ends with that names the file of a secret."""


class Environment:
    """What the environment says. Ask `unknown` after the others."""

    def __init__(self, environ: Mapping[str, str], cwd: Path, complaints: Complaints) -> None:
        self._complaints = complaints
        self._environ = {name: text for name, text in environ.items() if text}
        self._cwd = cwd
        self.config = self._environ.get(CONFIG)
        self._known = {CONFIG}
        for setting in SETTINGS:
            self._known.update(setting.variables)
            if setting.secret:
                self._known.update(name + FILE for name in setting.variables)

    def scalars(self) -> dict[str, Value]:
        """The values of single settings, by key."""
        found = {}
        for setting in SETTINGS:
            if isinstance(setting.kind, Entries):
                continue
            for variable in setting.variables:
                with self._complaints.heard():
                    named = self._named(variable, secret=setting.secret)
                    if named is None:
                        continue
                    name, text = named
                    place = variable_place(name, _of_file(name, setting.kind.example))
                    found[setting.key] = place.read(
                        partial(setting.kind.text, text), None if setting.secret else text
                    )
                break
        return found

    def tables(self) -> dict[str, dict[str, Value]]:
        """The entries of tables, by key and name; a variable of one entry wins over one of the whole."""
        found = {}
        for setting in SETTINGS:
            if isinstance(setting.kind, Entries):
                entries: dict[str, Value] = {}
                with self._complaints.heard():
                    entries |= self._whole(setting, setting.kind)
                entries |= dict(self._single(setting, setting.kind))
                if entries:
                    found[setting.key] = entries
        return found

    def unknown(self) -> list[Notice]:
        """A notice for each variable of ours that nobody has read, with the name that was perhaps meant."""
        stray = [
            name
            for name in sorted(self._environ)
            if name.startswith(PREFIX) and name not in self._known and not _IGNORED.fullmatch(name)
        ]
        if not stray:
            return []
        names = sorted(self._known.difference(stray) | set(_entry_variables()))
        return [
            Notice("unknown environment variable", {"variable": name, "nearest": nearest(name, names)})
            for name in stray
        ]

    def _whole(self, setting: Setting, entries: Entries) -> dict[str, Value]:
        variable = setting.variables[0]
        text = self._environ.get(variable)
        if text is None:
            return {}
        place = variable_place(variable, entries.example)
        if not text.lstrip().startswith("{"):
            return read_pairs(entries, [pair for pair in text.split(",") if pair.strip()], place)
        import json

        try:
            members = json.loads(text)
        except ValueError:
            place.reject(ValueError("it begins as a JSON object does, and isn't one"), None)
        found = {}
        for name, raw in members.items():
            normal = place.known(entries, name)
            quoted = None if normal in entries.secret else raw
            found[normal] = place.entry(entries, normal).read(partial(entries.toml, normal, raw), quoted)
        return found

    def _single(self, setting: Setting, entries: Entries) -> Iterator[tuple[str, Value]]:
        if entries.spelled is None:
            return
        for prefix in _prefixes(setting):
            for variable in sorted(self._environ):
                if variable.startswith(prefix) and variable not in self._known:
                    with self._complaints.heard():
                        yield from tuple(self._entry(entries, prefix, variable))

    def _entry(self, entries: Entries, prefix: str, variable: str) -> Iterator[tuple[str, Value]]:
        assert entries.spelled is not None  # noqa: S101 - the caller has looked
        base = variable
        name = entries.spelled(variable.removeprefix(prefix))
        if variable.endswith(FILE):
            plain = entries.spelled(variable.removeprefix(prefix).removesuffix(FILE))
            if plain in entries.secret:
                name, base = plain, variable.removesuffix(FILE)
        try:
            name = entries.normal(name)
        except Refused as reason:
            variable_place(variable, "").reject(reason, None)
        except ValueError:
            return
        if entries.names is not None and name not in entries.names:
            return
        self._known.add(variable)
        if base != variable and base in self._environ:
            raise _both(base)
        text = self._contents(variable) if base != variable else self._environ[variable]
        place = variable_place(variable, _of_file(variable, entries.kind_of(name).example))
        yield name, place.read(partial(entries.texts, name, [text]), None if name in entries.secret else text)

    def _named(self, variable: str, *, secret: bool) -> tuple[str, str] | None:
        """The variable that is set, and its text: the variable itself, or the one that names a file."""
        text = self._environ.get(variable)
        in_file = variable + FILE
        if not secret or in_file not in self._environ:
            return None if text is None else (variable, text)
        if text is not None:
            raise _both(variable)
        return in_file, self._contents(in_file)

    def _contents(self, variable: str) -> str:
        path = self._environ[variable]
        try:
            text = (self._cwd / path).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise ConfigError(
                f"{variable} names the file {path!r}, which can't be read: {error.strerror}",
                next=f"make the file readable for this user, or correct {variable}",
            ) from None
        except ValueError:
            raise ConfigError(
                f"{variable} names the file {path!r}, which isn't UTF-8 text",
                next="write the secret into it as text",
            ) from None
        if not text:
            raise ConfigError(
                f"{variable} names the file {path!r}, which is empty", next="write the secret into it"
            )
        return text


def _prefixes(setting: Setting) -> list[str]:
    """What the variables of a table's entries begin with."""
    prefixes = [setting.variables[-1] + "_"]
    if setting.key == "kafka.client":
        prefixes.append(PREFIX + "KAFKA_")
    return prefixes


def _entry_variables() -> Iterator[str]:
    for setting in SETTINGS:
        if isinstance(setting.kind, Entries) and setting.kind.spelled and setting.kind.names:
            for name in setting.kind.names:
                yield _prefixes(setting)[-1] + name.upper().replace(".", "_")


def _of_file(variable: str, example: str) -> str:
    return "/run/secrets/" + variable.removesuffix(FILE).lower() if variable.endswith(FILE) else example


def _both(variable: str) -> ConfigError:
    return ConfigError(
        f"both {variable} and {variable}{FILE} are set", next=f"unset {variable} or {variable}{FILE}"
    )
