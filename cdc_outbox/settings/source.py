"""Where settings come from: flags, environment, file. Each value knows its place and how to complain.

A malformed flag is wrong usage (exit 2); a malformed value in the environment or the file is wrong
configuration (exit 78); a value that can't be had is the latter wherever it stands. No complaint quotes a
secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from cdc_outbox.errors import ConfigError, UsageError
from cdc_outbox.settings.declare import BY_KEY, PREFIX, SETTINGS, Setting, parameter
from cdc_outbox.settings.kind import Entries, Kind, Refused, type_name
from cdc_outbox.settings.model import Notice

DEFAULT_FILE: Final = "cdc-outbox.toml"

_IGNORED = re.compile(PREFIX + r"(SERVICE_.*|PORT.*|TEST_.*|FAULT.*)", re.DOTALL)
_LONGEST_QUOTE: Final = 80


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: its origin for `config show`, its name in a complaint, and a right example."""

    origin: str
    label: str
    example: str
    flag: bool = False

    def reject(self, reason: ValueError, quoted: str | None) -> NoReturn:
        """Raise the error for a value; `quoted` is the value where it may be printed."""
        what = self.label if quoted is None else f"{self.label} is {_quote(quoted)}"
        message = f"{what}: {reason}"
        if isinstance(reason, Refused):
            raise ConfigError(message, next=reason.next) from None
        kind = UsageError if self.flag else ConfigError
        raise kind(message, next=f"write it like this: {self.example}") from None


@dataclass(frozen=True, slots=True)
class Value:
    """A value that was read, and where it came from."""

    value: Any
    origin: str


def _quote(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_QUOTE else text[:_LONGEST_QUOTE] + "…")


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, by the whole or by its last part."""
    from difflib import SequenceMatcher

    def likeness(candidate: str) -> float:
        last = candidate.rpartition(".")[2]
        whole = SequenceMatcher(None, name.lower(), candidate.lower()).ratio()
        return max(whole, SequenceMatcher(None, name.lower().rpartition(".")[2], last.lower()).ratio() * 0.99)

    return max(known, key=likeness)


# --- flags


def read_flags(
    flags: Mapping[str, object],
) -> tuple[dict[str, Value], dict[str, dict[str, Value]], list[Notice]]:
    """Read the given flags, by parameter name: scalars by key, entries by key and name."""
    scalars: dict[str, Value] = {}
    tables: dict[str, dict[str, Value]] = {}
    notices: list[Notice] = []
    for setting in SETTINGS:
        if setting.flag is None:
            continue
        given = flags.get(parameter(setting.flag))
        off = setting.off is not None and bool(flags.get(parameter(setting.off)))
        texts = [str(text) for text in given] if isinstance(given, list | tuple) else [str(given)]
        if given is None or given is False or not texts:
            if off:
                scalars[setting.key] = Value(None, f"flag {setting.off}")
            continue
        if off:
            raise UsageError(
                f"{setting.flag} and {setting.off} contradict each other",
                next=f"leave {setting.flag} or {setting.off} out",
            )
        place = Place(
            f"flag {setting.flag}", setting.flag, f"{setting.flag} {_shell(setting.kind.example)}", flag=True
        )
        if isinstance(setting.kind, Entries):
            tables[setting.key] = _pairs(setting.kind, texts, place)
            for name in setting.kind.secret:
                if name in tables[setting.key]:
                    variable = PREFIX + "KAFKA_" + name.upper().replace(".", "_")
                    notices.append(_secret_in_flag(setting.flag, variable))
        elif setting.switch:
            scalars[setting.key] = Value(True, place.origin)
        else:
            try:
                value = setting.kind.texts(texts)
            except ValueError as reason:
                place.reject(reason, None if setting.secret else texts[-1])
            scalars[setting.key] = Value(value, place.origin)
            if setting.secret and value.secrets:
                notices.append(_secret_in_flag(setting.flag, setting.variables[0]))
    return scalars, tables, notices


def _secret_in_flag(flag: str, variable: str) -> Notice:
    return Notice(
        "a password in a flag can be read by everybody on this machine",
        {"flag": flag, "use": f"{variable} or {variable}_FILE"},
    )


def _shell(example: str) -> str:
    return f"'{example}'" if re.search(r"[\s{}*?$;&|<>()]", example) else example


# --- entries, from flags and from whole variables


def _pairs(entries: Entries, texts: Sequence[str], place: Place) -> dict[str, Value]:
    """Read `NAME=VALUE` texts; a name that comes again adds to what its kind can hold, or replaces it."""
    gathered: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            quoted = re.match(r"[\w.-]{0,40}", text)[0] if entries.secret else text  # type: ignore[index]  # it matches the empty text
            place.reject(ValueError(f"it is not of the form {entries.metavar}"), quoted)
        gathered.setdefault(entry_name(entries, name.strip(), place), []).append(value)
    return {name: _entry(entries, name, values, place) for name, values in gathered.items()}


def entry_name(entries: Entries, name: str, place: Place) -> str:
    """A known entry's name as we keep it."""
    try:
        normal = entries.normal(name)
    except ValueError as reason:
        place.reject(reason, name)
    if entries.names is not None and normal not in entries.names:
        near = nearest(normal, entries.names)
        error = UsageError if place.flag else ConfigError
        raise error(
            f"{place.label}: unknown name {_quote(name)}",
            next=f"the nearest known name is {near!r}; write that, or leave it out",
        )
    return normal


