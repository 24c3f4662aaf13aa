"""`docs/reference/settings.md`: every setting with its type, default, flag, variables and place in the file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from cdc_outbox.settings.client import DECIDED_HERE, KINDS, SPELLINGS, variable
from cdc_outbox.settings.declare import SETTINGS, Setting
from cdc_outbox.settings.entries import Entries, StatusEntries
from cdc_outbox.settings.kind import Kind
from cdc_outbox.settings.kind.amount import Duration, Integer, Rate, Size
from cdc_outbox.settings.kind.word import Boolean, Choice
from cdc_outbox.settings.model import SECRET_CLIENT_NAMES
from cdc_outbox.settings.signal import SIGNALS
from cdc_outbox.watch.thresholds import DEFAULTS

HEAD = """\
# Settings

<!-- made by `make references` from the declarations of the settings -->

A flag counts before the environment, the environment before the file, the file before the default.
`cdc-outbox config show` prints each value with its origin, and `cdc-outbox config validate` checks them without
connecting to anything. The file is `cdc-outbox.toml` in the working directory, or what `--config` or
`CDC_OUTBOX_CONFIG` names; [cdc-outbox.toml](../examples/cdc-outbox.toml) is a whole one with comments, and
`cdc-outbox config schema` is its JSON Schema, for an editor.

