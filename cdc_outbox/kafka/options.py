"""From Kafka's own setting names to what the client library takes: sizes, connection, TLS, tokens."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError

from cdc_outbox import hook
from cdc_outbox.errors import ConfigError
from cdc_outbox.kafka import bearer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdc_outbox.settings import KafkaSettings

BATCH_BYTES: Final = 256 * 1024
"""A batch's size limit: compression runs in the event loop, so a batch is kept to milliseconds of it."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A request's size limit where `max.request.size` isn't set, whose default is for a single record then.

Brokers would take more, but the client copies a request thrice on its way.
"""

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's numbers of compression types. https://kafka.apache.org/documentation/#recordbatch"""

_CLIENT_ONLY: Final = frozenset(
    {"bootstrap_servers", "retry_backoff_ms", "metadata_max_age_ms", "connections_max_idle_ms"}
)
_DEFAULT_MAX_REQUEST: Final = 1_048_576
_REQUEST_TIMEOUT_MS: Final = 30_000
_METADATA_AGE_MS: Final = 60_000


def max_request_size(settings: KafkaSettings) -> int:
    """Bytes of the largest record that may be sent; Kafka's default where nothing is set."""
    return int(settings.client.get("max.request.size", _DEFAULT_MAX_REQUEST))


def request_size(settings: KafkaSettings) -> int:
    """Bytes of the largest request; brokers hang up on a larger one than they allow, by default 100 MiB."""
    return int(settings.client.get("max.request.size", REQUEST_BYTES))


def codec(settings: KafkaSettings) -> int:
    """The number of the compression type."""
    return CODECS[settings.client.get("compression.type", "none").lower()]


def batch_size(settings: KafkaSettings) -> int:
    """Bytes of the largest batch of several records."""
    return min(int(settings.client.get("batch.size", BATCH_BYTES)), max_request_size(settings))


def connection(settings: KafkaSettings) -> dict[str, Any]:
    """The keyword arguments of every client of ours. What SASL needs is there: `load` has seen to it.

    Raises ConfigError for a certificate or token provider that can't be loaded.
    """
    client = settings.client
    protocol = client.get("security.protocol", "PLAINTEXT").upper()
    options: dict[str, Any] = {
        "bootstrap_servers": [server.strip() for server in settings.bootstrap_servers.split(",")],
        "client_id": client.get("client.id", "cdc-outbox"),
        "request_timeout_ms": int(client.get("request.timeout.ms", _REQUEST_TIMEOUT_MS)),
        "retry_backoff_ms": int(client.get("retry.backoff.ms", 100)),
        "metadata_max_age_ms": int(client.get("metadata.max.age.ms", _METADATA_AGE_MS)),
        "connections_max_idle_ms": int(client.get("connections.max.idle.ms", 540_000)),
        "security_protocol": protocol,
    }
    if protocol.endswith("SSL"):
        options["ssl_context"] = _tls(client)
    if protocol.startswith("SASL"):
        mechanism = client["sasl.mechanism"]
        options["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _token_provider(client)
        else:
            options["sasl_plain_username"] = client["sasl.username"]
            options["sasl_plain_password"] = client["sasl.password"]
    return options


def single_connection(settings: KafkaSettings) -> dict[str, Any]:
    """The keyword arguments of a connection to one server."""
    options = connection(settings)
    return {name: value for name, value in options.items() if name not in _CLIENT_ONLY}


def _tls(client: Mapping[str, str]) -> ssl.SSLContext:
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        path = client.get(name)
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"kafka.client.{name} is {path}, which can't be read: {error.strerror}",
                next=f"correct {name} under [kafka.client]",
            ) from error
    try:
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"))
        if client.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
            context.check_hostname = False
        if certificate := client.get("ssl.certificate.location"):
            # Without a password OpenSSL would ask for one on the terminal.
            password = client.get("ssl.key.password", "")
            context.load_cert_chain(certificate, client.get("ssl.key.location"), password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the TLS files of [kafka.client] can't be used: {getattr(error, 'reason', None) or error}",
            next="check ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password",
        ) from error
    return context


def _token_provider(client: Mapping[str, str]) -> AbstractTokenProvider:
    """The hook `sasl.oauthbearer.token.provider`: `module:callable`, called for each token, plain or async."""
    bearer.install()
    path = client["sasl.oauthbearer.token.provider"]
    return TokenHook(hook.find("kafka.client.sasl.oauthbearer.token.provider", path, answers="token"))


class TokenHook(AbstractTokenProvider):
    """A user's callable as a source of tokens."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    async def token(self) -> str:
        """A fresh token. Raises KafkaError, whatever the callable raises, for that is what the client expects."""
        try:
            return str(await hook.answer(self._function))
        except Exception as error:
            raise KafkaError(hook.why("the token provider", error)) from error