def _entry(entries: Entries, name: str, raw: object, place: Place) -> Value:
    """Read one entry's value: a list of texts from flags and variables, or whatever the file has."""
    kind = entries.kind_of(name)
    keep_text = kind is not entries.kind
    at = Place(
        place.origin, f"{place.label} {name}", _entry_example(place, entries, name, kind), flag=place.flag
    )
    try:
        if isinstance(raw, list) and place.label.startswith(("-", PREFIX)):
            value = kind.texts(raw)
        else:
            value = kind.toml(raw) if not keep_text else kind.text(_as_text(raw))
    except ValueError as reason:
        at.reject(reason, None if name in entries.secret or isinstance(raw, dict) else _shown(raw))
    return Value(str(value) if keep_text else value, place.origin)


def _entry_example(place: Place, entries: Entries, name: str, kind: Kind) -> str:
    if place.flag:
        return f"{place.label} {name}={kind.example}"
    if place.label.startswith(PREFIX):
        return place.example
    return f'"{name}" = "{kind.example}"' if "." in name else f'{name} = "{kind.example}"'


def _as_text(raw: object) -> str:
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, str | int | float):
        return str(raw)
    raise ValueError(f"it is {type_name(raw)}, not text in quotes")


def _shown(raw: object) -> str:
    if isinstance(raw, list):
        return str(raw[-1]) if len(raw) == 1 else ", ".join(str(one) for one in raw)
    return str(raw)


# --- environment


