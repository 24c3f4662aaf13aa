"""The relay: connect, stream, map, publish, confirm, and what happens when one of them fails.

A *session* lasts from a free slot to the first failure of stream, publisher or control connection; then all of it is
thrown away, and a new one starts from the slot's position after a backoff. Nothing is mended by hand.

What ends the process instead of a session: a stop that was asked for, a set-up error, a poison event under the policy
`stop`. What only holds it: the environment (a right withdrawn, a topic gone, a publication that hides rows), until it
is as it was, or a person has decided.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from cdc_outbox import faults, log
from cdc_outbox.acknowledge import Ledger
from cdc_outbox.backoff import Backoff
from cdc_outbox.carryover import Carryover
from cdc_outbox.ended import ended
from cdc_outbox.errors import (
    CdcOutboxError,
    DrainExceeded,
    Held,
    KafkaUnavailable,
    PostgresUnavailable,
    PublicationUnseen,
    SetupError,
    SlotBusy,
    Unavailable,
)
from cdc_outbox.flow import LAST_MOMENT, Flow
from cdc_outbox.intake import Intake
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.postgres.admission import Admission
from cdc_outbox.postgres.catalogue import preview
from cdc_outbox.postgres.zoneless import tell_of_due
from cdc_outbox.publisher import BusRefused, StartOver, TopicMissing
from cdc_outbox.setback import SAY_AGAIN, Setbacks
from cdc_outbox.settlement import Settlement
from cdc_outbox.state import Live, State, Status
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from cdc_outbox.lsn import LSN
    from cdc_outbox.mark import Marks
    from cdc_outbox.marker import Marker
    from cdc_outbox.postgres.backend import Backend
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.settings import Settings

_log = log.get(__name__)

MARKS_LAST: Final = 5.0
"""Seconds that marks get at a stop, when all else is done and the slot is free."""

TO_CONFIRM: Final = 5.0
"""Seconds after a stop within which a session has to have begun that confirms what those before have delivered."""

OWN_WALSENDER: Final = 10.0
"""Seconds for which our last walsender may have the slot still before that is worth a line: it ends by itself."""


class Relay:
    """One slot's relay, from `run` to a stop, an error, or being caught up."""

    def __init__(
        self,
        settings: Settings,
        *,
        set_up: Callable[[], Awaitable[None]] | None = None,
        accept_gap: bool = False,
        until_caught_up: bool = False,
        fail_fast: bool = False,
    ) -> None:
        """`set_up` is done once, before the first stream; `fail_fast` makes an outage an end."""
        self._settings = settings
        self._set_up = set_up
        self._fail_fast = fail_fast
        self._accept_gap = accept_gap
        self._until_caught_up = until_caught_up
        self._mapping = Mapping(settings.outbox, settings.postgres.slot)
        self._marks = _marks(settings)
        self._fixed_topics: set[str] | None = None
        """Topics that are the same for all rows and are yet to be asked for; None before a look at the tables."""
        self._stop = asyncio.Event()
        self._stop_asked = 0.0
        self._caught_up = asyncio.Event()
        self._target: LSN | None = None
        """To have confirmed up to there is to be caught up, where that is an end."""
        self._flowed = False
        """Whether the session has streamed."""
        self._walsender: Backend | None = None
        """The walsender of the last stream."""
        self._ending_since: float | None = None
        """Since when that has the slot still, though the session is over, in monotonic seconds."""
        self._said_mapping: dict[str, str] = {}
        self._said_start = -SAY_AGAIN
        self.status = Status(settings.postgres.slot, mapping=self._mapping.told, marks=self._marks)
        self._carried = Carryover(self.status)
        self._setbacks = Setbacks(self.status, blocks=settings.delivery.on_poison == "block")

    def stop(self) -> None:
        """End after the transaction under way, once everything is confirmed."""
        self._stop_asked = time.monotonic()
        self._stop.set()

    async def run(self) -> None:
        """Relay until stopped, or caught up where that was asked for.

        Raises the set-up error, the PoisonEvent or the DrainExceeded that ended it; with `fail_fast` also the first
        outage.
        """
        faults.warn()
        backoff = Backoff(self._settings.retry)
        while not self._stop.is_set() and not self._caught_up.is_set():
            began = time.monotonic()
            self._flowed = False
            try:
                await self._until_stopped(self._session(self._stop, self._caught_up))
            except StartOver as reason:
                self.status.tally.ended(reason, streamed=self._flowed)
                if self._stop.is_set() and self._flowed:
                    raise DrainExceeded(
                        f"no time was left to try again: {reason}",
                        next="nothing is lost: what wasn't confirmed is sent again by the next start",
                    ) from reason
                self.status.repeats.say(
                    _log.info, "starting over", str(reason), reason=str(reason), slot=self.status.slot
                )
            except CdcOutboxError as error:
                may = self._setbacks.may_go_on(error, began=self._carried.has_begun, flowed=self._flowed)
                if not may or (self._fail_fast and isinstance(error, Unavailable)):
                    raise
                if self._stop.is_set() and self._flowed:
                    if not (self._carried.owes or self._carried.is_even):
                        raise  # it didn't end as it should have
                    break
                self.status.tally.ended(error, streamed=self._flowed)
                self._setbacks.say(error)
                if time.monotonic() - began > self._settings.retry.max:
                    backoff.reset()
                self._flowed = False
                await self._until_stopped(asyncio.sleep(backoff.seconds()))
        if self._carried.owes:
            await self._confirm_delivered()
        elif self._stop.is_set():
            self._carried.require_clean()
        self.status.change(State.STOPPED)
        if self._marks is not None and self._caught_up.is_set() and not self._stop.is_set():
            self._marks.require(self._settings.postgres.slot)

    async def _session(self, stop: asyncio.Event, caught_up: asyncio.Event, *, last: bool = False) -> None:
        """From a free slot to the first failure, or to the end that was asked for.

        `last`: it is there only to confirm what those before have delivered.
        """
        settings = self._settings
        if self._set_up is not None:
            await self._set_up()
            self._set_up = None
        async with AsyncExitStack() as ending:
            admission = Admission(settings.postgres, settings.outbox.tables, self._carried.memory)
            ending.push_async_callback(admission.close)
            await admission.open()
            self.status.connect(admission)
            ending.callback(self.status.leave)
            await admission.check(accept_gap=self._accept_gap)
            self.status.admitted = True
            self._accept_gap = False
            await self._require_mapping(admission)
            marker = await self._marker(admission)
            if marker is not None:
                ending.push_async_callback(self._end_of_marks, marker)
            ledger = Ledger()
            publisher = KafkaPublisher(settings.kafka, ledger, self._carried.deliveries, self.status.tally)
            ending.push_async_callback(publisher.stop, within=LAST_MOMENT)
            await self._reach_bus(publisher)
            await admission.stand_by(self._standing_by)
            await admission.check(begins=True)
            if last and not self._carried.owes:
                return  # what was sent at the last moment has been taken
            if self._carried.meet(admission) and self._marks is not None:
                self._marks.forget()
            stream = await admission.stream()
            self._walsender, self._ending_since = stream.backend, None
            ending.push_async_callback(self._end_of_stream, stream, ledger, publisher)
            # Nothing of ours may reach the bus after the slot is free for another relay.
            ending.push_async_callback(publisher.stop, within=LAST_MOMENT)
            ours, tally = await admission.ours(), self.status.tally
            intake = Intake(stream, ledger, self._mapping, publisher, ours, tally, self._marks)
            settlement = Settlement(
                admission,
                stream,
                ledger,
                intake,
                interval=settings.postgres.guard_interval,
                target=await self._catch_up_to(admission),
                proves=not (last or self._stop.is_set()),
                tally=tally,
                repeats=self.status.repeats,
                marks=self._marks,
            )
            ending.push_async_callback(settlement.close)
            self.status.stream(Live(stream, ledger, publisher, intake), admission.position)
            self._say_start(admission)
            flow = Flow(
                settings,
                self.status,
                stream,
                ledger,
                publisher,
                intake,
                settlement,
                suspect=self._carried.suspect,
                fail_fast=self._fail_fast,
            )
            self._flowed = True
            if marker is not None:
                marker.start()
            try:
                await flow.run(stop, caught_up)
            except PublicationUnseen as unseen:
                raise admission.remedied(unseen) from unseen
            finally:
                self._carried.suspect, self._carried.cut_short = flow.suspect, flow.cut_short
        if self._carried.owes:
            raise PostgresUnavailable(
                "the server ended the stream before it took the last confirmation",
                next="nothing to do: what it hasn't taken is confirmed once more",
            )

    async def _require_mapping(self, admission: Admission) -> None:
        """Once, before the first row: what can be known of the tables from the catalogue is not left to the stream."""
        if self._fixed_topics is not None:
            return
        ask = partial(
            preview,
            mapping=self._mapping,
            publication=self._settings.postgres.publication,
        )
        plans = [
            await admission.control.run(partial(ask, table=table)) for table in self._settings.outbox.tables
        ]
        known = [plan for plan in plans if plan is not None]
        for plan in known:
            self._mapping.is_news(plan)  # no: the line at start says it
        await admission.control.run(partial(tell_of_due, plans=known))
        fixed = [plan.layout.topics.fixed for plan in known]
        self._fixed_topics = {topic for topic in fixed if topic is not None}

    async def _reach_bus(self, publisher: KafkaPublisher) -> None:
        """A bus that is away, or takes us no more, keeps rows waiting, but not the slot from following the log."""
        try:
            await publisher.start()
        except (KafkaUnavailable, BusRefused) as error:
            if self._fail_fast or (isinstance(error, BusRefused) and not self._carried.has_begun):
                raise
            self._fixed_topics = set()  # what is missing holds the row that needs it
            self._setbacks.say(error)
            self.status.change(State.HELD, str(error))
            publisher.start_later(error, Backoff(self._settings.retry))
        else:
            self._carried.bus_took_us = True
            await self._require_topics(publisher)

    async def _require_topics(self, publisher: KafkaPublisher) -> None:
        """Once: a topic that is the same for all rows, and isn't there, is wrong in the settings."""
        for topic in self._fixed_topics or ():
            try:
                await publisher.prepare(topic)
            except TopicMissing as error:
                raise SetupError(str(error), next=error.next) from error
            except (Held, KafkaUnavailable) as error:
                if self._fail_fast and isinstance(error, KafkaUnavailable):
                    raise
                continue  # the cluster forbids something now, or is silent: it is asked again when there is a row
        self._fixed_topics = set()

    async def _marker(self, admission: Admission) -> Marker | None:
        """Who marks rows as sent in this session, if anybody does. What forbids it is refused at the start only."""
        if self._marks is None:
            return None
        from cdc_outbox import marker

        first = self._carried.server is None
        return await marker.opened(self._settings, self._mapping, self._marks, admission, strict=first)

    async def _end_of_marks(self, marker: Marker) -> None:
        """At a stop the rows that are confirmed are marked; else the next session does it, or the next start."""
        session = asyncio.current_task()
        hurries = session is not None and session.cancelling()
        stops = (self._stop.is_set() or self._caught_up.is_set()) and not hurries
        await marker.close(within=MARKS_LAST if stops else 0.0)

    async def _end_of_stream(
        self, stream: ReplicationStream, ledger: Ledger, publisher: KafkaPublisher
    ) -> None:
        await stream.close()
        self._carried.add(stream, ledger, publisher)

    def _standing_by(self, holder: Backend) -> None:
        if holder == self._walsender:
            self._await_own(holder.pid)
            return
        if self._stop.is_set():
            raise SlotBusy(
                f"walsender {holder.pid} streams from the slot",
                next="nothing to do: the relay looks again by itself",
            )
        self._carried.cede()
        self.status.change(State.STANDBY, f"walsender {holder.pid} streams from the slot")
        if self._marks is not None:
            self._marks.search()  # the other relay may leave rows unmarked

    def _await_own(self, pid: int) -> None:
        """The server hasn't ended the walsender of our last session: nobody delivers meanwhile."""
        now = time.monotonic()
        self._ending_since = self._ending_since or now
        stuck = SlotBusy(
            f"walsender {pid} of this relay's last session has the slot still: nothing is delivered meanwhile",
            next=f"if the server doesn't end it by itself: select pg_terminate_backend({pid});",
        )
        self.status.change(State.CONNECTING, str(stuck))
        if now - self._ending_since > OWN_WALSENDER:
            self._setbacks.say(stuck)

    async def _catch_up_to(self, admission: Admission) -> LSN | None:
        if self._until_caught_up and self._target is None:
            self._target = await admission.end_of_wal()
        return self._target

    def _say_start(self, admission: Admission) -> None:
        """Log what was detected; after trouble with the bus or a row the state is the flow's to better."""
        troubled = self.status.state in (State.HELD, State.BLOCKED)
        if not troubled:
            self.status.change(State.STREAMING)
        elif time.monotonic() - self._said_start < SAY_AGAIN:
            return
        self._said_start = time.monotonic()
        mapping = self._mapping.told()
        unsaid = {} if mapping == self._said_mapping else {"mapping": mapping}
        self._said_mapping = mapping
        self.status.repeats.say(
            _log.info,
            "streaming",
            f"{admission.server} {unsaid}",
            server=str(admission.server),
            version=admission.server.version,
            slot=self.status.slot,
            lsn=admission.position,
            publication=self._settings.postgres.publication,
            tables=[str(table) for table in self._settings.outbox.tables],
            partitioner=self._settings.kafka.partitioner,
            **unsaid,
        )

    async def _until_stopped(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` to its end. A stop cancels it, unless the stream flows or has flowed: then it ends by itself."""
        task = asyncio.create_task(work)
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            stops = not task.done() and not self._flowed
            if stops:
                task.cancel()
            await asyncio.wait({task})
            if not (stops and task.cancelled()):
                task.result()
        finally:
            # A second signal cancels us: the session still ends in order, before the last word is said.
            await ended(task, stopped)

    async def _confirm_delivered(self) -> None:
        """After a stop between two sessions: one more, to confirm what those before have delivered.

        Raises DrainExceeded where an outage keeps from that, and what a person has to decide or mend.
        """
        self._fail_fast = True
        limit = self._settings.limits.drain
        self._target = until = self._carried.until
        asked = self._stop_asked if self._stop.is_set() else time.monotonic()
        left = max(LAST_MOMENT, limit - (time.monotonic() - asked))
        _log.info("confirming what was delivered before", until=until, slot=self.status.slot)
        backoff, began = Backoff(self._settings.retry), time.monotonic()
        why: CdcOutboxError | None = None
        try:
            async with asyncio.timeout(left):
                while why is None or time.monotonic() - began < TO_CONFIRM:
                    try:
                        return await self._session(asyncio.Event(), asyncio.Event(), last=True)
                    except CdcOutboxError as error:
                        if not error.retriable:
                            raise
                        why = error
                    await asyncio.sleep(backoff.seconds())
        except TimeoutError:
            pass
        raise DrainExceeded(
            f"what Kafka has up to {until} could not be confirmed to PostgreSQL"
            + (f": {why}" if why is not None else f" within the drain limit of {limit:g} s"),
            next="nothing is lost: what wasn't confirmed is sent again by the next start",
        ) from why


def _marks(settings: Settings) -> Marks | None:
    """What is to be marked. It is loaded only where it is asked for: it takes a megabyte."""
    if settings.outbox.mark != "update":
        return None
    from cdc_outbox.mark import Marks

    return Marks()
