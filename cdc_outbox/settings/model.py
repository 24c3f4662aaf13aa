"""The settings as the rest of the house sees them: frozen records, complete and checked.

A secret is never part of a record's repr, so that no traceback, log line or failed assertion can print one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from cdc_outbox.event import TableName
from cdc_outbox.settings.secret import MASK, Redactor

ROLES: Final = (
    "id",
    "aggregate_type",
    "aggregate_id",
    "type",
    "version",
    "topic",
    "payload",
    "headers",
    "timestamp",
    "partition",
    "bus",
    "created_at",
    "sent_at",
)
"""The parts that a column of the outbox table can play (`outbox.columns.<role>`)."""

STATUS_MEANINGS: Final = ("sent", "failed", "given_up", "taken", "waiting")
"""What a word of a status column can mean (`outbox.status.<meaning>`)."""

SECRET_CLIENT_NAMES: Final = frozenset({"sasl.password", "ssl.key.password"})


class ClientOptions(dict[str, str]):
    """Kafka client options by their dotted names; secret ones are masked when printed."""

    def __repr__(self) -> str:
        shown = {name: MASK if name in SECRET_CLIENT_NAMES else value for name, value in self.items()}
        return repr(shown)

    __str__ = __repr__


@dataclass(frozen=True, slots=True)
class PostgresSettings:
    """Where the rows come from. `dsn` is libpq's (URL or `key=value` words); empty: libpq's defaults.

    `password_provider`, `module:callable`, is asked for a password before each connection, where a DSN has none.
    """

    dsn: str = field(repr=False)
    admin_dsn: str = field(repr=False)
    slot: str
    publication: str
    guard_interval: float
    password_provider: str | None = None


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """A status column's name, and what its words mean, as they are spelled. None: as usual."""

    column: str | None = None
    sent: tuple[str, ...] | None = None
    failed: tuple[str, ...] | None = None
    given_up: tuple[str, ...] | None = None
    taken: tuple[str, ...] | None = None
    waiting: tuple[str, ...] | None = None

    @property
    def words(self) -> dict[str, tuple[str, ...]]:
        """The words that are named, by their meaning."""
        named = {meaning: getattr(self, meaning) for meaning in STATUS_MEANINGS}
        return {meaning: words for meaning, words in named.items() if words is not None}


@dataclass(frozen=True, slots=True)
class OutboxSettings:
    """Which table, and how its columns become a message."""

    tables: tuple[TableName, ...]
    profile: str
    columns: Mapping[str, str]
    topic: str | None
    key: str | None
    headers: tuple[tuple[str, str], ...]
    static_headers: tuple[tuple[str, str], ...]
    provenance: bool
    only: Mapping[str, tuple[str, ...]]
    scheduled: Literal["error", "ignore"]
    mark: Literal["none", "update"]
    status: StatusSettings = field(default=StatusSettings())


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """Whether and how missing topics are made. -1 leaves a number to the broker."""

    create: bool
    partitions: int
    replication_factor: int
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """Where the messages go."""

    bootstrap_servers: str
    client: ClientOptions
    partitioner: Literal["murmur2", "crc32"]
    topics: TopicSettings
    unknown_topic: Literal["hold", "poison"]
    on_partition_change: Literal["warn", "stop"]


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """What happens to a row that can never be published."""

    on_poison: Literal["stop", "block"]


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Bounds: events per second (None: none), bytes in flight, seconds to drain at the end."""

    max_events_per_second: float | None
    inflight_bytes: int
    drain: float


@dataclass(frozen=True, slots=True)
class CleanupSettings:
    """From which age on, in seconds, acknowledged rows are removed; None: they aren't, unless a person says so."""

    older_than: float | None


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """The backoff between sessions, in seconds; jitter comes on top."""

    initial: float
    max: float


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where to answer over HTTP (None: nowhere). `explicit`: a person asked for this address."""

    listen: tuple[str, int] | None
    explicit: bool
    token_file: Path | None


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Thresholds by signal, as text: what `health` compares with."""

    warning: Mapping[str, str]
    critical: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class OtelSettings:
    """Whether metrics are pushed to an OpenTelemetry collector, and every how many seconds.

    `forbidden` is the variable of OpenTelemetry's, with its value, that says no where our setting says yes.
    """

    metrics: bool = False
    every: float = 60.0
    forbidden: str | None = None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`format` None means: text on a terminal, else json."""

    level: Literal["debug", "info", "warning", "error"]
    format: Literal["text", "json"] | None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the settings that a person should know: a constant text and its fields, for the log."""

    text: str
    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shown:
    """One line of `config show`: the value as the file spells it (a secret as ***), and where it is from."""

    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of one process, checked; see `cdc_outbox.settings.load`."""

    postgres: PostgresSettings
    outbox: OutboxSettings
    kafka: KafkaSettings
    delivery: DeliverySettings
    limits: LimitSettings
    cleanup: CleanupSettings
    retry: RetrySettings
    http: HttpSettings
    health: HealthSettings
    otel: OtelSettings
    log: LogSettings
    origins: Mapping[str, str]
    shown: tuple[Shown, ...] = field(repr=False)
    notices: tuple[Notice, ...] = ()
    redactor: Redactor = field(default_factory=Redactor, repr=False, compare=False)
