"""A bus in memory, for tests of what stands before a bus."""

from __future__ import annotations

import asyncio
from collections import deque

from cdc_outbox.acknowledge import Ledger, Pin
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.event import Encoded
from cdc_outbox.publisher import TopicMissing, TopicUnknown


class MemoryPublisher:
    """A bus in memory: what it takes it keeps in `messages`, in the order in which it was confirmed.

    `flush` confirms all that was published; with `patient` only `confirm` does. `topics` are those that there are,
    None for any.
    """

    def __init__(self, ledger: Ledger, *, topics: set[str] | None = None, patient: bool = False) -> None:
        self._ledger = ledger
        self._patient = patient
        self._waiting: deque[tuple[Pin, Encoded]] = deque()
        self._progress = asyncio.Event()
        self.topics = topics
        self.messages: list[Encoded] = []
        self.failed: asyncio.Future[CdcOutboxError] = asyncio.get_running_loop().create_future()
        self.away: CdcOutboxError | None = None
        self.inflight_bytes = 0
        self.inflight_events = 0
        self.unanswered = 0
        self.published: dict[str, int] = {}
        self.committed_us = 0

    @property
    def silent_for(self) -> float:
        """It never is."""
        return 0.0

    async def prepare(self, topic: str) -> None:
        """Raises TopicMissing for a topic that isn't one of `topics`."""
        if self.topics is not None and topic not in self.topics:
            raise TopicMissing(f"there is no topic {topic}", next="add it to topics")

    def publish(self, encoded: Encoded, lsn: int, seq: int) -> None:
        """Take one row. Raises TopicUnknown for a topic that isn't one of `topics`."""
        if self.topics is not None and encoded[0] not in self.topics:
            raise TopicUnknown(encoded[0])
        self._waiting.append((self._ledger.pin(self.committed_us), encoded))
        self.inflight_events += 1
        self.inflight_bytes += len(encoded[3] or b"")

    def flush(self, *, late: float = 0.0) -> None:
        """Confirm everything, unless patient."""
        if not self._patient:
            self.confirm(len(self._waiting))

    def confirm(self, count: int = 1) -> None:
        """Confirm the next `count` rows, or what there is."""
        for _ in range(min(count, len(self._waiting))):
            pin, encoded = self._waiting.popleft()
            self.messages.append(encoded)
            self.published[encoded[0]] = self.published.get(encoded[0], 0) + 1
            self.inflight_events -= 1
            self.inflight_bytes -= len(encoded[3] or b"")
            self._ledger.settle(pin)
        self._progress.set()

    async def room(self) -> None:
        """Wait until something was confirmed, or everything failed."""
        self._progress.clear()
        await self._progress.wait()

    async def settled(self) -> None:
        """Wait until everything is confirmed. Raises the error that makes it impossible."""
        while self._waiting:
            if self.failed.done():
                raise self.failed.result()
            await self.room()

    def fail(self, error: CdcOutboxError) -> None:
        """As if a delivery had failed for good."""
        if not self.failed.done():
            self.failed.set_result(error)
        self._progress.set()

    def halt(self, error: CdcOutboxError) -> None:
        """Fail, and forget what waits."""
        self._waiting.clear()
        self.fail(error)

    async def stop(self, *, within: float) -> None:
        """End; what waits is forgotten."""
        self._waiting.clear()
