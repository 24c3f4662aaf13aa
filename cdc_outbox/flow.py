"""A session while it streams: four tasks side by side, and the order in which they end.

1. The reader takes frames to the publisher's batches, as long as there is room.
2. The pulse sends status updates by its own clock, whatever the others wait for.
3. The settlement looks at the guard, writes the witness and only then confirms.
4. The publisher delivers, and fails as a whole. Whether it delivers at all is minded, for the state.

The first to fail ends the session. What was published by then is waited for, as long as the cause allows it, and
confirmed if the guard still answers; so that an end costs no more duplicates than it must.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox import faults, log, oversleep, pulse
from cdc_outbox.ended import ended
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
from cdc_outbox.intake import TableUnknown
from cdc_outbox.publisher import StartOver, TopicUnknown, Unpublishable, prepared
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

PAUSE: Final = 0.005
"""Seconds between drains of a backlog over TCP: it halves the walsender's work, which wakes us once a message."""

LAST_MOMENT: Final = 1.0
"""Seconds that what is in flight gets when a server or the stream is gone."""

MIND: Final = 0.25
"""Seconds between looks at the bus."""

SILENT: Final = 5.0
"""Seconds without a confirmation that is owed to us until the state says so."""

STEADY: Final = 2.0
"""Seconds of a session in which nothing failed, though nothing was sent either, until it counts as well."""

REMIND: Final = 60.0
"""Seconds until a lasting trouble is worth another line."""

BLOCKED_FOR: Final = 60.0
"""Seconds between tries of a poison event under the policy `block`."""

