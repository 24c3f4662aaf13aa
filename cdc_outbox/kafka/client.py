"""The aiokafka producer with a deadline on whatever may hang.

`start`, `flush` and `stop` of the client have none of their own and wait for ever while brokers are away.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import ClusterAuthorizationFailedError, IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from cdc_outbox.errors import CdcOutboxError, ConfigError, KafkaUnavailable
from cdc_outbox.kafka import options, refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cdc_outbox.settings import KafkaSettings

START_LIMIT: Final = 10.0
"""Seconds for reaching a broker and getting a producer id."""

PROBE_LIMIT: Final = 3.0
"""Seconds for asking one server why it can't be used."""

_LAST: Final = 0.5
"""Seconds for what is cancelled and closed to end."""


def producer(settings: KafkaSettings) -> AIOKafkaProducer:
    """An idempotent producer that isn't started yet; needs a running loop. Raises ConfigError."""
    compression = settings.client.get("compression.type", "none").lower()
    try:
        return AIOKafkaProducer(
            **options.connection(settings),
            acks="all",
            enable_idempotence=True,
            compression_type=None if compression == "none" else compression,
            max_batch_size=options.batch_size(settings),
            max_request_size=options.max_request_size(settings),
            linger_ms=0,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"compression.type is {compression}, and its library isn't installed",
            next="in the checkout: pip install '.[compression]'",
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
        raise refusal.refused(settings.bootstrap_servers, error, settings) from error
    except (TimeoutError, KafkaError, OSError) as error:
        raise await _why(settings) from error


async def probe(host: str, port: int, settings: KafkaSettings, *, within: float) -> Exception | None:
    """Why we can't connect to one server in `within` seconds; None where we can, and it lets us in.

    Raises ConfigError as `options.connection` does.
    """
    try:
        async with asyncio.timeout(within):
            (await create_conn(host, port, **options.single_connection(settings))).close()
    except (KafkaError, OSError) as error:  # TimeoutError is one
        return error
    return None


async def _why(settings: KafkaSettings) -> CdcOutboxError:
    """Why no server of the list can be used. The client logs the reasons, and raises one error for all of them."""
    listed = collect_hosts(options.connection(settings)["bootstrap_servers"], randomize=False)
    found = await asyncio.gather(
        *(probe(host, port, settings, within=PROBE_LIMIT) for host, port, _ in listed)
    )
    reasons: list[str] = []
    unknown: list[str] = []
    for (host, port, _), error in zip(listed, found, strict=True):
        server = f"{host}:{port}"
        if error is None:
            reasons.append(f"{server} answers now")
        elif isinstance(error, TimeoutError):
            reasons.append(f"{server} doesn't answer")
        elif refusal.is_refusal(error):
            return refusal.refused(server, error, settings)
        else:
            reasons.append(f"{server}: {refusal.in_short(error)}")
            if isinstance(error, socket.gaierror):
                unknown.append(host)
    where = "kafka.bootstrap_servers, security.protocol, and that the brokers run"
    if len(unknown) == len(reasons):
        where = f"the names in kafka.bootstrap_servers: getent hosts {' '.join(dict.fromkeys(unknown))}"
    return KafkaUnavailable(
        f"no Kafka broker can be used: {', '.join(reasons)}", next=refusal.where_to_look(settings, where)
    )


async def bootstrap_again(client: AIOKafkaProducer, settings: KafkaSettings) -> None:
    """Ask the bootstrap list where the brokers are now, keeping the producer and its sequence numbers.

    The client's own `bootstrap` would do, but leaves it without any topic until its next question, and batches of a
    topic that isn't known fail.
    """
    for host, port, _ in collect_hosts(options.connection(settings)["bootstrap_servers"]):
        with suppress(KafkaError, OSError, TimeoutError):
            async with asyncio.timeout(PROBE_LIMIT):
                connection = await create_conn(host, port, **options.single_connection(settings))
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
