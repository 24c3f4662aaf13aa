"""Where the publisher would put an event, found out without publishing anything.

It asks the cluster for its list of topics, as the publisher does, and never names one: naming may create it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from cdc_outbox.errors import CdcOutboxError, KafkaUnavailable
from cdc_outbox.kafka import client
from cdc_outbox.kafka.partitioner import HASHES

if TYPE_CHECKING:
    from cdc_outbox.event import Encoded
    from cdc_outbox.settings import KafkaSettings

WITHIN: Final = 3.0
"""Seconds for reaching a broker: who only wants to look doesn't wait long for it."""

AGAIN: Final = 5.0
"""Seconds between looks for a topic that wasn't there."""


class Placement:
    """The topics of a cluster with their numbers of partitions."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._hash = HASHES[settings.partitioner]
        self._asked = 0.0
        self._counts: dict[str, int] = {}

    async def look(self) -> None:
        """Ask the cluster. Raises KafkaUnavailable where no broker answers in time, or refuses us."""
        self._asked = time.monotonic()
        servers = self._settings.bootstrap_servers
        asking = AIOKafkaClient(**client.connection_options(self._settings))
        try:
            async with asyncio.timeout(WITHIN):
                await asking.bootstrap()
                await asking.force_metadata_update()
            cluster = asking.cluster
            self._counts = {
                topic: len(cluster.partitions_for_topic(topic) or ())
                for topic in cluster.topics(exclude_internal_topics=False)
            }
        except (TimeoutError, KafkaError, OSError) as error:
            raise KafkaUnavailable(
                f"no Kafka broker at {servers} says which topics there are",
                next="check kafka.bootstrap_servers and that the brokers run",
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
        return (self._hash(key) if key is not None else (lsn >> 3) + seq) % count
