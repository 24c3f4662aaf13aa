"""A cluster as the relay's own credentials see it, by questions only: nothing is written, no topic is made.

The producer is started as a session starts it, so what the cluster has against us is what a session would meet. The
rights on a topic are asked for with its metadata, in a version of that request that the client library doesn't speak
by itself. Whether a missing topic could be made is a request to make it with `validate_only`.
https://kafka.apache.org/protocol.html#The_Messages_Metadata
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, for_code
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Array, Boolean, Int16, Int32, Schema, String

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.kafka import client, options, refusal, topics
from cdc_outbox.kafka.topic_settings import CLEANUP, MAX_BYTES, MIN_IN_SYNC, question, told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from aiokafka import AIOKafkaProducer

    from cdc_outbox.settings import KafkaSettings

WITHIN: Final = 5.0
"""Seconds for one question."""

WRITE: Final = 4
"""The operation by its number in Kafka's protocol; a set of them is a bit field."""

_UNKNOWN_RIGHTS: Final = -(2**31)
_FETCH: Final = 1
_FETCH_OF_3_9: Final = 17
"""The request's number, and its newest version in Kafka 3.9 (KIP-853)."""


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker at the address that the cluster tells its clients. `problem`: why it can't be reached there."""

    address: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class Topic:
    """What is to be known of a topic. None is what the cluster doesn't tell us.

    `hidden`: we may not see it, and it may not exist. `replicas` and `in_sync` are the fewest of any partition,
    `leaderless` the partitions without a leader.
    """

    name: str
    exists: bool
    hidden: bool = False
    partitions: int = 0
    leaderless: tuple[int, ...] = ()
    replicas: int = 0
    in_sync: int = 0
    may_write: bool | None = None
    max_bytes: int | None = None
    min_in_sync: int | None = None
    compacted: bool | None = None


