"""The aiokafka producer: from Kafka's own setting names to a client, with a deadline on whatever may hang.

`start`, `flush` and `stop` of the client have none of their own and wait for ever while brokers are away.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from contextlib import suppress
from functools import reduce
from importlib import import_module
from inspect import isawaitable, iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from cdc_outbox.errors import CdcOutboxError, ConfigError, KafkaUnavailable
from cdc_outbox.publisher import BusRefused
from cdc_outbox.settings import BY_KEY

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from cdc_outbox.settings import KafkaSettings

BATCH_BYTES: Final = 256 * 1024
"""A batch's size limit: compression runs in the event loop, so a batch is kept to milliseconds of it."""

REQUEST_BYTES: Final = 4 * 1024 * 1024
"""A request's size limit where `max.request.size` isn't set, whose default is for a single record then.

Brokers would take more, but the client copies a request thrice on its way.
"""

START_LIMIT: Final = 10.0
"""Seconds for reaching a broker and getting a producer id."""

PROBE_LIMIT: Final = 3.0
"""Seconds for asking one server why it can't be used."""

_CERTIFICATE_REMEDIES: Final = {
    10: "have the broker's certificate renewed",
    62: "name the server in kafka.bootstrap_servers as its certificate does",
    64: "name the server in kafka.bootstrap_servers as its certificate does",
}
"""By OpenSSL's number of what is wrong. https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/"""

CODECS: Final = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""Kafka's numbers of compression types. https://kafka.apache.org/documentation/#recordbatch"""

_CLIENT_ONLY: Final = frozenset(
    {"bootstrap_servers", "retry_backoff_ms", "metadata_max_age_ms", "connections_max_idle_ms"}
)
_LAST: Final = 0.5
"""Seconds for what is cancelled and closed to end."""

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
            for name, option in (
                ("sasl.username", "sasl_plain_username"),
                ("sasl.password", "sasl_plain_password"),
            ):
                if not client.get(name):
                    raise ConfigError(
                        f"security.protocol is {protocol}, and {name} is missing",
                        next=f"set {name} under [kafka.client]",
                    )
                options[option] = client[name]
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
            max_batch_size=batch_size(settings),
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


async def start(client: AIOKafkaProducer | AIOKafkaConsumer, settings: KafkaSettings) -> None:
    """Connect. Raises KafkaUnavailable, or BusRefused where the cluster doesn't take us as we are."""
    try:
        async with asyncio.timeout(START_LIMIT):
            await client.start()
    except (ClusterAuthorizationFailedError, IncompatibleBrokerVersion) as error:
        raise _refused(settings.bootstrap_servers, error) from error
    except (TimeoutError, KafkaError, OSError) as error:
        raise await _why(settings) from error


async def _why(settings: KafkaSettings) -> CdcOutboxError:
    """Why no server of the list can be used. The client logs the reasons, and raises one error for all of them."""
    options = single_connection(settings)
    reasons: list[str] = []
    for host, port, _ in collect_hosts(connection_options(settings)["bootstrap_servers"], randomize=False):
        server = f"{host}:{port}"
        try:
            async with asyncio.timeout(PROBE_LIMIT):
                (await create_conn(host, port, **options)).close()
            reasons.append(f"{server} answers now")
        except TimeoutError:
            reasons.append(f"{server} doesn't answer")
        except (KafkaError, OSError) as error:
            if is_refusal(error):
                return _refused(server, error)
            reasons.append(f"{server}: {in_short(error)}")
    return KafkaUnavailable(
        f"no Kafka broker can be used: {', '.join(reasons)}",
        next=where_to_look(settings, "kafka.bootstrap_servers, security.protocol, and that the brokers run"),
    )


def where_to_look(settings: KafkaSettings, what: str) -> str:
    """The next step where no broker answers: check `what`, or name the brokers where nobody did."""
    default = BY_KEY["kafka.bootstrap_servers"].default
    if settings.bootstrap_servers != default:
        return f"check {what}"
    return (
        f"{default} is the default; where the brokers are elsewhere: "
        "export CDC_OUTBOX_BOOTSTRAP_SERVERS=HOST:9092"
    )


def single_connection(settings: KafkaSettings) -> dict[str, Any]:
    """The keyword arguments of a connection to one server."""
    options = connection_options(settings)
    return {name: value for name, value in options.items() if name not in _CLIENT_ONLY}


def is_refusal(error: BaseException) -> bool:
    """Whether a connection failed for what we are or say, so that trying again won't help."""
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return isinstance(
        error,
        AuthenticationFailedError
        | AuthenticationMethodNotSupported
        | IllegalSaslStateError
        | SaslAuthenticationFailed
        | UnsupportedSaslMechanismError,
    )