class Environment:
    """The process's environment. Empty variables count as not set."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = {name: text for name, text in environ.items() if text}
        self._known: set[str] = {PREFIX + "CONFIG"}
        for setting in SETTINGS:
            self._known.update(setting.variables)
            if setting.secret:
                self._known.update(f"{name}_FILE" for name in setting.variables)

    def get(self, name: str) -> str | None:
        return self._environ.get(name)

    def scalars(self) -> dict[str, Value]:
        """Every setting that has a variable, by key; the best name wins."""
        found: dict[str, Value] = {}
        for setting in SETTINGS:
            if isinstance(setting.kind, Entries):
                continue
            for variable in setting.variables:
                text, name = self._text(variable, secret=setting.secret)
                if text is None:
                    continue
                place = Place(f"environment {name}", name, _variable_example(name, setting.kind.example))
                try:
                    value = setting.kind.text(text)
                except ValueError as reason:
                    place.reject(reason, None if setting.secret else text)
                found[setting.key] = Value(value, place.origin)
                break
        return found

    def tables(self) -> dict[str, dict[str, Value]]:
        """Entries by key and name: from whole variables, then from those of one entry each, which win."""
        found: dict[str, dict[str, Value]] = {}
        for setting in SETTINGS:
            if not isinstance(setting.kind, Entries):
                continue
            entries = dict(self._whole(setting, setting.kind))
            entries.update(self._single(setting, setting.kind))
            if entries:
                found[setting.key] = entries
        return found

    def _whole(self, setting: Setting, entries: Entries) -> Iterator[tuple[str, Value]]:
        for variable in setting.variables:
            text = self._environ.get(variable)
            if text is None:
                continue
            place = Place(f"environment {variable}", variable, f"{variable}={entries.example}")
            if not text.lstrip().startswith("{"):
                yield from _pairs(entries, [part for part in text.split(",") if part.strip()], place).items()
                continue
            import json

            try:
                members = json.loads(text)
            except ValueError:
                place.reject(ValueError("it begins like a JSON object and isn't one"), None)
            for name, raw in members.items():
                normal = entry_name(entries, name, place)
                yield (
                    normal,
                    _entry(
                        entries, normal, raw if isinstance(raw, list) else [_as_text_or(raw, place)], place
                    ),
                )

    def _single(self, setting: Setting, entries: Entries) -> Iterator[tuple[str, Value]]:
        if entries.spelled is None:
            return
        prefixes = [f"{setting.variables[-1]}_"]
        if setting.key == "kafka.client":
            prefixes.append(PREFIX + "KAFKA_")
        for variable in sorted(self._environ):
            for prefix in prefixes:
                if variable in self._known or not variable.startswith(prefix):
                    continue
                rest, of_file = variable.removeprefix(prefix), False
                if rest.endswith("_FILE") and entries.spelled(rest.removesuffix("_FILE")) in entries.secret:
                    rest, of_file = rest.removesuffix("_FILE"), True
                if not rest:
                    continue
                name = entries.spelled(rest)
                base = prefix + rest
                place = Place(f"environment {variable}", variable, _variable_example(base, "…"))
                try:
                    name = entries.normal(name)
                except Refused as reason:
                    place.reject(reason, None)
                except ValueError:
                    continue
                if entries.names is not None and name not in entries.names:
                    continue
                self._known.add(variable)
                place = Place(place.origin, variable, _variable_example(base, entries.kind_of(name).example))
                text = self._file(variable) if of_file else self._environ[variable]
                if of_file and base in self._environ:
                    raise _both(base)
                kind = entries.kind_of(name)
                try:
                    value = kind.texts([text])
                except ValueError as reason:
                    place.reject(reason, None if name in entries.secret else text)
                yield name, Value(value if kind is entries.kind else str(value), place.origin)

    def _text(self, variable: str, *, secret: bool) -> tuple[str | None, str]:
        text = self._environ.get(variable)
        in_file = f"{variable}_FILE"
        if not secret or in_file not in self._environ:
            return text, variable
        if text is not None:
            raise _both(variable)
        return self._file(in_file), in_file

    def _file(self, variable: str) -> str:
        path = Path(self._environ[variable])
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"{variable} names the file {str(path)!r}, which can't be read: {error.strerror}",
                next=f"make the file readable for this user, or correct {variable}",
            ) from None
        except UnicodeDecodeError:
            raise ConfigError(
                f"{variable} names the file {str(path)!r}, which isn't UTF-8 text",
                next="write the secret into it as text",
            ) from None
        text = text.rstrip("\r\n")
        if not text:
            raise ConfigError(
                f"{variable} names the file {str(path)!r}, which is empty", next="write the secret into it"
            )
        return text

    def unknown(self) -> Iterator[Notice]:
        """A notice for each variable of ours that nobody reads. Call it last."""
        names = sorted(self._known)
        for variable in sorted(self._environ):
            if (
                variable.startswith(PREFIX)
                and variable not in self._known
                and not _IGNORED.fullmatch(variable)
            ):
                yield Notice(
                    "unknown environment variable",
                    {"variable": variable, "nearest": nearest(variable, _client_names(names))},
                )


def _client_names(names: list[str]) -> list[str]:
    entries = BY_KEY["kafka.client"].kind
    known = entries.names if isinstance(entries, Entries) and entries.names else ()
    return names + [PREFIX + "KAFKA_" + name.upper().replace(".", "_") for name in known]


def _as_text_or(raw: object, place: Place) -> str:
    try:
        return _as_text(raw)
    except ValueError as reason:
        place.reject(reason, None)


def _both(variable: str) -> ConfigError:
    return ConfigError(
        f"both {variable} and {variable}_FILE are set", next=f"unset {variable} or {variable}_FILE"
    )


def _variable_example(variable: str, example: str) -> str:
    return f"{variable}={_shell(example)}"


# --- file


class File:
    """A configuration file, or the absence of one."""

    def __init__(self, path: Path | None, label: str) -> None:
        self.label = label
        self._scalars: dict[str, Value] = {}
        self._tables: dict[str, dict[str, Value]] = {}
        if path is not None:
            self._walk("", _parse(path, label))

    @classmethod
    def find(cls, flags: Mapping[str, object], environment: Environment, cwd: Path) -> File:
        """The file that `--config` or CDC_OUTBOX_CONFIG names, or `cdc-outbox.toml` where there is one."""
        named = flags.get("config")
        name = str(named) if named else environment.get(PREFIX + "CONFIG")
        if name is not None:
            return cls(cwd / name, name)
        path = cwd / DEFAULT_FILE
        return cls(path if path.exists() else None, DEFAULT_FILE)

    def scalars(self) -> dict[str, Value]:
        return self._scalars

    def tables(self) -> dict[str, dict[str, Value]]:
        return self._tables

    def _walk(self, prefix: str, table: Mapping[str, object]) -> None:
        for name, raw in table.items():
            key = prefix + name
            setting = BY_KEY.get(key)
            if setting is not None and isinstance(setting.kind, Entries):
                self._read_entries(setting.kind, key, raw)
            elif setting is not None:
                self._read_scalar(setting, setting.kind, raw)
            elif not any(known.startswith(key + ".") for known in BY_KEY):
                raise self._unknown(key, BY_KEY)
            elif isinstance(raw, dict):
                self._walk(key + ".", raw)
            else:
                raise ConfigError(
                    f"{key} in {self.label} is {type_name(raw)}, and it is a section",
                    next=f"write [{key}] with its keys below",
                )

    def _read_scalar(self, setting: Setting, kind: Any, raw: object) -> None:
        last = setting.key.rpartition(".")[2]
        example = kind.schema()
        quoted = example.get("type") not in ("boolean", "integer") and not isinstance(kind.example, bool)
        place = Place(
            f"file {self.label}",
            f"{setting.key} in {self.label}",
            f'{last} = "{kind.example}"' if quoted else f"{last} = {kind.example}",
        )
        try:
            value = kind.toml(raw)
        except ValueError as reason:
            place.reject(reason, None if setting.secret or isinstance(raw, dict) else _shown(raw))
        self._scalars[setting.key] = Value(value, place.origin)

    def _read_entries(self, entries: Entries, key: str, raw: object) -> None:
        place = Place(f"file {self.label}", f"{key} in {self.label}", "")
        if not isinstance(raw, dict):
            raise ConfigError(
                f"{key} in {self.label} is {type_name(raw)}, and it is a table of names and values",
                next=f"write [{key}] with lines of the form {entries.metavar.replace('=', ' = ')} below",
            )
        found: dict[str, Value] = {}
        for name, value in _flat(raw) if entries.dotted else raw.items():
            try:
                normal = entries.normal(name)
            except ValueError as reason:
                Place(place.origin, f"{key}.{name} in {self.label}", f"{entries.example}").reject(
                    reason, None
                )
            if entries.names is not None and normal not in entries.names:
                raise self._unknown(f"{key}.{name}", [f"{key}.{known}" for known in entries.names])
            at = Place(place.origin, f"{key} in {self.label}:", "")
            found[normal] = _entry(entries, normal, value, at)
        self._tables[key] = found

    def _unknown(self, key: str, known: Iterable[str]) -> ConfigError:
        near = nearest(key, known)
        return ConfigError(
            f"unknown key {key!r} in {self.label}",
            next=f"the nearest known key is {near!r}; write that, or remove the line",
        )


def _parse(path: Path, label: str) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"the config file {label!r} can't be read: {error.strerror}",
            next="correct --config or CDC_OUTBOX_CONFIG, or make the file readable for this user",
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"the config file {label!r} isn't UTF-8 text", next="save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"the config file {label!r} isn't TOML: {error}",
            next=f"correct {label} at the place that is named",
        ) from None


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