class Inspection:
    """A started producer and the questions that are asked through it."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Raises ConfigError for client settings that can't be used."""
        self._settings = settings
        self._producer: AIOKafkaProducer = client.producer(settings)

    async def start(self) -> None:
        """Raises KafkaUnavailable, or BusRefused where the cluster doesn't take us as we are."""
        await client.start(self._producer, self._settings)

    async def stop(self) -> None:
        """End the producer, within a second."""
        await client.stop(self._producer, within=1.0)

    async def unreached(self) -> dict[str, str]:
        """The addresses of the bootstrap list that don't answer, each with the reason."""
        servers = [(host, port) for host, port, _ in collect_hosts(self._servers(), randomize=False)]
        reasons = await asyncio.gather(*(self._probe(host, port) for host, port in servers))
        return {
            f"{host}:{port}": reason
            for (host, port), reason in zip(servers, reasons, strict=True)
            if reason is not None
        }

    def _servers(self) -> Any:
        return options.connection(self._settings)["bootstrap_servers"]

    async def _probe(self, host: str, port: int) -> str | None:
        error = await client.probe(host, port, self._settings, within=WITHIN)
        if error is None:
            return None
        return "no answer" if isinstance(error, TimeoutError) else refusal.in_short(error)

    async def brokers(self) -> list[Broker]:
        """The cluster's brokers, each tried at its advertised address."""
        known = self._producer.client.cluster.brokers()
        problems = await asyncio.gather(*(self._probe(each.host, each.port) for each in known))
        found = [
            Broker(f"{each.host}:{each.port}", problem) for each, problem in zip(known, problems, strict=True)
        ]
        return sorted(found, key=lambda broker: broker.address)

    async def is_supported(self) -> bool | None:
        """Whether the broker is of version 3.9 or later, by the newest fetch that it answers; None: it doesn't say."""
        host, port, _ = next(iter(collect_hosts(self._servers(), randomize=False)))
        with suppress(TimeoutError, KafkaError, OSError):
            async with asyncio.timeout(WITHIN):
                connection = await create_conn(host, port, **options.single_connection(self._settings))
                try:
                    _, newest = connection._versions.get(_FETCH, (0, 0))
                finally:
                    connection.close()
            return bool(newest >= _FETCH_OF_3_9)
        return None

    async def topics(self, names: Iterable[str]) -> list[Topic]:
        """Look up topics by name, without making any. Raises KafkaUnavailable."""
        wanted = sorted(names)
        if not wanted:
            return []
        try:
            answer: Any = await self._ask(_RightsRequest(wanted))
        except refusal.UNCOVERED:  # a broker older than 2.3
            return [self._listed(name) for name in wanted]
        found = []
        configured = await self._configured(wanted)
        for code, name, _, partitions, rights in answer.topics:
            error = for_code(code)
            if error is TopicAuthorizationFailedError:
                found.append(Topic(name, exists=False, hidden=True))
            elif code:
                found.append(Topic(name, exists=False))
            else:
                config = configured.get(name, {})
                found.append(
                    Topic(
                        name,
                        exists=True,
                        partitions=len(partitions),
                        leaderless=tuple(
                            sorted(number for _, number, leader, *_ in partitions if leader < 0)
                        ),
                        replicas=min((len(replicas) for *_, replicas, _, _ in partitions), default=0),
                        in_sync=min((len(in_sync) for *_, in_sync, _ in partitions), default=0),
                        may_write=None if rights == _UNKNOWN_RIGHTS else bool(rights >> WRITE & 1),
                        max_bytes=_number(config.get(MAX_BYTES)),
                        min_in_sync=_number(config.get(MIN_IN_SYNC)),
                        compacted="compact" in config[CLEANUP] if CLEANUP in config else None,
                    )
                )
        return found

    def _listed(self, name: str) -> Topic:
        partitions = self._producer.client.cluster.partitions_for_topic(name)
        return Topic(name, exists=bool(partitions), partitions=len(partitions or ()))

    async def _configured(self, names: list[str]) -> dict[str, dict[str, str]]:
        """The settings of the topics that we may read those of; that takes the right DescribeConfigs."""
        try:
            return told(await self._ask(question(names, MAX_BYTES, MIN_IN_SYNC, CLEANUP)))
        except (KafkaUnavailable, refusal.UNCOVERED):
            return {}

    async def why_not_created(self, name: str) -> str | None:
        """Why the cluster would refuse to make a topic as the settings want it; None: it wouldn't.

        Raises KafkaUnavailable.
        """
        request = topics.creation(self._settings, name, within=WITHIN, only_asked=True)
        controller = self._producer.client.cluster.controller
        answer: Any = await self._ask(request, None if controller is None else controller.nodeId)
        for _, code, *detail in answer.topic_errors:
            if code:
                return str(detail[0]) if detail and detail[0] else for_code(code).__name__
        return None

    async def _ask(self, request: Any, node: int | None = None) -> object:
        kafka = self._producer.client
        try:
            async with asyncio.timeout(WITHIN):
                return await kafka.send(kafka.get_random_node() if node is None else node, request)
        except (TimeoutError, KafkaError, OSError) as error:
            raise refusal.silent(error) from error


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


class _RightsResponse(Response):
    API_KEY = 3
    API_VERSION = 8
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            Array(("node_id", Int32), ("host", String("utf-8")), ("port", Int32), ("rack", String("utf-8"))),
        ),
        ("cluster_id", String("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            Array(
                ("error_code", Int16),
                ("topic", String("utf-8")),
                ("is_internal", Boolean),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", Array(Int32)),
                        ("isr", Array(Int32)),
                        ("offline_replicas", Array(Int32)),
                    ),
                ),
                ("topic_authorized_operations", Int32),
            ),
        ),
        ("cluster_authorized_operations", Int32),
    )


class _RightsRequest8(RequestStruct):
    API_KEY = 3
    API_VERSION = 8
    RESPONSE_TYPE = _RightsResponse
    SCHEMA = Schema(
        ("topics", Array(String("utf-8"))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
    )


class _RightsRequest(Request[_RightsRequest8]):
    """Metadata of topics with our rights on them, never making one."""

    API_KEY = 3

    def __init__(self, topics: list[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_RightsRequest8]) -> _RightsRequest8:
        return request_struct_class(self._topics, False, False, True)