def _refused(server: str, error: Exception) -> BusRefused:
    remedy = "check security.protocol and sasl.* under [kafka.client]"
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of Kafka at {server} is not trusted: {error.verify_message}"
        remedy = _CERTIFICATE_REMEDIES.get(
            error.verify_code, "set ssl.ca.location under [kafka.client] to the authority that signed it"
        )
    elif isinstance(error, ssl.SSLError):
        what = f"TLS with Kafka at {server} fails: {error.reason or error}"
        remedy = "check security.protocol and ssl.* under [kafka.client]"
    elif isinstance(error, ClusterAuthorizationFailedError):
        what = f"Kafka at {server} doesn't allow us an idempotent producer"
        remedy = (
            "grant Write on the topics: kafka-acls --add --allow-principal User:NAME --producer --topic TOPIC"
        )
    elif isinstance(error, IncompatibleBrokerVersion):
        what = f"Kafka at {server} is too old: {in_short(error)}"
        remedy = "use brokers of version 0.11 or later"
    else:
        what = f"Kafka at {server} refuses us: {in_short(error)}"
    return BusRefused(what, next=remedy)


def in_short(error: Exception) -> str:
    """An error's own words, without Python's around them."""
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, KafkaConnectionError):
        return "it closes the connection"
    text = str(error.args[0]) if error.args and error.args[0] else ""
    return text if text and not text.startswith("<") else type(error).__name__  # some only hold an object


async def bootstrap_again(client: AIOKafkaProducer, settings: KafkaSettings) -> None:
    """Ask the bootstrap list where the brokers are now, keeping the producer and its sequence numbers.

    The client's own `bootstrap` would do, but leaves it without any topic until its next question, and batches of a
    topic that isn't known fail.
    """
    for host, port, _ in collect_hosts(connection_options(settings)["bootstrap_servers"]):
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(PROBE_LIMIT):
                connection = await create_conn(host, port, **single_connection(settings))
                try:
                    everything: Any = MetadataRequest(None)
                    client.client.cluster.update_metadata(await connection.send(everything))
                finally:
                    connection.close()
                return


async def stop(client: AIOKafkaProducer, *, within: float) -> None:
    """Stop the producer; by force once the time is up, so that nothing of it is sent later."""
    await _bounded(client.stop, within)
    running = _running_for(client)
    for task in running:
        task.cancel()
    await _bounded(client.client.close, _LAST)
    if running:
        await asyncio.wait(running, timeout=_LAST)


def halt(client: AIOKafkaProducer) -> None:
    """Drop what the producer has for the brokers, half a request too. It is to be stopped after that."""
    for task in _running_for(client):
        task.cancel()
    for connection in client.client._conns.values():
        if connection._writer is not None:
            connection._writer.transport.abort()


def _running_for(client: AIOKafkaProducer) -> list[asyncio.Task[Any]]:
    """The tasks that the client began and has not ended.

    A `stop` that ran out of time leaves its sender behind, which goes on delivering when the brokers return, in the
    midst of what its successor sends.
    """
    parts = (client, client._sender, client._message_accumulator)
    found = []
    for task in asyncio.all_tasks():
        frame = getattr(task.get_coro(), "cr_frame", None)
        if frame is not None and any(frame.f_locals.get("self") is part for part in parts):
            found.append(task)
    return found


async def _bounded(action: Callable[[], Awaitable[object]], seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await action()
    except (TimeoutError, KafkaError, OSError):
        pass  # brokers are away: their side of the connections ends by itself
    except AttributeError:
        pass  # aiokafka's close() trips over parts of a client that never started


def _tls(client: Mapping[str, str]) -> ssl.SSLContext:
    for name in ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"):
        path = client.get(name)
        try:
            if path is not None:
                Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{name} is {path}, which can't be read: {error.strerror}",
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
    path = client.get("sasl.oauthbearer.token.provider")
    if path is None:
        raise ConfigError(
            "sasl.mechanism is OAUTHBEARER, and nothing gives a token",
            next="set sasl.oauthbearer.token.provider to a callable that returns one, as module:callable",
        )
    module, _, name = path.partition(":")
    try:
        function = reduce(getattr, name.split("."), import_module(module))
    except Exception as error:
        raise ConfigError(
            f"sasl.oauthbearer.token.provider is {path!r}, which can't be imported: {error}",
            next="name a callable that returns a token, as module:callable",
        ) from error
    if not callable(function):
        raise ConfigError(
            f"sasl.oauthbearer.token.provider is {path!r}, which can't be called",
            next="name a callable that returns a token, as module:callable",
        )
    return TokenHook(function)


class TokenHook(AbstractTokenProvider):
    """A user's callable as a source of tokens. A plain one runs in a thread, since it may wait for a server."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    async def token(self) -> str:
        """A fresh token. Raises KafkaError, whatever the callable raises, for that is what the client expects."""
        try:
            token = (
                self._function()
                if iscoroutinefunction(self._function)
                else await asyncio.to_thread(self._function)
            )
            return str(await token if isawaitable(token) else token)
        except Exception as error:
            # Its words may hold a secret; its type doesn't.
            raise KafkaError(f"the token provider failed with {type(error).__name__}") from error
