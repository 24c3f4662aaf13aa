"""The small interface that a bus has to fill, and a publisher in memory that shows it.

The relay hands over one row at a time with `publish`, which never waits; `flush` lets go what may leave. What a row
holds back is a `Mark` of the ledger: the publisher opens one a batch and settles it once the bus has confirmed.
Whatever fails resolves `failed`; the relay then throws the publisher away with its session.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cdc_outbox.errors import Held

if TYPE_CHECKING:
    import asyncio

    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.event import Encoded


class TopicUnknown(Exception):
    """The bus doesn't have the topic yet: `prepare` it, then publish the same row again."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class TopicMissing(Held):
    """The bus doesn't have the topic, and it isn't ours to make it."""


class Publisher(Protocol):
    """A bus, for the time of one session."""

    failed: asyncio.Future[CdcOutboxError]
    """Resolves to the reason when a delivery failed for good or its outcome is unknown."""

    inflight_bytes: int
    inflight_events: int

    async def prepare(self, topic: str) -> None:
        """Wait until the bus can take rows for a topic.

        Raises Held while the environment forbids it, TopicMissing where there is none.
        """

    def publish(self, encoded: Encoded, lsn: int, seq: int) -> None:
        """Take one row, of place `seq` in the transaction with final LSN `lsn`.

        Raises TopicUnknown; PoisonEvent for a row that the bus can never take.
        """

    def flush(self) -> None:
        """Send what may leave now."""

    async def room(self) -> None:
        """Wait until something in flight was confirmed."""

    async def settled(self) -> None:
        """Wait until everything that was published is confirmed."""

    async def stop(self, *, within: float) -> None:
        """End; what isn't confirmed by then has an unknown outcome."""


@dataclass(slots=True)
class Deliveries:
    """Which rows the bus has confirmed, by topic and partition, for as long as the process lives.

    After a session broke, the slot sends everything since the last confirmed LSN again. Rows of one partition are
    confirmed in stream order, so that one place a partition tells which of them have arrived, and they aren't sent
    twice. The memory of a topic ends when its number of partitions changes, since keys move then; all of it ends
    when the stream may differ (another server or timeline, a publication that was made again).
    """

    places: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[tuple[str, int], int] = field(default_factory=dict)
    """Records a batch that a partition takes, learnt from batches that it refused."""

    def settle(self, topic: str, partition: int, place: tuple[int, int]) -> None:
        """Everything for this partition up to `place`, a pair of final LSN and place within, has arrived."""
        self.places[topic, partition] = place

    def place(self, topic: str, partition: int, count: int) -> tuple[int, int]:
        """The last confirmed place of a partition of a topic that has `count` partitions now."""
        if self.counts.setdefault(topic, count) != count:
            self.counts[topic] = count
            for known in [known for known in self.places if known[0] == topic]:
                del self.places[known]
        return self.places.get((topic, partition), (0, -1))

    @property
    def until(self) -> int:
        """The highest final LSN of which something has arrived."""
        return max((lsn for lsn, _ in self.places.values()), default=0)

    def forget(self) -> None:
        """The stream may differ from now on."""
        self.places.clear()
        self.counts.clear()
