"""Every setting, declared once: its key, kind, default, flag and variables, and what it is for.

Loading, `config show`, the options of the commands, the JSON Schema and the reference follow from this table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from cdc_outbox.event import TableName
from cdc_outbox.settings.client import CLIENT
from cdc_outbox.settings.dsn import Dsn
from cdc_outbox.settings.entries import Entries, StatusEntries
from cdc_outbox.settings.kind import Kind
from cdc_outbox.settings.kind.address import Address, Callable, Connection, FilePath, Servers
from cdc_outbox.settings.kind.amount import Duration, Integer, Rate, Size
from cdc_outbox.settings.kind.name import Identifier, Key, SlotName, Tables
from cdc_outbox.settings.kind.word import Boolean, Choice, Plain, Values
from cdc_outbox.settings.model import ROLES, STATUS_MEANINGS
from cdc_outbox.settings.signal import SIGNALS, SignalEntries
from cdc_outbox.table.profiles import AUTO, BY_NAME, NONE

PREFIX: Final = "CDC_OUTBOX_"


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `default` is a value as the kind reads it; `environment` are the short names, best first.

    `own_group` names the flags that belong together, where that isn't the key's section; `off` is a second
    flag that says `off`; `switch`: the flag has no value and means true.
    """

    key: str
    kind: Kind | Entries
    help: str
    default: object = None
    flag: str | None = None
    off: str | None = None
    switch: bool = False
    repeated: bool = False
    environment: tuple[str, ...] = ()
    secret: bool = False
    own_group: str | None = None

    @property
    def group(self) -> str:
        """The name of the flags that it belongs with."""
        return self.own_group or self.key.partition(".")[0]

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment names, best first."""
        return tuple(dict.fromkeys((*self.environment, PREFIX + self.key.upper().replace(".", "_"))))


def parameter(flag: str) -> str:
    """The name of a flag's parameter: `--on-poison` gives `on_poison`."""
    return flag.lstrip("-").replace("-", "_")


def _role(name: str) -> str:
    return name.strip().lower()


def _name(name: str) -> str:
    if not name or "\0" in name:
        raise ValueError("the name is empty")
    return name


