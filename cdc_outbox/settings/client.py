"""Kafka's client options: the names that work here, meaning what Kafka's and librdkafka's pages say.

Options that would break a promise (fewer acks, no idempotence, a linger) or that this relay decides itself
are refused with the reason, instead of being passed over.

https://kafka.apache.org/documentation/#producerconfigs
"""

from __future__ import annotations

from typing import Final

from cdc_outbox.settings.entries import OptionEntries
from cdc_outbox.settings.kind import Kind, Refused
from cdc_outbox.settings.kind.address import Callable
from cdc_outbox.settings.kind.amount import Integer
from cdc_outbox.settings.kind.word import Choice
from cdc_outbox.settings.model import SECRET_CLIENT_NAMES

SPELLINGS: Final = {
    "sasl.mechanisms": "sasl.mechanism",
    "compression.codec": "compression.type",
    "message.max.bytes": "max.request.size",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "request.required.acks": "acks",
}
"""librdkafka's names for what Java's client calls otherwise."""

_SERVERS: Final = "set kafka.bootstrap_servers, --bootstrap-servers or CDC_OUTBOX_BOOTSTRAP_SERVERS"
_ONE_IN_FLIGHT: Final = "leave it out: one request is in flight per broker, which keeps the order"
DECIDED_HERE: Final = {
    "bootstrap.servers": _SERVERS,
    "metadata.broker.list": _SERVERS,
    "partitioner": "set kafka.partitioner or --partitioner",
    "partitioner.class": "set kafka.partitioner or --partitioner",
    "sasl.jaas.config": "set sasl.mechanism, sasl.username and sasl.password instead",
    "ssl.truststore.location": "set ssl.ca.location to a file of PEM certificates instead",
    "ssl.keystore.location": "set ssl.certificate.location and ssl.key.location to PEM files instead",
    "sasl.login.callback.handler.class": "set sasl.oauthbearer.token.provider to 'module:callable' instead",
    "linger.ms": "leave it out: a lone event leaves at once, and batches grow by themselves under load",
    "retries": "leave it out: the relay tries for ever, and skips nothing",
    "message.send.max.retries": "leave it out: the relay tries for ever, and skips nothing",
    "delivery.timeout.ms": "leave it out: the relay tries for ever, and skips nothing",
    "max.in.flight.requests.per.connection": _ONE_IN_FLIGHT,
    "max.in.flight": _ONE_IN_FLIGHT,
    "transactional.id": "leave it out: the relay chooses it where it needs one",
    "key.serializer": "leave it out: the key's bytes come from the table",
    "value.serializer": "leave it out: the value's bytes come from the table",
}
"""Options that the relay sets itself, and what to do instead."""


class _Only(Kind):
    """An option with one value that keeps the promise."""

    def __init__(self, kept: str, *accepted: str, reason: str) -> None:
        super().__init__(kept)
        self.accepted = accepted
        self.reason = reason

    def text(self, text: str) -> str:
        if text.strip().lower() not in self.accepted:
            raise Refused(self.reason, next=f"leave it out; it is {self.example} here")
        return self.example


class _Sent(Kind):
    """Text in UTF-8."""

    def text(self, text: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError:  # so Python gives a variable's bytes that are none
            raise ValueError("it isn't text in UTF-8") from None
        return str(super().text(text))


class _Endpoint(Choice):
    def text(self, text: str) -> str:
        return super().text(text) if text.strip() else "none"


_MINUTE = 60_000

KINDS: Final[dict[str, Kind]] = {
    "security.protocol": Choice(
        *("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        weak=("PLAINTEXT", "SASL_PLAINTEXT"),
        others={"TLS": "SSL", "SASL_TLS": "SASL_SSL"},
        fold=str.upper,
    ),
    "sasl.mechanism": Choice(
        *("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"),
        weak=("PLAIN",),
        others={"AWS_MSK_IAM": "OAUTHBEARER"},
        fold=str.upper,
    ),
    "sasl.username": _Sent("relay"),
    "sasl.password": _Sent("…"),
    "sasl.oauthbearer.token.provider": Callable("my_company.tokens:fetch"),
    "ssl.ca.location": Kind("/etc/ssl/kafka/ca.pem"),
    "ssl.certificate.location": Kind("/etc/ssl/kafka/client.pem"),
    "ssl.key.location": Kind("/etc/ssl/kafka/client.key"),
    "ssl.key.password": Kind("…"),
    "ssl.endpoint.identification.algorithm": _Endpoint("https", "none", weak=("none",)),
    "compression.type": Choice("none", "gzip", "snappy", "lz4", "zstd"),
    "client.id": _Sent("orders-relay"),
    "max.request.size": Integer(1_048_576, least=1_000, most=1_000_000_000),
    "batch.size": Integer(262_144, least=1, most=1_000_000_000),
    "request.timeout.ms": Integer(40_000, least=1_000, most=15 * _MINUTE),
    "retry.backoff.ms": Integer(100, least=1, most=5 * _MINUTE),
    "metadata.max.age.ms": Integer(300_000, least=1_000, most=24 * 60 * _MINUTE),
    "connections.max.idle.ms": Integer(540_000, least=1_000, most=24 * 60 * _MINUTE),
    "acks": _Only("all", "all", "-1", reason="an event is confirmed only when all replicas in sync have it"),
    "enable.idempotence": _Only(
        "true", "true", "yes", "on", "1", reason="idempotence keeps order and avoids doubles"
    ),
    "linger.ms": _Only("0", "0", reason="a linger delays every lone event and gains nothing here"),
}


def normal_name(name: str) -> str:
    """An option's name as we keep it.

    Raises Refused for a name that this relay decides itself; unknown names come back as they are.
    """
    name = name.strip().lower()
    name = SPELLINGS.get(name, name)
    if name in DECIDED_HERE and name not in KINDS:
        raise Refused("this client option can't be set here", next=DECIDED_HERE[name])
    return name


def variable(name: str) -> str:
    """The environment variable of a client option."""
    return "CDC_OUTBOX_KAFKA_" + name.upper().replace(".", "_")


CLIENT: Final = OptionEntries(
    KINDS,
    "security.protocol=SSL",
    normal=normal_name,
    spelled=lambda rest: rest.lower().replace("_", "."),
    secret={name: variable(name) for name in SECRET_CLIENT_NAMES},
)
