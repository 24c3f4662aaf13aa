"""The aiokafka producer: from Kafka's own setting names to a client, with a deadline on whatever may hang.

`start`, `flush` and `stop` of the client have none of their own and wait for ever while brokers are away.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from cdc_outbox.errors import ConfigError, KafkaUnavailable, SetupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cdc_outbox.settings import KafkaSettings

BATCH_BYTES: Final = 256 * 1024
"""A batch's size limit: compression runs in the event loop, so a batch is kept to milliseconds of it."""

START_LIMIT: Final = 10.0
"""Seconds for reaching a broker and getting a producer id."""

_DEFAULT_MAX_REQUEST: Final = 1_048_576
_REQUEST_TIMEOUT_MS: Final = 30_000
_METADATA_AGE_MS: Final = 60_000


def max_request_size(settings: KafkaSettings) -> int:
    """Bytes of the largest record that may be sent; Kafka's default where nothing is set."""
    return int(settings.client.get("max.request.size", _DEFAULT_MAX_REQUEST))


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """The keyword arguments that a producer and an admin client share.

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
        mechanism = client.get("sasl.mechanism", client.get("sasl.mechanisms", "PLAIN")).upper()
        options["sasl_mechanism"] = mechanism
        if mechanism == "OAUTHBEARER":
            options["sasl_oauth_token_provider"] = _token_provider(client)
        else:
            options["sasl_plain_username"] = client.get("sasl.username")
            options["sasl_plain_password"] = client.get("sasl.password")
    return options


def producer(settings: KafkaSettings) -> AIOKafkaProducer:
    """An idempotent producer that isn't started yet; needs a running loop. Raises ConfigError."""
    compression = settings.client.get("compression.type", "none").lower()
    try:
        return AIOKafkaProducer(
            **connection_options(settings),
            acks="all",
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_batch_size=int(settings.client.get("batch.size", BATCH_BYTES)),
            max_request_size=max_request_size(settings),
            linger_ms=0,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"compression.type is {compression}, and its library isn't installed",
            next="pip install 'cdc-outbox[compression]'",
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"the Kafka client refuses its settings: {error}", next="check [kafka.client], then start again"
        ) from error


async def start(client: AIOKafkaProducer, settings: KafkaSettings) -> None:
    """Connect. Raises KafkaUnavailable, or SetupError where the broker refuses who we are."""
    servers = settings.bootstrap_servers
    # aiokafka logs what went wrong with each server and raises one error for all; so the reason is asked for first.
    try:
        async with asyncio.timeout(START_LIMIT):
            await client.start()
    except (
        AuthenticationFailedError,
        AuthenticationMethodNotSupported,
        SaslAuthenticationFailed,
        UnsupportedSaslMechanismError,
        ClusterAuthorizationFailedError,
    ) as error:
        raise SetupError(
            f"Kafka at {servers} refuses us: {error}",
            next="check security.protocol and sasl.* under [kafka.client]",
        ) from error
    except TimeoutError as error:
        raise KafkaUnavailable(
            f"Kafka at {servers} didn't answer within {START_LIMIT:.0f} s",
            next="check kafka.bootstrap_servers and that the brokers run",
        ) from error
    except (KafkaError, OSError) as error:
        raise KafkaUnavailable(
            f"no Kafka broker at {servers} can be reached",
            next="check kafka.bootstrap_servers and that the brokers run",
        ) from error


async def bootstrap_again(client: AIOKafkaProducer, settings: KafkaSettings) -> None:
    """Ask the bootstrap list where the brokers are now, keeping the producer and its sequence numbers."""
    with suppress(KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(START_LIMIT):
            await client.client.bootstrap()
            await client.client.force_metadata_update()


async def stop(client: AIOKafkaProducer, *, within: float) -> None:
    """Stop the producer, by force once the time is up."""
    await _bounded(client.stop, within)
    await _bounded(client.client.close, 0.5)


async def _bounded(action: Callable[[], Awaitable[object]], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await action()
    except (TimeoutError, KafkaError, OSError):
        pass  # brokers are away: their side of the connections ends by itself
    except AttributeError:
        pass  # aiokafka's close() trips over parts of a client that never started


def _tls(client: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=client.get("ssl.ca.location"))
        if client.get("ssl.endpoint.identification.algorithm", "https").lower() in ("", "none"):
            context.check_hostname = False
        if certificate := client.get("ssl.certificate.location"):
            context.load_cert_chain(
                certificate, client.get("ssl.key.location"), client.get("ssl.key.password")
            )
    except OSError as error:
        raise ConfigError(
            f"the TLS files of [kafka.client] can't be loaded: {error}",
            next="check ssl.ca.location, ssl.certificate.location, ssl.key.location and ssl.key.password",
        ) from error
    return context


def _token_provider(client: Mapping[str, str]) -> AbstractTokenProvider:
    """The hook `sasl.oauthbearer.token.provider`: `module:callable`, called for each token, plain or async."""
    path = client.get("sasl.oauthbearer.token.provider", "")
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"sasl.oauthbearer.token.provider is {path!r}, which can't be imported: {error}",
            next="name a callable that returns a token, as module:callable",
        ) from error
    return _Hook(function)


class _Hook(AbstractTokenProvider):
    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    async def token(self) -> str:
        token = self._function()
        return str(await token if asyncio.iscoroutine(token) else token)