_MAKE_WAY: Final = (PostgresShutdown, PostgresGone, SynchronousStandby)
"""The server, or each of its commits, waits for this stream; what the witness covers was confirmed before."""


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
    fail_fast: bool = False
    """Whether a bus that is away is an end, and not waited for."""
    _asks_for_topic: bool = False
    """Whether the reader has asked the bus about a topic, and may not go on yet."""
    _awaits_topic: bool = False
    """Whether it was told that there is none now, and has said so."""
    cut_short: bool = False
    """Whether the drain left a transaction that waits for the bus, or for a topic."""

    async def run(self, stop: asyncio.Event, caught_up: asyncio.Event) -> None:
        """Stream until a stop is asked for, or everything is caught up. Raises what ended it otherwise."""
        # After half of this time the server's patience with us isn't over yet, whenever it heard of us last.
        with oversleep.noticed(self.stream.sender_timeout / 2 or math.inf, self._overslept):
            await self._run(stop, caught_up)

    def _overslept(self, seconds: float) -> None:
        """Another relay may have the slot by now: what we still hold would come after what it has sent."""
        self.publisher.halt(
            PostgresUnavailable(
                f"this process stood still for {seconds:.0f} s: another relay may have taken over",
                next="nothing to do: the relay connects again by itself",
            )
        )

    async def _run(self, stop: asyncio.Event, caught_up: asyncio.Event) -> None:
        reading = asyncio.create_task(self._read(), name="reader")
        beating = asyncio.create_task(pulse.beat(self.stream, self.intake), name="pulse")
        settling = asyncio.create_task(self.settlement.run(caught_up), name="settlement")
        minding = asyncio.create_task(self._mind(), name="bus")
        asked = [asyncio.create_task(end.wait()) for end in (stop, caught_up)]
        try:
            cause = await _first_of(reading, beating, settling, minding, self.publisher.failed, *asked)
            await ended(reading, minding)
            if cause is None:
                await self._drain(beating, settling)
                return
            error = self._judged(cause)
            blocks = isinstance(error, PoisonEvent) and self.settings.delivery.on_poison == "block"
            unsettled = await self._wind_up(error, beating, settling, stays=blocks)
            if unsettled not in (None, cause) and isinstance(error, PoisonEvent | MappingError):
                # What came before isn't all published: the row is met again when it is.
                raise self._judged(unsettled)
            if blocks and isinstance(error, PoisonEvent):
                await self._stay_blocked(error, beating, settling, *asked)
                if stop.is_set() or caught_up.is_set():
                    return  # all before the event is confirmed, and more can't be
            raise error
        except _MAKE_WAY:
            await self._make_way(beating)
            raise
        finally:
            await ended(reading, beating, settling, minding, *asked)

    def _judged(self, error: CdcOutboxError) -> CdcOutboxError:
        """What a record that the broker refused alone means: it is poison, if it was tried as the suspect.

        Then everything before it was settled, and nothing after it sent. Else it will be, in a new session.
        """
        failed = self.publisher.failed
        if not (isinstance(error, Unpublishable) and failed.done() and failed.result() is error):
            return error
        if self.suspect == (error.lsn, error.seq):
            return error.named(self.intake.last)
        self.suspect = error.lsn, error.seq
        return StartOver(f"{error}; it is tried again alone")

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
            elif intake.late and stream.over_tcp:
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
        except TableUnknown as unknown:
            publisher.flush()
            self.intake.recognise(unknown.relation, await self.settlement.ours(self.intake.xid))
            return True
        publisher.flush(late=self.intake.late)
        self.stream.alive()
        while publisher.inflight_bytes > self.settings.limits.inflight_bytes:
            publisher.flush()
            await publisher.room()
            self.stream.alive()
        await self._await_suspect()
        return more

    async def _await_suspect(self) -> None:
        """While there is a suspect, each row is settled before the next: the last one is who a refusal is about."""
        if self.suspect is None:
            return
        await self.publisher.settled()
        if self.intake.place > self.suspect:
            self.suspect = None
            if self.status.state is State.BLOCKED:
                self.status.change(State.STREAMING)

    async def _prepare(self, topic: str) -> None:
        """Wait, in state `held`, until the bus can take rows for the topic."""
        self._asks_for_topic = True
        missing = await prepared(self.publisher, topic, self.settings, self._hold_for_topic)
        self._asks_for_topic = self._awaits_topic = False
        if missing is not None:
            raise self.intake.poison(missing, reason="unknown_topic") from missing

    def _hold_for_topic(self, error: CdcOutboxError) -> None:
        self._hold(error)
        self._awaits_topic = True
        self.stream.alive()

    def _hold(self, error: CdcOutboxError) -> None:
        """Enter state `held` and say why, once for each cause. Raises it where we are to end: it may take for ever."""
        if self.status.state is State.DRAINING or (self.fail_fast and isinstance(error, KafkaUnavailable)):
            raise error
        if self.status.state is not State.HELD or self.status.reason != str(error):
            self.status.trouble(error)
            self.status.repeats.say(
                _log.warning, "held", str(error), error=str(error), next=error.next, slot=self.status.slot
            )
        self.status.change(State.HELD, str(error))

    async def _mind(self) -> None:
        """Show in the state whether the bus takes what we send.

        State `held`, also that of the session before, is left on evidence only: a confirmation while none is overdue,
        or a while in which none was owed to us.
        """
        began = said = time.monotonic()
        while True:
            await asyncio.sleep(MIND)
            self.intake.notice()
            now, state, silent = time.monotonic(), self.status.state, self.publisher.silent_for
            if state not in (State.STREAMING, State.HELD):
                continue
            trouble = self.publisher.away or (self._owed() if silent > SILENT else None)
            if self._awaits_topic:
                pass  # the reader has said so
            elif trouble is None:
                said = now
                steady = not silent and not self._asks_for_topic and now - began > STEADY
                if state is State.HELD and (self.publisher.published or steady):
                    self.status.change(State.STREAMING)
                continue
            elif state is State.STREAMING or str(trouble) != self.status.reason:
                said = now
                self._hold(trouble)
                continue
            if now - said >= REMIND:
                said = now
                _log.warning("still held", error=self.status.reason, slot=self.status.slot)

    def _owed(self) -> KafkaUnavailable:
        return KafkaUnavailable(
            f"Kafka at {self.settings.kafka.bootstrap_servers} has owed us a confirmation for more than {SILENT:g} s",
            next="check that the brokers run; the relay goes on by itself when they do",
        )

    async def _drain(self, beating: asyncio.Task[None], settling: asyncio.Task[None]) -> None:
        """The end that was asked for: read on to the commit, settle everything, confirm it."""
        self.status.change(State.DRAINING)
        limit, began = self.settings.limits.drain, time.monotonic()
        draining = asyncio.create_task(self._read_to_commit(), name="drain")
        error: CdcOutboxError | None = None
        try:
            async with asyncio.timeout(limit):
                error = await _first_of(draining, beating, settling, self.publisher.failed)
        except TimeoutError:
            pass  # whether something is left to drain is asked below
        finally:
            await ended(draining)
        left = max(LAST_MOMENT, limit - (time.monotonic() - began))
        await ended(settling)
        unconfirmed = await self._settle_last(settling, within=left)
        if error is not None:
            raise self._judged(error)
        if self.ledger.unsettled or (self.ledger.in_transaction and not self.cut_short):
            count = self.publisher.inflight_events
            late = (
                f"{count} {'event was' if count == 1 else 'events were'} not confirmed by Kafka"
                if self.ledger.unsettled
                else "the commit of the transaction under way didn't come"
            )
            raise DrainExceeded(
                f"{late} within the drain limit of {limit:g} s",
                next="nothing is lost: they are sent again by the next start; raise limits.drain if it happens often",
            )
        if unconfirmed is not None:
            raise unconfirmed

    async def _read_to_commit(self) -> None:
        await self._await_suspect()  # the reader may have been cut while a row was out
        try:
            while self.ledger.in_transaction:
                if await self._take(1 if self.suspect else 1 << 62, to_commit=True):
                    await asyncio.sleep(0)
                elif self.ledger.in_transaction:
                    await self.stream.readable()
        except (Held, KafkaUnavailable) as error:
            # The transaction waits for the bus or the topic of a row, and comes again with the next start.
            self.cut_short = True
            _log.warning(
                "stopped with rows undelivered",
                error=str(error),
                next=f"nothing is lost: the next start sends them; until then: {error.next}",
                slot=self.status.slot,
            )
        await self.publisher.settled()

    async def _wind_up(
        self, error: CdcOutboxError, beating: asyncio.Task[None], settling: asyncio.Task[None], *, stays: bool
    ) -> CdcOutboxError | None:
        """After a failure: let what is in flight settle, and confirm it where the guard can still be asked.

        Returns why not all of it was settled. `stays`: the session isn't over yet, and the guard goes on.
        """
        unsettled: CdcOutboxError | None = None
        if isinstance(error, _MAKE_WAY):
            await self._make_way(beating)
        orderly = isinstance(error, PoisonEvent | MappingError)
        patience = self.settings.limits.drain if orderly else LAST_MOMENT
        settled = asyncio.create_task(self.publisher.settled(), name="last rows")
        # Why it can't be settled, if so: then it is sent again, from the last confirmed LSN.
        watched = [task for task in (beating, settling) if not task.done()]
        try:
            async with asyncio.timeout(patience):
                unsettled = await _first_of(settled, *watched)
        except TimeoutError:
            unsettled = KafkaUnavailable(
                f"Kafka didn't confirm within {patience:g} s what comes before a row that can't be published",
                next="check that the brokers run; the relay goes on by itself when they do",
            )
        finally:
            await ended(settled)
        if not isinstance(error, PostgresUnavailable) and not self.stream.over:
            if not stays:
                await ended(settling)
            await self._settle_last(settling, within=patience)
        return unsettled

    async def _make_way(self, beating: asyncio.Task[None]) -> None:
        await ended(beating)
        await self.stream.close()

    async def _settle_last(self, settling: asyncio.Task[None], *, within: float) -> CdcOutboxError | None:
        """Confirm what is settled; why that wasn't done, if so.

        Where guard, witness or control connection failed nothing may be confirmed.
        """
        if settling.done() and not settling.cancelled():
            failure = settling.exception()
            if failure is None or isinstance(failure, CdcOutboxError):
                return failure
            raise failure
        return await self.settlement.finish(within=within)

    async def _stay_blocked(self, error: PoisonEvent, *watched: asyncio.Task[Any]) -> None:
        """Keep slot, connection and guard, confirm nothing more, and return after a minute to try the event again."""
        self.suspect = (error.lsn, error.seq)
        if self.status.state is not State.BLOCKED or self.status.reason != str(error):
            self.status.trouble(error)
            _log.error("blocked", error=str(error), next=error.next, slot=self.status.slot)
        self.status.change(State.BLOCKED, str(error))
        try:
            async with asyncio.timeout(faults.blocked_for() or BLOCKED_FOR):
                end = await _first_of(*watched)
        except TimeoutError:
            return
        if end is not None:
            raise end


async def _first_of(*ends: asyncio.Future[Any]) -> CdcOutboxError | None:
    """Wait for the first to end, and return its error: raised, or resolved to. A fault that isn't ours is raised."""
    done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for end in done:
        if end.cancelled():
            continue
        outcome = end.exception() or end.result()
        if isinstance(outcome, CdcOutboxError):
            return outcome
        if isinstance(outcome, BaseException):
            raise outcome
    return None