An unknown key in the file is an error that names the nearest one that is known; an unknown `CDC_OUTBOX_` variable is a
warning. An empty variable counts as not set. Where several variables are named, the first that is set counts. A secret
may stand in a file that the variable with `_FILE` names; by flag everybody on the machine could read it. Durations are
written `200ms`, `30s`, `5m`, `2h`, `7d`; sizes `64kB`, `512KiB`, `16MiB`.
"""

SECTIONS = {
    "postgres": "PostgreSQL",
    "outbox": "The outbox table and its messages",
    "kafka": "Kafka",
    "delivery": "Delivery",
    "limits": "Limits",
    "cleanup": "Cleanup",
    "retry": "Retries",
    "http": "HTTP",
    "health": "Health",
    "otel": "OpenTelemetry",
    "log": "The log",
}

WORDS = {
    "postgres.dsn": "what libpq finds for itself (`PG*`, service file, the local socket)",
    "postgres.admin_dsn": "as `postgres.dsn`",
    "http.listen": "`127.0.0.1:9464`, where `start` listens, and `health` and `doctor` look for a relay",
    "log.format": "`json` for `start` without a terminal, else `text`",
    "outbox.topic": "the topic column, else `outbox.event.{aggregate_type}` ([Mapping](mapping.md))",
    "outbox.key": "the aggregate id",
    "outbox.columns": "recognised by name ([Mapping](mapping.md))",
    "outbox.status": "the usual words ([Mapping](mapping.md))",
    "outbox.only": "all rows",
    "health.warning": "the table below",
    "health.critical": "the table below",
}
"""Defaults that are more than a value."""


def text() -> str:
    """The whole document."""
    lines = [HEAD]
    for section, settings in groupby(SETTINGS, lambda each: each.key.partition(".")[0]):
        lines += [f"## {SECTIONS[section]}\n", *(line for each in settings for line in _entry(each))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _entry(setting: Setting) -> Iterator[str]:
    yield f"### {setting.key}\n"
    yield f"{setting.help.replace('<', '&lt;')}\n"
    yield f"- type: {_type(setting.kind)}"
    yield f"- default: {_default(setting)}"
    if setting.flag:
        value = "" if setting.switch else f" {setting.kind.metavar}"
        flags = [f"`{setting.flag}{value}`", *([f"`{setting.off}`"] if setting.off else [])]
        yield f"- flag: {' or '.join(flags)}{', may be repeated' if setting.repeated else ''}"
    yield f"- environment: {', '.join(f'`{name}`' for name in _variables(setting))}"
    yield f"- in the file: {_in_file(setting)}"
    yield ""
    if setting.key == "kafka.client":
        yield from _client()
    if setting.key == "health.critical":
        yield from _thresholds()


def _type(kind: Kind | Entries) -> str:
    match kind:
        case Choice():
            return f"one of {', '.join(f'`{word}`' for word in kind.values)}"
        case Boolean():
            return "`true` or `false`; in the environment also `yes`, `no`, `on`, `off`, `1`, `0`"
        case Integer():
            also = "".join(f", or {number}" for number in kind.besides)
            return f"a whole number from {kind.least} to {kind.most}{also}"
        case Rate():
            return "a positive number, or `none`"
        case Duration():
            return f"a duration from `{kind.least}` to `{kind.most}`"
        case Size():
            return f"a size from `{kind.least}` to `{kind.most}`"
        case StatusEntries():
            return f"a table of {_names(kind)}: the column's name, and one word or a list of words for each meaning"
        case Entries(names=None):
            return f"a table with names of your own, as `{kind.example}`"
        case Entries():
            return f"a table of {_names(kind)}"
        case _:
            doc = (type(kind).__doc__ or "").partition("\n")[0].rstrip(".")
            if type(kind) is Kind or not doc:
                return f"text, as `{kind.example}`"
            return f"{doc[0].lower()}{doc[1:]}, as `{kind.example}`"


def _names(kind: Entries) -> str:
    return (
        "options, listed below"
        if len(kind.names or ()) > 15
        else ", ".join(f"`{name}`" for name in kind.names or ())
    )


def _default(setting: Setting) -> str:
    if setting.key in WORDS:
        return WORDS[setting.key]
    if isinstance(setting.kind, Entries):
        return "none"
    if setting.default is None:
        return "`none`" if isinstance(setting.kind, Rate) else "not set"
    shown = setting.kind.show(setting.default)
    return f"`{str(shown).lower() if isinstance(shown, bool) else shown}`"


def _variables(setting: Setting) -> Iterator[str]:
    for name in setting.variables:
        yield name
        if setting.secret:
            yield f"{name}_FILE"
    if isinstance(setting.kind, Entries) and setting.kind.spelled:
        yield variable("") + "<NAME>" if setting.key == "kafka.client" else f"{setting.variables[-1]}_<NAME>"


def _in_file(setting: Setting) -> str:
    section, _, name = setting.key.rpartition(".")
    if not isinstance(setting.kind, Entries):
        return f"`{name} = {setting.kind.toml_example}` under `[{section}]`"
    entry, _, value = setting.kind.example.partition("=")
    return f'`{entry} = "{value}"` under `[{setting.key}]`'


def _client() -> Iterator[str]:
    yield "The options have the names of Kafka's Java client; librdkafka's are understood too:"
    yield f"{', '.join(f'`{other}` for `{name}`' for other, name in SPELLINGS.items())}."
    yield "Secrets take a `_FILE` variable.\n"
    yield "| option | type | environment |"
    yield "|---|---|---|"
    for name, kind in KINDS.items():
        named = f"`{variable(name)}`" + (f", `{variable(name)}_FILE`" if name in SECRET_CLIENT_NAMES else "")
        yield f"| `{name}` | {_option_type(name, kind)} | {named} |"
    yield ""
    yield "Refused, since the relay decides it itself:\n"
    yield "| option | instead |"
    yield "|---|---|"
    yield from (f"| `{name}` | {instead} |" for name, instead in DECIDED_HERE.items())
    yield ""


def _option_type(name: str, kind: Kind) -> str:
    if accepted := getattr(kind, "accepted", None):
        return f"`{accepted[0]}` only: {kind.reason}"  # type: ignore[attr-defined]  # an option with one value has one
    return "text, a secret" if name in SECRET_CLIENT_NAMES else _type(kind)


def _thresholds() -> Iterator[str]:
    yield "| signal | type | warning | critical |"
    yield "|---|---|---|---|"
    for name, kind in SIGNALS.items():
        warning, critical = DEFAULTS[name]
        yield f"| `{name}` | {_type(kind)}, or `off` | `{warning}` | `{critical}` |"
    yield ""
    yield "What each means: [Health](health.md).\n"
