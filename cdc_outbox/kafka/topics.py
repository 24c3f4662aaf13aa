"""Which topics the cluster has, with how many partitions, and how large a batch they take.

A request for metadata that names a topic may create it, with the broker's defaults: so none is named without the flag
that forbids it, and creation is a request of its own, where it was asked for. The client's own requests never name
one: they list all. https://kafka.apache.org/protocol.html#The_Messages_Metadata
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import (
    KafkaError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    for_code,
)
from aiokafka.protocol.admin import CreateTopicsRequest
from aiokafka.protocol.metadata import MetadataRequest

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, SetupError
from cdc_outbox.kafka import client, refusal, tool
from cdc_outbox.kafka.expiry import ASKED, lifetime
from cdc_outbox.kafka.topic_settings import MAX_BYTES, max_bytes, question
from cdc_outbox.publisher import TopicMissing

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from aiokafka.client import AIOKafkaClient

    from cdc_outbox.settings import KafkaSettings

_log = log.get(__name__)

VISIBLE: Final = 10.0
"""Seconds until a topic that the cluster has is in the client's list, with its leaders."""


@dataclass(frozen=True, slots=True)
class Topic:
    """`partitions`: their number; `max_bytes`: a batch's limit, None where the cluster doesn't tell us.

    `lifetime`: seconds for which a record is kept from the time that it bears; None where that ends none, as far as is
    known.
    """

    partitions: int
    max_bytes: int | None
    lifetime: float | None = None


async def listed(kafka: AIOKafkaClient, *, internal: bool) -> dict[str, int]:
    """All topics that we may see, with their numbers of partitions, as they are now; `internal`: Kafka's own as well.

    Raises KafkaError where no broker answers at the address that it advertises: to the client, which knows of no topic
    before, that would look like a cluster without any.
    """
    if not await kafka.force_metadata_update():
        raise KafkaError("no broker answers at the address that it advertises")
    cluster = kafka.cluster
    return {
        topic: len(cluster.partitions_for_topic(topic) or ())
        for topic in cluster.topics(exclude_internal_topics=not internal)
    }


async def look_up(producer: AIOKafkaProducer, settings: KafkaSettings, topic: str) -> Topic:
    """What is to be known of a topic before the first row goes there; it is created first where that was asked for.

    Raises TopicMissing, Held where the cluster forbids us to see or make it, KafkaUnavailable.
    """
    count = len(producer.client.cluster.partitions_for_topic(topic) or ())
    if not count:
        count = await _await_topic(producer, settings, topic)
    return Topic(count, *await _limits(producer, topic))


async def _await_topic(producer: AIOKafkaProducer, settings: KafkaSettings, topic: str) -> int:
    cluster = producer.client.cluster
    deadline = time.monotonic() + VISIBLE
    created = False
    while time.monotonic() < deadline:
        error = await _state(producer, topic)
        if error is TopicAuthorizationFailedError:
            raise Held(
                f"the cluster doesn't let us see topic {topic}, or has none of that name",
                next=f"grant Describe and Write on it: kafka-acls.sh {tool.address(settings)} --add --allow-principal "
                f"{tool.principal(settings)} --producer --topic {topic}",
            )
        if error is UnknownTopicOrPartitionError and not created:
            if not settings.topics.create:
                raise missing(topic, settings)
            await _create(producer, settings, topic)
            created = True
        await _asked(producer.client.force_metadata_update())
        known = cluster.partitions_for_topic(topic)
        if known:
            return len(known)
        await asyncio.sleep(0.05)
    raise Held(
        f"topic {topic} has no partitions to see yet",
        next=f"check the topic: kafka-topics.sh {tool.address(settings)} --describe --topic {topic}",
    )


async def _state(producer: AIOKafkaProducer, topic: str) -> type[KafkaError]:
    answer: Any = await _request(producer, MetadataRequest([topic], allow_auto_topic_creation=False))
    return for_code(next((code for code, name, *_ in answer.topics if name == topic), 0))


async def _limits(producer: AIOKafkaProducer, topic: str) -> tuple[int | None, float | None]:
    """`max_bytes` and `lifetime`. Reading them takes the right DescribeConfigs, which often isn't granted."""
    try:
        answer = await _request(producer, question([topic], MAX_BYTES, *ASKED))
        return max_bytes(answer, topic), lifetime(answer, topic)
    except (CdcOutboxError, ValueError, TypeError):
        return None, None  # a batch's limit is learnt from the first one that is refused


async def _create(producer: AIOKafkaProducer, settings: KafkaSettings, topic: str) -> None:
    request = creation(settings, topic, within=client.START_LIMIT)
    controller = producer.client.cluster.controller
    answer: Any = await _request(producer, request, None if controller is None else controller.nodeId)
    for _, code, *detail in answer.topic_errors:
        error = for_code(code)
        if code and error is not TopicAlreadyExistsError:
            raise Held(
                f"topic {topic} can't be created: {detail[0] if detail and detail[0] else error.__name__}",
                next="create it yourself, or correct [kafka.topics]",
            )
    _log.info("topic created", topic=topic, partitions=settings.topics.partitions)


def creation(
    settings: KafkaSettings, topic: str, *, within: float, only_asked: bool = False
) -> CreateTopicsRequest:
    """The request to make a topic as the settings want it. `only_asked`: whether that could be done."""
    wanted = settings.topics
    return CreateTopicsRequest(
        [(topic, wanted.partitions, wanted.replication_factor, [], list(wanted.config.items()))],  # type: ignore[list-item]
        timeout=int(within * 1000),
        validate_only=only_asked,
    )


async def _request(producer: AIOKafkaProducer, request: Any, node: int | None = None) -> object:
    kafka = producer.client
    try:
        return await _asked(kafka.send(kafka.get_random_node() if node is None else node, request))
    except refusal.UNCOVERED as error:
        raise _silent() from error


async def _asked(question: Any) -> object:
    try:
        async with asyncio.timeout(client.START_LIMIT):
            return await question
    except (TimeoutError, KafkaError, OSError) as error:
        raise _silent() from error


def _silent() -> KafkaUnavailable:
    return KafkaUnavailable(
        "no Kafka broker says which topics there are",
        next="check that the brokers run; the relay goes on by itself when they do",
    )


def missing(topic: str, settings: KafkaSettings) -> TopicMissing:
    """The error for a topic that the cluster doesn't have."""
    create = tool.create(tool.address(settings), topic)
    return TopicMissing(
        f"the cluster has no topic {topic}", next=f"{create}; or have it made: --create-topics"
    )


def changed(topic: str, before: int, now: int, settings: KafkaSettings) -> CdcOutboxError:
    """The error that ends a session after a topic got another number of partitions, so that keys move."""
    what = f"topic {topic} has {now} partitions instead of {before}: keys move to other partitions"
    if settings.on_partition_change == "stop":
        return SetupError(what, next="drain the consumers of this topic, then start again")
    return Held(
        what, next="nothing to do: the relay goes on; consumers see old and new partitions for a while"
    )