def _topic_option(name: str) -> str:
    if not re.fullmatch(r"[a-z]+(\.[a-z]+)*", name, re.ASCII):
        raise ValueError(f"{name!r} is not the name of a topic's setting, like retention.ms")
    return name


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "postgres.dsn",
        Connection("postgresql://relay@db.example.org/app"),
        "PostgreSQL: a URL or key=value words; what it leaves out comes from libpq (PG*, service file).",
        default=Dsn("", (), ()),
        flag="--dsn",
        environment=("CDC_OUTBOX_DSN", "DATABASE_URL"),
        secret=True,
    ),
    Setting(
        "postgres.admin_dsn",
        Connection("postgresql://owner@db.example.org/app"),
        "The same server as a role that owns the table, for what needs an owner. Default: as --dsn.",
        flag="--admin-dsn",
        environment=("CDC_OUTBOX_ADMIN_DSN",),
        secret=True,
        own_group="admin",
    ),
    Setting(
        "postgres.password_provider",
        Callable("my_company.passwords:fetch"),
        "A function of yours that is asked for the password before each new connection, where the DSN has none; "
        "cdc_outbox.aws:rds is Amazon's IAM.",
    ),
    Setting(
        "postgres.slot",
        SlotName("outbox_slot"),
        "The replication slot.",
        default="outbox_slot",
        flag="--slot",
        environment=("CDC_OUTBOX_SLOT",),
    ),
    Setting(
        "postgres.publication",
        Identifier("outbox_pub"),
        "The publication.",
        default="outbox_pub",
        flag="--publication",
        environment=("CDC_OUTBOX_PUBLICATION",),
    ),
    Setting(
        "postgres.guard_interval",
        Duration("1s", least="100ms", most="1m"),
        "How often publication, slot and synchronous_standby_names are checked.",
        default=1.0,
    ),
    Setting(
        "outbox.table",
        Tables("public.outbox"),
        "The outbox table, as SQL reads a name: folded unless quoted. Repeat it for several tables.",
        default=(TableName("public", "outbox"),),
        flag="--table",
        repeated=True,
        environment=("CDC_OUTBOX_TABLE",),
    ),
    Setting(
        "outbox.profile",
        Choice(AUTO, NONE, *BY_NAME, later=("debezium",), metavar="NAME"),
        "Whose outbox it is: auto recognises a library's table by its name and columns, and else the usual columns; "
        f"none the usual columns only; or one of {', '.join(BY_NAME)}.",
        default="auto",
        flag="--profile",
    ),
    Setting(
        "outbox.columns",
        Entries(
            Identifier("body"),
            "payload=body",
            "ROLE=NAME",
            names=ROLES,
            normal=_role,
            spelled=str.lower,
        ),
        "Which column plays a role, where its name isn't recognised. Repeatable.",
        flag="--column",
        repeated=True,
    ),
    Setting(
        "outbox.status",
        StatusEntries("sent=DISPATCHED", STATUS_MEANINGS),
        f"The status column, and its words that mean {', '.join(STATUS_MEANINGS[:-1])} or {STATUS_MEANINGS[-1]}, "
        "where they aren't the usual ones. Repeatable.",
        flag="--status",
        repeated=True,
    ),
    Setting(
        "outbox.topic",
        Kind("orders.{event_type}", "TEMPLATE"),
        "The topic: a name, or a template over columns like orders.{event_type}.",
        flag="--topic",
    ),
    Setting(
        "outbox.key",
        Key("payload:/order_id"),
        "The message key: a column or template, payload:/json/pointer, headers:/json/pointer, or none (no order then).",
        flag="--key",
    ),
    Setting(
        "outbox.header",
        Entries(Identifier("trace_context"), "traceparent=trace_context", "NAME=COLUMN", normal=_name),
        "A header and the column that it comes from. Repeatable.",
        flag="--header",
        repeated=True,
    ),
    Setting(
        "outbox.static_headers",
        Entries(Plain("orders"), "source=orders", "NAME=TEXT", normal=_name),
        "Headers with the same text on every message.",
    ),
    Setting(
        "outbox.provenance",
        Boolean(),
        "Add the headers cdc.lsn, cdc.seq, cdc.commit_ts and cdc.slot.",
        default=False,
        flag="--provenance-headers",
        switch=True,
    ),
    Setting(
        "outbox.only",
        Entries(Values("kafka"), "bus=kafka", "COLUMN=VALUE", normal=_name),
        "Send only rows whose column has this value. Repeatable.",
        flag="--only",
        repeated=True,
    ),
    Setting(
        "outbox.scheduled",
        Choice("error", "ignore"),
        "A row that is to be sent later than its commit: poison, or sent at once.",
        default="error",
    ),
    Setting(
        "outbox.mark",
        Choice("none", "update"),
        'Whether to write the table\'s own "sent" columns back, once a row is delivered.',
        default="none",
        flag="--mark",
    ),
    Setting(
        "kafka.bootstrap_servers",
        Servers("kafka.example.org:9092"),
        "Kafka's bootstrap servers.",
        default="localhost:9092",
        flag="--bootstrap-servers",
        environment=("CDC_OUTBOX_BOOTSTRAP_SERVERS", "KAFKA_BOOTSTRAP_SERVERS"),
    ),
    Setting(
        "kafka.client",
        CLIENT,
        "An option of the Kafka client, like security.protocol=SASL_SSL. Repeatable.",
        flag="--kafka",
        repeated=True,
    ),
    Setting(
        "kafka.partitioner",
        Choice("murmur2", "crc32"),
        "How a key finds its partition: as Java's client, or as librdkafka.",
        default="murmur2",
        flag="--partitioner",
    ),
    Setting(
        "kafka.topics.create",
        Boolean(),
        "Create topics that are missing.",
        default=False,
        flag="--create-topics",
        switch=True,
    ),
    Setting(
        "kafka.topics.partitions",
        Integer(12, least=1, most=100_000, besides=(-1,)),
        "Partitions of a topic that is created; -1: the broker's default.",
        default=1,
    ),
    Setting(
        "kafka.topics.replication_factor",
        Integer(3, least=1, most=32_767, besides=(-1,)),
        "Replicas of a topic that is created; -1: the broker's default.",
        default=-1,
    ),
    Setting(
        "kafka.topics.config",
        Entries(
            Plain("604800000"),
            "retention.ms=604800000",
            "NAME=VALUE",
            normal=_topic_option,
            dotted=True,
            spelled=lambda rest: rest.lower().replace("_", "."),
        ),
        "Settings of a topic that is created, by Kafka's names.",
    ),
    Setting(
        "kafka.unknown_topic",
        Choice("hold", "poison"),
        "A row names a topic that the cluster doesn't have: wait for it, or treat the row as poison.",
        default="hold",
    ),
    Setting(
        "kafka.on_partition_change",
        Choice("warn", "stop"),
        "The number of a topic's partitions changed, so keys move.",
        default="warn",
    ),
    Setting(
        "delivery.on_poison",
        Choice("stop", "block", later=("dead-letter", "park")),
        "A row that can never be published: end with exit code 70, or stay up and wait.",
        default="stop",
        flag="--on-poison",
    ),
    Setting(
        "limits.max_events_per_second",
        Rate("2000"),
        "At most so many events a second; none: no limit.",
        flag="--max-events-per-second",
    ),
    Setting(
        "limits.inflight_bytes",
        Size("32MiB", least="64KiB", most="16GiB"),
        "At most so many bytes between PostgreSQL and Kafka's confirmation.",
        default=32 * 2**20,
        flag="--inflight-bytes",
    ),
    Setting(
        "limits.drain",
        Duration("20s", least="0s", most="1h"),
        "At the end wait at most so long for what is in flight.",
        default=20.0,
        flag="--drain",
    ),
    Setting(
        "cleanup.older_than",
        Duration("7d", least="0s", most="3650d"),
        "Remove rows that are older than this and acknowledged; `start` does so by itself then. Not set: it doesn't.",
        flag="--cleanup-older-than",
    ),
    Setting(
        "retry.initial",
        Duration("200ms", least="10ms", most="1h"),
        "The first wait before a new attempt; doubled each time, with jitter.",
        default=0.2,
    ),
    Setting("retry.max", Duration("2s", least="10ms", most="1h"), "The longest such wait.", default=2.0),
    Setting(
        "http.listen",
        Address("127.0.0.1:9464"),
        "The relay's address for probes, metrics and the status page. Default for start: 127.0.0.1:9464.",
        flag="--http",
        off="--no-http",
        environment=("CDC_OUTBOX_HTTP",),
    ),
    Setting(
        "http.token_file",
        FilePath("/run/secrets/cdc-outbox-token"),
        "A file with the token for /healthz, /metrics and /status; read anew when it changes.",
    ),
    Setting(
        "health.warning",
        SignalEntries("retained=50%"),
        f"From which value on a signal is a warning: {', '.join(SIGNALS)}. Repeatable.",
        flag="--warning",
        repeated=True,
    ),
    Setting(
        "health.critical",
        SignalEntries("retained=75%"),
        "From which value on a signal is critical. Repeatable.",
        flag="--critical",
        repeated=True,
    ),
    Setting(
        "otel.metrics",
        Boolean(),
        "Push the metrics to an OpenTelemetry collector, as OTEL_EXPORTER_OTLP_ENDPOINT and its like say; "
        "takes the extra otel.",
        default=False,
        flag="--otel",
        switch=True,
    ),
    Setting(
        "log.level",
        Choice("debug", "info", "warning", "error"),
        "How much to log.",
        default="info",
        flag="--log-level",
        environment=("CDC_OUTBOX_LOG_LEVEL",),
    ),
    Setting(
        "log.format",
        Choice("text", "json"),
        "Default: json for a start without a terminal, else text.",
        flag="--log-format",
        environment=("CDC_OUTBOX_LOG_FORMAT",),
    ),
)

BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
