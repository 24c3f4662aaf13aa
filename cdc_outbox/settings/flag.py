"""Settings from the flags of a command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial

from cdc_outbox.errors import UsageError
from cdc_outbox.settings.complaints import Complaints
from cdc_outbox.settings.declare import SETTINGS, Setting, parameter
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.model import Notice
from cdc_outbox.settings.place import Place, Value, flag_place


class Flags:
    """Given flags by parameter name; None, False and empty sequences mean not given."""

    def __init__(self, given: Mapping[str, object], complaints: Complaints) -> None:
        self._given = given
        self._scalars: dict[str, Value] = {}
        self._tables: dict[str, dict[str, Value]] = {}
        self.config = _texts(given.get("config"))
        for setting in SETTINGS:
            with complaints.heard():
                self._take(setting)

    def scalars(self) -> dict[str, Value]:
        """The values of single settings, by key."""
        return self._scalars

    def tables(self) -> dict[str, dict[str, Value]]:
        """The entries of tables, by key and name."""
        return self._tables

    def _take(self, setting: Setting) -> None:
        texts = _texts(self._of(setting.flag))
        if not isinstance(setting.kind, Entries):
            value = self._scalar(setting, texts)
            if value is not None:
                self._scalars[setting.key] = value
        elif setting.flag is not None and texts:
            self._tables[setting.key] = read_pairs(
                setting.kind, texts, flag_place(setting.flag, setting.kind)
            )

    def secrets(self) -> list[Notice]:
        """A notice for each secret among the flags, which everybody on the machine can read."""
        notices = []
        scalars, tables = self._scalars, self._tables
        for setting in SETTINGS:
            if setting.flag is None:
                continue
            if setting.secret and setting.key in scalars and scalars[setting.key].value.secrets:
                notices.append(_readable(setting.flag, setting.variables[0]))
            if isinstance(setting.kind, Entries):
                secret = setting.kind.secret.keys() & tables.get(setting.key, {}).keys()
                notices += [_readable(setting.flag, setting.kind.secret[name]) for name in sorted(secret)]
        return notices

    def _of(self, flag: str | None) -> object:
        return None if flag is None else self._given.get(parameter(flag))

    def _scalar(self, setting: Setting, texts: Sequence[str]) -> Value | None:
        off = bool(self._of(setting.off))
        if setting.flag is None or not texts:
            return Value(None, f"flag {setting.off}") if off else None
        if off:
            raise UsageError(
                f"{setting.flag} and {setting.off} contradict each other", next="leave one of them out"
            )
        if setting.switch:
            return Value(True, f"flag {setting.flag}")
        assert not isinstance(setting.kind, Entries)  # noqa: S101 - the caller has sorted them out
        place = flag_place(setting.flag, setting.kind)
        return place.read(partial(setting.kind.texts, texts), None if setting.secret else ", ".join(texts))


def read_pairs(entries: Entries, texts: Sequence[str], place: Place) -> dict[str, Value]:
    """Read `NAME=VALUE` texts. A name that comes again adds to what its kind can hold, or replaces it."""
    gathered: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            # Without a name nobody knows whether this is a secret: quote no more than looks like a name.
            looks_like_a_name = re.match(r"[a-z.]*", text)
            quoted = looks_like_a_name[0] if entries.secret and looks_like_a_name else text
            place.reject(ValueError(f"it is not of the form {entries.metavar}"), quoted)
        gathered.setdefault(place.known(entries, name.strip()), []).append(value)
    found = {}
    for name, values in gathered.items():
        shown = None if name in entries.secret else ", ".join(values)
        found[name] = place.entry(entries, name).read(partial(entries.texts, name, values), shown)
    return found


def _texts(given: object) -> list[str]:
    if given is None or given is False:
        return []
    return [str(text) for text in given] if isinstance(given, list | tuple) else [str(given)]


def _readable(flag: str, variable: str) -> Notice:
    return Notice(
        "a password in a flag can be read by everybody on this machine",
        {"flag": flag, "use": f"{variable} or {variable}_FILE"},
    )
