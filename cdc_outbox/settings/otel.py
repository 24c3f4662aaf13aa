"""OpenTelemetry's own variables, as far as they are read here: the rest its exporter reads for itself.

They count only where the setting `otel.metrics` asks for a push, since others may have set them for programs of theirs.

https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
https://opentelemetry.io/docs/specs/otel/protocol/exporter/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from cdc_outbox.errors import ConfigError
from cdc_outbox.settings.model import OtelSettings

INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
LEAST: Final = 100.0
"""Milliseconds between two pushes."""

_FORBID: Final = {"OTEL_SDK_DISABLED": "true", "OTEL_METRICS_EXPORTER": "none"}
_EXPORTER: Final = ("OTEL_EXPORTER_OTLP_METRICS_", "OTEL_EXPORTER_OTLP_")
_TOKEN: Final = 8
"""Letters from which on a header's value may be a secret, and is no word that a log is full of."""


def read(environ: Mapping[str, str], *, metrics: bool) -> OtelSettings:
    """What they say to a relay that is to push its `metrics`.

    Raises ConfigError for a value that can't be followed.
    """
    if not metrics:
        return OtelSettings()
    for name, word in _FORBID.items():
        if environ.get(name, "").strip().lower() == word:
            return OtelSettings(forbidden=f"{name}={word}")
    for name in _given(environ, "PROTOCOL"):
        if environ[name] != "http/protobuf":
            raise ConfigError(
                f"{name} is {environ[name]}, and metrics are pushed by http/protobuf",
                next="export OTEL_EXPORTER_OTLP_METRICS_PROTOCOL=http/protobuf, and the collector's address for it,"
                " as in OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=http://localhost:4318/v1/metrics",
            )
        break
    for name in _given(environ, "ENDPOINT"):
        if not _is_address(environ[name]):
            raise ConfigError(
                f"{name} is no address of a collector", next=f"export {name}=http://localhost:4318"
            )
    for name in _given(environ, "HEADERS"):
        if not all("=" in item for item in _items(environ[name])):
            raise ConfigError(
                f"{name} holds something that isn't NAME=VALUE",
                next="write it as NAME=VALUE,NAME=VALUE, special characters percent-encoded",
            )
    for name in _given(environ, "TIMEOUT"):
        _number(name, environ[name], "of seconds", example="10")
    wanted = f"of milliseconds, {LEAST:g} at least"
    every = _number(INTERVAL, environ.get(INTERVAL) or "60000", wanted, example="60000", least=LEAST)
    return OtelSettings(metrics=True, every=every / 1000)


def secrets(environ: Mapping[str, str]) -> set[str]:
    """What headers of these variables may hold, in each of its spellings."""
    found: set[str] = set()
    for name in _given(environ, "HEADERS"):
        for item in _items(environ[name]):
            value = item.partition("=")[2].strip() or item
            for spelling in (value, unquote(value)):
                found.update((spelling, *spelling.split()))
    return {each for each in found if len(each) >= _TOKEN}


def _given(environ: Mapping[str, str], what: str) -> Iterator[str]:
    """The names of those that are set, the one that counts first."""
    return (prefix + what for prefix in _EXPORTER if environ.get(prefix + what))


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _is_address(text: str) -> bool:
    try:
        where = urlsplit(text)
        return where.scheme in ("http", "https") and bool(where.hostname) and where.port != 0
    except ValueError:
        return False


def _number(name: str, text: str, wanted: str, *, example: str, least: float = 0.0) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not least <= number < float("inf"):
        raise ConfigError(
            f"{name} is {text!r}: it must be a number {wanted}", next=f"export {name}={example}"
        )
    return number
