"""The small interface that a bus has to fill.

The relay hands over one row at a time with `publish`, which never waits; `flush` lets go what may leave. What a row
holds back is a `Pin` of the ledger: the publisher has one for each batch and settles it once the bus has confirmed.
Whatever fails resolves `failed`; the relay then throws the publisher away with its session.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from cdc_outbox.backoff import Backoff
from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, PoisonEvent, SetupError
from cdc_outbox.event import event_id
from cdc_outbox.lsn import place

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.event import Encoded
    from cdc_outbox.settings import Settings


class TopicUnknown(Exception):
    """The bus doesn't have the topic yet: `prepare` it, then publish the same row again."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic


class TopicMissing(Held):
    """The bus doesn't have the topic, and it isn't ours to make it."""


class BusRefused(SetupError):
    """The bus doesn't accept who we are, or how we speak to it."""


class StartOver(CdcOutboxError):
    """Nothing is wrong that a person should mend: the session begins anew, knowing more than before."""

    retriable = True

    def __init__(self, message: str) -> None:
        super().__init__(message, next="nothing to do: the relay goes on by itself")


class Unpublishable(PoisonEvent):
    """A row that the bus can't take. `why` says it without the event's name, for who learns the name later."""

    def __init__(
        self,
        why: str,
        encoded: Encoded | None = None,
        *,
        next: str,  # noqa: A002 - the contract's word for the remedy
        reason: str,
        lsn: int,
        seq: int,
    ) -> None:
        identity = event_id(encoded) if encoded is not None else None
        shown = "without an id" if identity is None else identity[:200]
        who = f"event {shown if shown.isprintable() else ascii(shown)}" if encoded is not None else "a row"
        super().__init__(
            f"{who} {place(lsn, seq)}, can't be published: {why}",
            next=next,
            reason=reason,
            lsn=lsn,
            seq=seq,
            event_id=identity,
        )
        self.why = why

    def named(self, encoded: Encoded | None) -> Unpublishable:
        """The same with the name of the event."""
        return Unpublishable(
            self.why, encoded, next=self.next, reason=self.reason, lsn=self.lsn, seq=self.seq
        )


class Publisher(Protocol):
    """A bus, for the time of one session."""

    failed: asyncio.Future[CdcOutboxError]
    """Resolves to the reason when a delivery failed for good or its outcome is unknown."""

    away: CdcOutboxError | None
    """Why the bus has never been reached, while it hasn't: it goes on trying, and until then no topic is known."""

    inflight_bytes: int
    unanswered: int
    """What was handed to the bus, and it has yet to say whether it has it. What it refuses it hasn't."""

    published: dict[str, int]
    """Confirmed events by topic, in this session."""
    committed_us: int
    """Commit time of the rows that are published now, in microseconds since the epoch; set by who publishes."""

    @property
    def inflight_events(self) -> int:
        """Rows that it has taken, and that the bus hasn't confirmed."""

    @property
    def silent_for(self) -> float:
        """Seconds for which the bus has owed us its oldest confirmation; 0 while it owes none."""

    async def prepare(self, topic: str) -> None:
        """Wait until the bus can take rows for a topic.

        Raises Held while the environment forbids it, TopicMissing where there is none.
        """

    def publish(self, encoded: Encoded, lsn: int, seq: int) -> None:
        """Take one row, of place `seq` in the transaction with final LSN `lsn`.

        Raises TopicUnknown; PoisonEvent for a row that the bus can never take.
        """

    def flush(self, *, late: float = 0.0) -> None:
        """Send what may leave now; `late`: how many seconds ago it was committed, where that tells of a backlog."""

    async def room(self) -> None:
        """Wait until something in flight was confirmed."""

    async def settled(self) -> None:
        """Wait until everything that was published is confirmed."""

    def halt(self, error: CdcOutboxError) -> None:
        """Fail, and let nothing leave any more, not even what is under way."""

    async def stop(self, *, within: float) -> None:
        """End; what isn't confirmed by then has an unknown outcome."""


async def prepared(
    bus: Publisher, topic: str, settings: Settings, held: Callable[[CdcOutboxError], None]
) -> TopicMissing | None:
    """Wait until the bus can take rows for a topic; why a row of it is poison instead, where the settings have it so.

    `held` is told what is in the way, each time that it was tried; what it raises ends the waiting.
    """
    backoff = Backoff(settings.retry)
    while True:
        try:
            await bus.prepare(topic)
        except TopicMissing as missing:
            if settings.kafka.unknown_topic == "poison":
                return missing
            held(missing)
        except (Held, KafkaUnavailable) as error:
            held(error)
        else:
            return None
        await asyncio.sleep(backoff.seconds())


@dataclass(slots=True)
class Deliveries:
    """Which rows the bus has confirmed, by topic and partition, for as long as the process lives.

    After a session broke, the slot sends everything since the last confirmed LSN again. Rows of one partition are
    confirmed in stream order, so that one place a partition tells which of them have arrived, and they aren't sent
    twice. The memory of a topic ends when its number of partitions changes, since keys move then; all of it ends
    when the stream may differ (another server or timeline, or one that was set back), and what no witness row covers
    ends with the run of the server that sent it.
    """

    places: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    limits: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """Bytes of a batch that a partition takes, learnt from batches that it refused, and when (monotonic)."""

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

    def beyond(self, position: int) -> bool:
        """Whether something has arrived of a transaction whose commit lies at `position` or after it."""
        return any(place > (position, -1) for place in self.places.values())

    def forget_beyond(self, position: int) -> None:
        """The stream may differ from `position` on, the end of a commit up to which everything has arrived."""
        last = (int(position), -1)
        self.places = {lane: min(place, last) for lane, place in self.places.items()}

    def forget(self) -> None:
        """The stream may differ from now on."""
        self.places.clear()
        self.counts.clear()
