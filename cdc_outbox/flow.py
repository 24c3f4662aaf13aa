"""A session while it streams: four tasks side by side, and the order in which they end.

1. The reader takes frames to the publisher's batches, as long as there is room.
2. The pulse sends status updates by its own clock, whatever the others wait for.
3. The settlement looks at the guard, writes the witness and only then confirms.
4. The publisher delivers, and fails as a whole.

The first to fail ends the session. What was published by then is waited for, as long as the cause allows it, and
confirmed if the guard still answers; so that an end costs no more duplicates than it must.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox import log, pulse
from cdc_outbox.backoff import Backoff
from cdc_outbox.errors import (
    CdcOutboxError,
    DrainExceeded,
    Held,
    KafkaUnavailable,
    MappingError,
    PoisonEvent,
    PostgresGone,
    PostgresShutdown,
    PostgresUnavailable,
    SynchronousStandby,
)
from cdc_outbox.publisher import TopicUnknown
from cdc_outbox.rate import RateLimit
from cdc_outbox.state import State

if TYPE_CHECKING:
    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.intake import Intake
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.publisher import Publisher
    from cdc_outbox.settings import Settings
    from cdc_outbox.settlement import Settlement
    from cdc_outbox.state import Status

_log = log.get(__name__)

PAUSE: Final = 0.0005
"""Seconds between drains of a backlog over TCP: it halves the walsender's work, which wakes us once a message."""

LAST_MOMENT: Final = 1.0
"""Seconds that what is in flight gets when a server or the stream is gone."""

BLOCKED_FOR: Final = 60.0
"""Seconds between tries of a poison event under the policy `block`."""


