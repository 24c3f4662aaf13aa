"""Where the publisher would put an event and what would be in the way, found out without publishing anything.

It asks the cluster for its list of topics, as the publisher does, and never names one: naming may create it. Only the
limit of a topic that is there is asked for by its name.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from cdc_outbox.errors import CdcOutboxError, KafkaUnavailable
from cdc_outbox.kafka import delivery_errors, options, refusal, topics
from cdc_outbox.kafka.partitioner import HASHES, spread
from cdc_outbox.kafka.records import size_of
from cdc_outbox.kafka.topic_settings import MAX_BYTES, max_bytes, question

if TYPE_CHECKING:
    from cdc_outbox.event import Encoded
    from cdc_outbox.settings import KafkaSettings

WITHIN: Final = 3.0
"""Seconds for reaching a broker: who only wants to look doesn't wait long for it."""

AGAIN: Final = 5.0
"""Seconds between looks for a topic that wasn't there."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an event would not be delivered as things are: a bounded word, what is wrong, and the next step."""

    reason: str
    error: str
    next: str


class Placement:
    """The topics of a cluster with their numbers of partitions, none as long as it wasn't reached."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._hash = HASHES[settings.partitioner]
        self._asked = 0.0
        self._counts: dict[str, int] = {}
        self._limits: dict[str, int | None] = {}
        self._reached = False

    @property
    def reached(self) -> bool:
        """Whether the cluster has said which topics there are."""
        return self._reached

    async def look(self) -> None:
        """Ask the cluster. Raises KafkaUnavailable where no broker answers in time, or refuses us."""
        self._asked = time.monotonic()
        servers = self._settings.bootstrap_servers
        asking = AIOKafkaClient(**options.connection(self._settings))
        try:
            async with asyncio.timeout(WITHIN):
                await asking.bootstrap()
                self._counts = await topics.listed(asking, internal=True)
            self._reached = True
        except (TimeoutError, KafkaError, OSError) as error:
            raise KafkaUnavailable(
                f"no Kafka broker at {servers} says which topics there are",
                next=refusal.where_to_look(
                    self._settings, "kafka.bootstrap_servers and that the brokers run"
                ),
            ) from error
        finally:
            await asking.close()

    async def of(self, encoded: Encoded, lsn: int, seq: int) -> int | None:
        """The partition of an event; None where the topic isn't there, or the row names a partition that isn't."""
        topic, number, key, *_ = encoded
        if topic not in self._counts and self._asked and time.monotonic() - self._asked > AGAIN:
            try:
                await self.look()
            except CdcOutboxError:
                return None
        count = self._counts.get(topic)
        if not count:
            return None
        if number is not None:
            return number if 0 <= number < count else None
        return (spread(lsn, seq) if key is None else self._hash(key)) % count

    async def obstacle(self, encoded: Encoded) -> Obstacle | None:
        """What would keep the event from being delivered now, after `of` was asked for it.

        Our own limit is known without a cluster; what the topic has against it only where one was reached. The topic's
        is for a batch as it is sent: what that is once it is compressed nobody knows before.
        """
        topic, number, *_ = encoded
        size, ours = size_of(encoded), options.max_request_size(self._settings)
        room = delivery_errors.room_for(topic, size, self._settings)
        if size > ours:
            return Obstacle("too_large", delivery_errors.oversized(size, ours), room)
        if not self._reached:
            return None
        count = self._counts.get(topic)
        if not count:
            missing = topics.missing(topic, self._settings)
            return (
                None
                if self._settings.topics.create
                else Obstacle("unknown_topic", str(missing), missing.next)
            )
        if number is not None and not 0 <= number < count:
            what = f"it names partition {number}, and topic {topic} has {count}"
            return Obstacle("partition", what, f"add partitions to {topic}")
        if options.codec(self._settings):
            return None
        if topic not in self._limits:
            self._limits[topic] = await self._limit(topic)
        limit = self._limits[topic]
        if limit is not None and size > limit:
            what = f"it is {size} bytes as a Kafka record, and {MAX_BYTES} of topic {topic} is {limit}"
            return Obstacle("too_large", what, room)
        return None

    async def _limit(self, topic: str) -> int | None:
        """The topic's limit for a batch; None where the cluster doesn't tell us, which takes DescribeConfigs."""
        asking = AIOKafkaClient(**options.connection(self._settings))
        request: Any = question([topic], MAX_BYTES)
        try:
            async with asyncio.timeout(WITHIN):
                await asking.bootstrap()
                return max_bytes(await asking.send(asking.get_random_node(), request), topic)
        except (TimeoutError, KafkaError, OSError, refusal.UNCOVERED, ValueError, TypeError):
            return None
        finally:
            await asking.close()
