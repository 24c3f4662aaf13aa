"""Topics read from one offset to another, in batches: for who compares, and consumes nothing.

There is no consumer group, and nothing is committed. What a transaction left open or took back isn't shown
(`read_committed`). No topic is ever named in a request for metadata, since that may create it: all are listed.

https://kafka.apache.org/documentation/#consumerconfigs_isolation.level
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from cdc_outbox.errors import CdcOutboxError, ConfigError, KafkaUnavailable, SetupError
from cdc_outbox.kafka import client, options, refusal, tool, topics
from cdc_outbox.kafka.topic_settings import CLEANUP, question, told

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Mapping, Sequence
    from typing import TypeVar

    from cdc_outbox.settings import KafkaSettings

    Answer = TypeVar("Answer")

PARTITION_BYTES: Final = 512 * 1024
"""Bytes that are fetched of one partition at a time, unless a single batch is larger."""

FETCH_BYTES: Final = 4 * PARTITION_BYTES
"""Bytes that are fetched of one broker at a time: what is read and not yet looked at is in memory."""

TOGETHER: Final = 2000
"""Records that are given at a time. As objects they take several times their bytes."""

STALLED: Final = 60.0
"""Seconds without anything new from partitions that have more, after which they are given up."""

_ANSWER: Final = 30.0
_PATIENT_MS: Final = 10_000
"""So long a broker isn't asked for more while we have records of it: else those of many partitions would pile up."""

_TURN_MS: Final = 500


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class Span(NamedTuple):
    """The offsets of a partition from `begin` up to and without `end`."""

    place: Place
    begin: int
    end: int