@dataclass(slots=True)
class Flow:
    """The parts of a session whose stream has started."""

    settings: Settings
    status: Status
    stream: ReplicationStream
    ledger: Ledger
    publisher: Publisher
    intake: Intake
    settlement: Settlement
    suspect: tuple[int, int] | None = None
    """Place of the row that was poison before: it is tried alone, and nothing after it is sent meanwhile."""

    async def run(self, stop: asyncio.Event, caught_up: asyncio.Event) -> None:
        """Stream until a stop is asked for, or everything is caught up. Raises what ended it otherwise."""
        reading = asyncio.create_task(self._read(), name="reader")
        beating = asyncio.create_task(self._beat(), name="pulse")
        settling = asyncio.create_task(self.settlement.run(caught_up), name="settlement")
        asked = [asyncio.create_task(end.wait()) for end in (stop, caught_up)]
        try:
            error = await _first_of(reading, beating, settling, self.publisher.failed, *asked)
            if isinstance(error, PoisonEvent) and self.publisher.failed.done():
                error = self._suspected(error)
            await _cancelled(reading)
            if error is None:
                await self._drain(beating, settling)
                return
            await self._wind_up(error, beating, settling)
            if isinstance(error, PoisonEvent) and self.settings.delivery.on_poison == "block":
                await self._stay_blocked(error, beating, settling, asked[0])
            raise error
        finally:
            for task in (reading, beating, settling, *asked):
                await _cancelled(task)

    def _suspected(self, error: PoisonEvent) -> CdcOutboxError:
        """A record that the broker refused alone: poison, if everything before it was settled and nothing sent after.

        That is so when it was tried as the suspect. Else it will be, in a new session.
        """
        place = (error.lsn, error.seq)
        if self.suspect == place:
            error.event_id = self.intake.last_id
            return error
        self.suspect = place
        return Held(str(error), next="nothing to do: the event is tried again alone")

    async def _read(self) -> None:
        limit = RateLimit(self.settings.limits.max_events_per_second)
        stream, intake = self.stream, self.intake
        more = False
        while True:
            if not more:
                await stream.readable()
                stream.alive()
            before = intake.received
            more = await self._take(1 if self.suspect else limit.rows())
            limit.took(intake.received - before)
            if limit.wait:
                await asyncio.sleep(limit.wait)
                more = True
            elif more:
                await asyncio.sleep(0)
            elif intake.behind and stream.over_tcp:
                await asyncio.sleep(PAUSE)

    async def _take(self, rows: int, *, to_commit: bool = False) -> bool:
        """One drain of the stream, and whatever has to be waited for before the next."""
        publisher = self.publisher
        try:
            more = self.intake.drain(rows=rows, to_commit=to_commit)
        except TopicUnknown as unknown:
            publisher.flush()
            await self._prepare(unknown.topic)
            return True
        publisher.flush()
        self.stream.alive()
        while publisher.inflight_bytes > self.settings.limits.inflight_bytes:
            await publisher.room()
            self.stream.alive()
        if self.suspect is not None:
            await publisher.settled()
            if self.intake.place > self.suspect:
                self.suspect = None
        return more

    async def _prepare(self, topic: str) -> None:
        """Wait, in state `held`, until the bus can take rows for the topic."""
        backoff = Backoff(self.settings.retry)
        held = False
        while True:
            try:
                await self.publisher.prepare(topic)
            except (Held, KafkaUnavailable) as error:
                if isinstance(error, Held) and self.settings.kafka.unknown_topic == "poison":
                    raise self.intake.poison(error, reason="unknown_topic") from error
                if not held:
                    held = True
                    self.status.trouble(error)
                    _log.warning("held", error=str(error), next=error.next, topic=topic)
                self.status.change(State.HELD, str(error))
                self.stream.alive()
                await asyncio.sleep(backoff.seconds())
            else:
                break
        if held:
            self.status.change(State.STREAMING)

    async def _beat(self) -> None:
        await pulse.beat(self.stream, self.intake, sender_timeout=self.stream.sender_timeout)

    async def _drain(self, beating: asyncio.Task[None], settling: asyncio.Task[None]) -> None:
        """The end that was asked for: read on to the commit, settle everything, confirm it."""
        self.status.change(State.DRAINING)
        limit = self.settings.limits.drain
        draining = asyncio.create_task(self._read_to_commit(), name="drain")
        try:
            async with asyncio.timeout(limit):
                error = await _first_of(draining, beating, settling, self.publisher.failed)
        except TimeoutError as late:
            await self.settlement.finish()
            raise DrainExceeded(
                f"{self.ledger.unsettled} batches were not confirmed by Kafka within the drain limit of {limit:g} s",
                next="nothing is lost: they are sent again by the next start; raise limits.drain if it happens often",
            ) from late
        finally:
            await _cancelled(draining)
        await self._settle_last(settling)
        if error is not None:
            raise error

    async def _read_to_commit(self) -> None:
        while self.ledger.in_transaction:
            if await self._take(1 << 62, to_commit=True):
                await asyncio.sleep(0)
            elif self.ledger.in_transaction:
                await self.stream.readable()
        await self.publisher.settled()

    async def _wind_up(
        self, error: CdcOutboxError, beating: asyncio.Task[None], settling: asyncio.Task[None]
    ) -> None:
        """After a failure: let what is in flight settle, and confirm it where the guard can still be asked."""
        if isinstance(error, PostgresShutdown | PostgresGone | SynchronousStandby):
            # The server, or each of its commits, waits for this stream; what the witness covers was confirmed before.
            await _cancelled(beating)
            await self.stream.close()
        orderly = isinstance(error, PoisonEvent | MappingError)
        patience = self.settings.limits.drain if orderly else LAST_MOMENT
        try:
            async with asyncio.timeout(patience):
                await self.publisher.settled()
        except (TimeoutError, CdcOutboxError):
            pass  # its outcome is unknown: it is sent again, from the last confirmed LSN
        if not isinstance(error, PostgresUnavailable):
            await self._settle_last(settling)

    async def _settle_last(self, settling: asyncio.Task[None]) -> None:
        if settling.done():
            return  # it is the guard, the witness or the control connection that failed: nothing may be confirmed
        await _cancelled(settling)
        await self.settlement.finish()

    async def _stay_blocked(self, error: PoisonEvent, *watched: asyncio.Task[Any]) -> None:
        """Keep slot and connection, confirm nothing more, and try again after a minute."""
        self.suspect = (error.lsn, error.seq)
        self.status.change(State.BLOCKED, str(error))
        self.status.trouble(error)
        _log.error("blocked", error=str(error), next=error.next, slot=self.status.slot)
        await asyncio.wait(watched, timeout=BLOCKED_FOR, return_when=asyncio.FIRST_COMPLETED)


async def _first_of(*ends: asyncio.Future[Any]) -> CdcOutboxError | None:
    """Wait for the first to end, and return its error: raised, or resolved to. A fault that isn't ours is raised."""
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in done:
        outcome = end.exception() or end.result()
        if isinstance(outcome, CdcOutboxError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
    return None


async def _cancelled(task: asyncio.Task[Any]) -> None:
    """Cancel a task and see it end; what it raised is somebody else's business, or was seen before."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()
