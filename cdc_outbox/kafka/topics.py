"""Which topics the cluster has, and with how many partitions.

A metadata request that names a topic may create it on the broker, with the broker's defaults, and the client has no
switch for that. So no topic is named before the full list has shown it; creation is explicit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, SetupError
from cdc_outbox.kafka import client
from cdc_outbox.publisher import TopicMissing

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer

    from cdc_outbox.settings import KafkaSettings

_log = log.get(__name__)


async def partitions(producer: AIOKafkaProducer, settings: KafkaSettings, topic: str) -> int:
    """The number of partitions of a topic, created first where that was asked for.

    Raises Held while the cluster doesn't have it or doesn't show it.
    """
    cluster = producer.client.cluster
    for attempt in range(3):
        known = cluster.partitions_for_topic(topic)
        if known:
            return len(known)
        if attempt == 1:
            if not settings.topics.create:
                break
            await _create(settings, topic)
        try:
            async with asyncio.timeout(client.START_LIMIT):
                await producer.client.force_metadata_update()
        except (TimeoutError, KafkaError) as error:
            raise KafkaUnavailable(
                f"no broker at {settings.bootstrap_servers} says which topics there are",
                next="nothing to do: the relay asks again",
            ) from error
    if topic in cluster.unauthorized_topics:
        raise Held(
            f"the cluster doesn't allow us to describe topic {topic}",
            next=f"grant it: kafka-acls --add --allow-principal <ours> --operation Describe --topic {topic}",
        )
    raise missing(topic)


async def _create(settings: KafkaSettings, topic: str) -> None:
    wanted = settings.topics
    admin = AIOKafkaAdminClient(**client.connection_options(settings))
    try:
        async with asyncio.timeout(client.START_LIMIT):
            await admin.start()
            response: Any = await admin.create_topics(
                [
                    NewTopic(
                        topic, wanted.partitions, wanted.replication_factor, topic_configs=dict(wanted.config)
                    )
                ]
            )
        for _, code, *detail in response.topic_errors:
            error = for_code(code)
            if code and error is not TopicAlreadyExistsError:
                raise Held(
                    f"topic {topic} can't be created: {detail[0] if detail and detail[0] else error.__name__}",
                    next="create it yourself, or correct [kafka.topics]",
                )
    except (KafkaError, OSError, TimeoutError) as error:
        raise Held(
            f"topic {topic} can't be created: {error!r}", next="create it yourself, or check the brokers"
        ) from error
    finally:
        await admin.close()
    _log.info("topic created", topic=topic, partitions=wanted.partitions)


def missing(topic: str) -> TopicMissing:
    """The error for a topic that the cluster doesn't have."""
    return TopicMissing(
        f"the cluster has no topic {topic}", next="create the topic, or start with --create-topics"
    )


def changed(topic: str, before: int, now: int, settings: KafkaSettings) -> CdcOutboxError:
    """The error that ends a session after a topic got another number of partitions, so that keys move."""
    what = f"topic {topic} has {now} partitions instead of {before}: keys move to other partitions"
    if settings.on_partition_change == "stop":
        return SetupError(what, next="drain the consumers of this topic, then start again")
    return Held(
        what, next="nothing to do: the relay goes on; consumers see old and new partitions for a while"
    )