class Record(Protocol):
    """A record as the client shows it. `timestamp` in ms; `timestamp_type` 1: it is the broker's own clock."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@asynccontextmanager
async def reading(settings: KafkaSettings) -> AsyncIterator[Reading]:
    """A consumer for the time of the block.

    Raises KafkaUnavailable, BusRefused where the cluster doesn't take us as we are, ConfigError.
    """
    try:
        consumer = AIOKafkaConsumer(
            **options.connection(settings),
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            fetch_max_bytes=FETCH_BYTES,
            max_partition_fetch_bytes=PARTITION_BYTES,
            consumer_timeout_ms=_PATIENT_MS,
        )
    except ValueError as error:
        raise ConfigError(
            f"the Kafka client refuses its settings: {error}", next="check [kafka.client]"
        ) from error
    try:
        await client.start(consumer, settings)
        yield Reading(consumer, settings)
    finally:
        with suppress(TimeoutError, KafkaError, OSError, AttributeError):
            async with asyncio.timeout(1.0):
                await consumer.stop()


class Reading:
    """The topics of a cluster: their names, their offsets and their records."""

    def __init__(self, consumer: AIOKafkaConsumer, settings: KafkaSettings) -> None:
        self._consumer = consumer
        self._settings = settings

    async def topics(self) -> dict[str, int]:
        """All topics that we may see, without Kafka's own, with their numbers of partitions."""
        return await self._asked(topics.listed(self._consumer._client, internal=False))

    async def starts(self, places: Collection[Place]) -> dict[Place, int]:
        """The first offset of each partition that is still there."""
        return await self._offsets(self._consumer.beginning_offsets, places)

    async def ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset behind the last record of each partition whose outcome is known."""
        return await self._offsets(self._consumer.end_offsets, places)

    async def at(self, places: Collection[Place], ms: int) -> dict[Place, int]:
        """The first offset with a timestamp from `ms` on, in ms since 1970; the end where there is none."""
        wanted = {TopicPartition(*place): max(0, ms) for place in places}
        if not wanted:
            return {}
        found: Any = await self._asked(self._consumer.offsets_for_times(wanted))
        there = {Place(*tp): each.offset for tp, each in found.items() if each is not None}
        return await self.ends([place for place in places if place not in there]) | there

    async def compacted(self, topics: Collection[str]) -> set[str]:
        """Those from which a message goes when a newer one has its key; without the right DescribeConfigs none."""
        kafka = self._consumer._client
        request: Any = question(topics, CLEANUP)
        try:
            async with asyncio.timeout(_ANSWER):
                answer: Any = await kafka.send(kafka.get_random_node(), request)
        except (TimeoutError, KafkaError, OSError, refusal.UNCOVERED):
            return set()
        return {topic for topic, found in told(answer).items() if "compact" in found.get(CLEANUP, "")}

    async def _offsets(self, ask: Any, places: Collection[Place]) -> dict[Place, int]:
        if not places:
            return {}
        found: Any = await self._asked(ask([TopicPartition(*place) for place in places]))
        return {Place(*tp): int(offset) for tp, offset in found.items()}

    async def records(
        self, spans: Iterable[Span], *, stalled: float = STALLED
    ) -> AsyncIterator[tuple[Place, Sequence[Record]]]:
        """The records of all spans, in the order of their offsets within each, partitions mixed.

        What was removed from the log meanwhile is passed over. Raises KafkaUnavailable where nothing comes for
        `stalled` seconds, SetupError where we may not read a topic, ConfigError for an unknown compression.
        """
        ends = {TopicPartition(*span.place): span.end for span in spans if span.begin < span.end}
        if not ends:
            return
        consumer = self._consumer
        consumer.assign(list(ends))
        consumer._client.set_topics(())  # `assign` has named them
        for span in spans:
            if span.begin < span.end:
                consumer.seek(TopicPartition(*span.place), span.begin)
        moved = time.monotonic()
        while ends:
            batches = await self._turn()
            if batches:
                moved = time.monotonic()
            elif time.monotonic() - moved > stalled:
                raise KafkaUnavailable(
                    f"nothing comes from {_named(ends)}, which should have more",
                    next="check that all its brokers run, then start again",
                )
            for tp, records in batches.items():
                end = ends.get(tp)
                if end is None:
                    continue
                if records[-1].offset >= end:
                    records = [record for record in records if record.offset < end]  # noqa: PLW2901 - what is left
                if records:
                    yield Place(*tp), records
            # Without records the position may have moved all the same: past what transactions took back.
            for tp in list(batches or ends):
                position = await self._position(tp) if tp in ends else None
                if position is not None and position >= ends[tp]:
                    del ends[tp]
                    consumer.pause(tp)

    async def _position(self, tp: TopicPartition) -> int | None:
        """Where the next record would be read; None while no broker says what it still has of the partition."""
        try:
            async with asyncio.timeout(_TURN_MS / 1000):
                return int(await self._consumer.position(tp))
        except TimeoutError:
            return None
        except KafkaError as error:
            raise refusal.silent(error) from error

    async def _turn(self) -> Mapping[TopicPartition, Sequence[Record]]:
        try:
            batches: Mapping[TopicPartition, Sequence[Record]] = await self._consumer.getmany(
                timeout_ms=_TURN_MS, max_records=TOGETHER
            )
        except UnsupportedCodecError as error:
            raise ConfigError(
                f"records are compressed in a way whose library isn't installed: {refusal.in_short(error)}",
                next="in the checkout: pip install '.[compression]'",
            ) from error
        except (TopicAuthorizationFailedError, GroupAuthorizationFailedError) as error:
            raise _forbidden(error, self._settings) from error
        except KafkaError as error:
            raise refusal.silent(error) from error
        return batches

    async def _asked(self, question: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(_ANSWER):
                return await question
        except TopicAuthorizationFailedError as error:
            raise _forbidden(error, self._settings) from error
        except (TimeoutError, KafkaError, OSError) as error:
            raise refusal.silent(error) from error


def _named(places: Iterable[TopicPartition]) -> str:
    """The first few partitions in words."""
    names = [f"{tp.topic}/{tp.partition}" for tp in places]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _forbidden(error: KafkaError, settings: KafkaSettings) -> CdcOutboxError:
    topic = str(error.args[0]) if error.args else "TOPIC"
    return SetupError(
        f"the cluster doesn't let us read {topic}",
        next=f"kafka-acls.sh {tool.address(settings)} --add --allow-principal {tool.principal(settings)} "
        f"--operation Read --operation Describe --topic {topic}",
    )
