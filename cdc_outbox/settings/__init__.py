"""Settings: flag before environment before file before default, each value with its origin.

`load` answers with complete, checked records or raises UsageError (a malformed flag, exit 2) or ConfigError
(exit 78) that names each wrong value, where it stands, and a right example. Secrets can't be printed by accident:
records leave them out of their repr, and `Settings.redactor` takes them out of any text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cdc_outbox.errors import ConfigError
from cdc_outbox.settings import otel
from cdc_outbox.settings.client import variable
from cdc_outbox.settings.complaints import Complaints
from cdc_outbox.settings.declare import BY_KEY, SETTINGS, Setting, parameter
from cdc_outbox.settings.dsn import LIBPQ_VARIABLES, Dsn
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.environment import FILE, Environment
from cdc_outbox.settings.file import File
from cdc_outbox.settings.flag import Flags
from cdc_outbox.settings.model import (
    SECRET_CLIENT_NAMES,
    CleanupSettings,
    ClientOptions,
    DeliverySettings,
    HealthSettings,
    HttpSettings,
    KafkaSettings,
    LimitSettings,
    LogSettings,
    Notice,
    OtelSettings,
    OutboxSettings,
    PostgresSettings,
    RetrySettings,
    Settings,
    Shown,
    StatusSettings,
    TopicSettings,
)
from cdc_outbox.settings.place import Value
from cdc_outbox.settings.secret import MASK, Redactor
from cdc_outbox.settings.units import format_duration

__all__ = [
    "BY_KEY",
    "SETTINGS",
    "HealthSettings",
    "HttpSettings",
    "KafkaSettings",
    "OtelSettings",
    "OutboxSettings",
    "PostgresSettings",
    "RetrySettings",
    "Setting",
    "Settings",
    "StatusSettings",
    "load",
    "parameter",
]

DEFAULT_LISTEN: Final = ("127.0.0.1", 9464)

_WITHOUT_KAFKA: Final = frozenset({"init", "drop", "health", "cleanup", "inbox"})
"""Commands that never reach Kafka: who runs them needs none of its secrets."""

_KAFKA_SECRETS: Final = frozenset(variable(name) + FILE for name in SECRET_CLIENT_NAMES)
_DEFAULT: Final = "default"
_NAMES_A_FILE: Final = re.compile(
    r"CDC_OUTBOX_(?:\w+_FILE|CONFIG)|PG(?:PASS|SERVICE)FILE|PGSSL(?:CERT|KEY|ROOTCERT|CRL)"
)


def load(command: str, flags: Mapping[str, object], environ: Mapping[str, str], cwd: Path) -> Settings:
    """Read all settings for a command.

    `flags` are given flags by parameter name (`on_poison`, `config`, `no_http`; repeated ones as sequences of
    text); None, False and empty sequences mean not given. Relative paths start at `cwd`.
    """
    complaints = Complaints()
    if command in _WITHOUT_KAFKA:
        environ = {name: text for name, text in environ.items() if name not in _KAFKA_SECRETS}
    given, environment = Flags(flags, complaints), Environment(environ, cwd, complaints)
    file = File.find(given.config[-1] if given.config else environment.config, cwd, complaints)
    scalars: dict[str, Value] = {
        setting.key: Value(setting.default, _DEFAULT)
        for setting in SETTINGS
        if not isinstance(setting.kind, Entries)
    }
    if command == "start":
        scalars["http.listen"] = Value(DEFAULT_LISTEN, _DEFAULT)
    tables: dict[str, dict[str, Value]] = {
        setting.key: {} for setting in SETTINGS if isinstance(setting.kind, Entries)
    }
    for source in (file, environment, given):
        scalars.update(source.scalars())
        for key, entries in source.tables().items():
            tables[key].update(entries)
    complaints.require_none()
    _libpq_defaults(scalars, environ)
    notices = [*given.secrets(), *environment.unknown()]
    settings = _assemble(scalars, tables, notices, environ, cwd)
    _check(settings)
    if command not in _WITHOUT_KAFKA:
        _require_credentials(settings.kafka.client)
    return settings


def _libpq_defaults(scalars: dict[str, Value], environ: Mapping[str, str]) -> None:
    dsn, admin = scalars["postgres.dsn"], scalars["postgres.admin_dsn"]
    used = [name for name in LIBPQ_VARIABLES if environ.get(name)]
    if dsn.origin == _DEFAULT and used:
        scalars["postgres.dsn"] = dsn = Value(dsn.value, f"environment {', '.join(used)}")
    if admin.value is None:
        scalars["postgres.admin_dsn"] = Value(dsn.value, "as postgres.dsn")


def _assemble(
    scalars: Mapping[str, Value],
    tables: Mapping[str, Mapping[str, Value]],
    notices: list[Notice],
    environ: Mapping[str, str],
    cwd: Path,
) -> Settings:
    def of(key: str) -> Any:
        return scalars[key].value

    def entries(key: str) -> dict[str, Any]:
        return {name: value.value for name, value in tables[key].items()}

    shown = tuple(_show(scalars, tables))
    dsn: Dsn = of("postgres.dsn")
    admin: Dsn = of("postgres.admin_dsn")
    client = ClientOptions(entries("kafka.client"))
    token_file: Path | None = of("http.token_file")
    return Settings(
        postgres=PostgresSettings(
            dsn=dsn.text,
            admin_dsn=admin.text,
            slot=of("postgres.slot"),
            publication=of("postgres.publication"),
            guard_interval=of("postgres.guard_interval"),
            password_provider=of("postgres.password_provider"),
        ),
        outbox=OutboxSettings(
            tables=of("outbox.table"),
            profile=of("outbox.profile"),
            columns=entries("outbox.columns"),
            topic=of("outbox.topic"),
            key=of("outbox.key"),
            headers=tuple(entries("outbox.header").items()),
            static_headers=tuple(entries("outbox.static_headers").items()),
            provenance=of("outbox.provenance"),
            only=entries("outbox.only"),
            scheduled=of("outbox.scheduled"),
            mark=of("outbox.mark"),
            status=StatusSettings(**entries("outbox.status")),
        ),
        kafka=KafkaSettings(
            bootstrap_servers=of("kafka.bootstrap_servers"),
            client=client,
            partitioner=of("kafka.partitioner"),
            topics=TopicSettings(
                create=of("kafka.topics.create"),
                partitions=of("kafka.topics.partitions"),
                replication_factor=of("kafka.topics.replication_factor"),
                config=entries("kafka.topics.config"),
            ),
            unknown_topic=of("kafka.unknown_topic"),
            on_partition_change=of("kafka.on_partition_change"),
        ),
        delivery=DeliverySettings(on_poison=of("delivery.on_poison")),
        limits=LimitSettings(
            max_events_per_second=of("limits.max_events_per_second"),
            inflight_bytes=of("limits.inflight_bytes"),
            drain=of("limits.drain"),
        ),
        cleanup=CleanupSettings(older_than=of("cleanup.older_than")),
        retry=RetrySettings(initial=of("retry.initial"), max=of("retry.max")),
        http=HttpSettings(
            listen=of("http.listen"),
            explicit=scalars["http.listen"].origin != _DEFAULT,
            token_file=None if token_file is None else cwd / token_file,
        ),
        health=HealthSettings(warning=entries("health.warning"), critical=entries("health.critical")),
        otel=otel.read(environ, metrics=of("otel.metrics")),
        log=LogSettings(level=of("log.level"), format=of("log.format")),
        origins={one.key: one.origin for one in shown},
        shown=shown,
        notices=(*notices, *_client_notices(client)),
        redactor=_redactor(dsn, admin, client, token_file, environ),
    )


def _show(scalars: Mapping[str, Value], tables: Mapping[str, Mapping[str, Value]]) -> list[Shown]:
    shown = []
    for setting in SETTINGS:
        kind = setting.kind
        if isinstance(kind, Entries):
            for name, value in tables[setting.key].items():
                plain = MASK if name in kind.secret else kind.show(name, value.value)
                shown.append(Shown(f"{setting.key}.{name}", plain, value.origin))
            if not tables[setting.key]:
                shown.append(Shown(setting.key, {}, _DEFAULT))
            continue
        value = scalars[setting.key]
        if setting.secret:
            shown.append(Shown(setting.key, MASK if value.value.text else "", value.origin))
        elif value.value is None and setting.key != "http.listen":
            plain = kind.show(None) if setting.key == "limits.max_events_per_second" else None
            shown.append(Shown(setting.key, plain, value.origin))
        else:
            shown.append(Shown(setting.key, kind.show(value.value), value.origin))
    return shown


def _redactor(
    dsn: Dsn, admin: Dsn, client: ClientOptions, token_file: Path | None, environ: Mapping[str, str]
) -> Redactor:
    secrets = {*dsn.secrets, *admin.secrets, *otel.secrets(environ)}
    secrets.update(value for name, value in client.items() if name in SECRET_CLIENT_NAMES)
    if password := environ.get("PGPASSWORD"):
        secrets.add(password)
    public = {*dsn.public, *admin.public, client.get("sasl.username", "")}
    public.update(value for name in ("PGUSER", "PGDATABASE", "PGHOST") if (value := environ.get(name)))
    paths = {*dsn.paths, *admin.paths, str(token_file or "")}
    paths.update(value for name, value in client.items() if name.endswith(".location"))
    paths.update(text for name, text in environ.items() if _NAMES_A_FILE.fullmatch(name))
    return Redactor(secrets, public, (dsn.text, admin.text), paths)


def _client_notices(client: ClientOptions) -> list[Notice]:
    protocol = client.get("security.protocol", "PLAINTEXT")
    notices = []
    unused = [name for name in client if name.startswith("sasl.") and "SASL" not in protocol]
    unused += [name for name in client if name.startswith("ssl.") and "SSL" not in protocol.split("_")]
    if unused:
        notices.append(
            Notice(
                "client options without effect under this security.protocol",
                {"options": ", ".join(unused), "security.protocol": protocol},
            )
        )
    if protocol == "SASL_PLAINTEXT" and client.get("sasl.mechanism") == "PLAIN":
        notices.append(
            Notice(
                "the password goes to Kafka over the network as it is",
                {"security.protocol": protocol, "sasl.mechanism": "PLAIN"},
            )
        )
    return notices


def _check(settings: Settings) -> None:
    """What no single value can tell."""
    if settings.retry.max < settings.retry.initial:
        raise ConfigError(
            f"retry.max is {format_duration(settings.retry.max)}, less than retry.initial, "
            f"which is {format_duration(settings.retry.initial)}",
            next=f'write max = "{format_duration(settings.retry.initial)}" or more under [retry]',
        )


def _require_credentials(client: ClientOptions) -> None:
    """Raise ConfigError where the security protocol wants what isn't given."""
    if not client.get("security.protocol", "").startswith("SASL"):
        return
    mechanism = client.get("sasl.mechanism")
    if mechanism is None:
        needed = ["sasl.mechanism"]
    elif mechanism == "OAUTHBEARER":
        needed = ["sasl.oauthbearer.token.provider"]
    else:
        needed = ["sasl.username", "sasl.password"]
    missing = [name for name in needed if name not in client]
    if missing:
        steps = " and ".join(
            f"{variable(name)}{FILE} to the path of a file that holds it"
            if name in SECRET_CLIENT_NAMES
            else variable(name)
            for name in missing
        )
        raise ConfigError(
            f"kafka.client.security.protocol is {client['security.protocol']}, and {' and '.join(missing)} isn't given",
            next=f"set {steps}",
        )
