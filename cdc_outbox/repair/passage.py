"""A passage: rows that were read from the table, published in their order, each at least once.

It is what the relay does, without a stream. A row's place is its number, from 1 on, so that the publisher, the ledger
and the memory of deliveries serve as they are; a position of the ledger is the number of a row up to which all rows
were taken. What isn't confirmed yet is kept as it was read. On a delivery error the publisher is thrown away and a
new one gets what was kept, in order, and passes over what has arrived: so order per key holds, as it does there.

The memory that it takes is bounded by `limits.inflight_bytes`: rows that are kept and batches that are on their way
count together. An outage of the broker is waited for, once the broker was there. A row that can't be published ends
the passage, when everything before it is confirmed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from cdc_outbox import log
from cdc_outbox.acknowledge import Ledger
from cdc_outbox.backoff import Backoff
from cdc_outbox.errors import CdcOutboxError, Held, KafkaUnavailable, PoisonEvent, SetupError
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.publisher import Deliveries, StartOver, TopicMissing, TopicUnknown, Unpublishable, prepared
from cdc_outbox.rate import RateLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from cdc_outbox.event import Encoded, Values
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan

_log = log.get(__name__)

LATE: Final = 2.0
"""Rows that were in the table are late anyway: batches may grow before they leave, as in a backlog of the stream."""

LAST_MOMENT: Final = 1.0
"""Seconds for the end of a publisher whose deliveries have failed, or are of no interest any more."""

MIND: Final = 0.5
"""Seconds between looks at the bus."""

SILENT: Final = 5.0
"""Seconds without a confirmation that is owed to us until that is said."""

SAY_AGAIN: Final = 60.0
"""Seconds until the same trouble is worth another line."""

_ROW: Final = 50
"""Bytes of memory that a row takes beside its text, about."""


class Portion(Protocol):
    """Rows of one table, one after the other, which can be gone through more than once. `size` is in bytes."""

    @property
    def size(self) -> int: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Values]: ...


class _Kept:
    """A portion of which not all is confirmed yet; `first` is the number of its first row, `end` that of its last."""

    __slots__ = ("bytes", "end", "first", "plan", "portion")

    def __init__(self, plan: Plan, portion: Portion, first: int) -> None:
        self.plan = plan
        self.portion = portion
        self.first = first
        self.end = first + len(portion) - 1
        self.bytes = portion.size + _ROW * len(portion)


class Passage:
    """One passage, from `run` to its end.

    `taken`: rows that were read. `left_out`: of these, how many a rule of the mapping left out, by reason.
    `confirmed`: the number of the row up to which everything has arrived or was left out. `published`: confirmed
    events by topic, once the passage has ended.
    """

    def __init__(
        self,
        settings: Settings,
        plans: Sequence[Plan],
        *,
        moved: Callable[[int], None] = lambda confirmed: None,
    ) -> None:
        """`plans`: of the tables whose rows come. `moved` hears of `confirmed` each time that it rises."""
        self._settings = settings
        self._plans = plans
        self._moved = moved
        self._limit = settings.limits.inflight_bytes
        self._rate = RateLimit(settings.limits.max_events_per_second)
        self._backoff = Backoff(settings.retry)
        self._deliveries = Deliveries()
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._suspect = 0
        self._counted = 0
        self._reached = False
        self._said: dict[str, float] = {}
        self._told_of_age: set[str] = set()
        self.taken = 0
        self.confirmed = 0
        self.left_out: dict[str, int] = {}
        self.published: dict[str, int] = {}

    async def reach(self) -> None:
        """Make sure, once, that the bus is there; from then on its absence is waited for.

        Raises KafkaUnavailable; BusRefused; SetupError for a topic that is the same for all rows and isn't there.
        """
        if self._reached:
            return
        publisher = KafkaPublisher(self._settings.kafka, Ledger(), self._deliveries)
        try:
            await publisher.start()
            await self._require_topics(publisher)
        finally:
            await publisher.stop(within=LAST_MOMENT)
        self._reached = True

    async def run(self, portions: AsyncIterator[tuple[Plan, Portion]]) -> None:
        """Publish all rows of all portions and wait for the bus to confirm them.

        Raises what `reach` raises; PoisonEvent; BusRefused; and whatever `portions` raises.
        """
        await self.reach()
        while True:
            before = self.confirmed
            try:
                await self._session(portions)
                return
            except StartOver as reason:
                _log.info("starting over", reason=str(reason))
                continue
            except (KafkaUnavailable, Held) as error:
                self._say(error)
            if self.confirmed > before:
                self._backoff.reset()
            await asyncio.sleep(self._backoff.seconds())

    async def _session(self, portions: AsyncIterator[tuple[Plan, Portion]]) -> None:
        """From a new publisher to its first failure, or to the end of all rows."""
        ledger = Ledger()
        publisher = KafkaPublisher(self._settings.kafka, ledger, self._deliveries)
        minding: asyncio.Task[None] | None = None
        try:
            await publisher.start()
            minding = asyncio.create_task(self._mind(publisher), name="bus")
            carrier = _Carrier(self, publisher, ledger)
            try:
                for kept in list(self._kept):
                    await carrier.give(kept)
                async for plan, portion in portions:
                    await carrier.give(self._keep(plan, portion))
                await carrier.settle()
            except PoisonEvent as poison:
                raise await self._judged(poison, carrier) from None
        finally:
            if minding is not None:
                minding.cancel()
            await publisher.stop(within=LAST_MOMENT)
            for topic, count in publisher.published.items():
                self.published[topic] = self.published.get(topic, 0) + count

    async def _judged(self, poison: PoisonEvent, carrier: _Carrier) -> CdcOutboxError:
        """What a row that can't be published means, once everything before it was confirmed.

        A record that the broker refused beside others is tried again alone; so is what was on its way with it.
        """
        if isinstance(poison, Unpublishable) and carrier.failure is poison:
            if self._suspect == poison.seq:
                return poison.named(carrier.last)
            self._suspect = poison.seq
            return StartOver(f"{poison}; it is tried again alone")
        await carrier.settle()
        return poison

    async def _require_topics(self, publisher: KafkaPublisher) -> None:
        """A topic that is the same for all rows of a table, and isn't there, is wrong in the settings."""
        for topic in {plan.layout.topics.fixed for plan in self._plans} - {None}:
            try:
                await publisher.prepare(str(topic))
            except TopicMissing as error:
                raise SetupError(str(error), next=error.next) from error

    def _keep(self, plan: Plan, portion: Portion) -> _Kept:
        kept = _Kept(plan, portion, self.taken + 1)
        self.taken = kept.end
        self._kept.append(kept)
        self._kept_bytes += kept.bytes
        return kept

    def release(self, confirmed: int) -> None:
        """Forget what is confirmed: all rows up to this number."""
        if confirmed <= self.confirmed:
            return
        self.confirmed = confirmed
        while self._kept and self._kept[0].end <= confirmed:
            self._kept_bytes -= self._kept.popleft().bytes
        self._moved(confirmed)

    def is_full(self, inflight_bytes: int) -> bool:
        """Whether nothing more may be taken for now."""
        return inflight_bytes + self._kept_bytes > self._limit

    async def _mind(self, publisher: KafkaPublisher) -> None:
        """Say that the bus owes us a confirmation, and that it has come."""
        servers = self._settings.kafka.bootstrap_servers
        silent = False
        while True:
            await asyncio.sleep(MIND)
            if publisher.silent_for > SILENT:
                silent = True
                self._say(
                    KafkaUnavailable(
                        f"Kafka at {servers} has owed us a confirmation for more than {SILENT:g} s",
                        next="check that the brokers run; it goes on by itself when they do",
                    )
                )
            elif silent:
                silent = False
                _log.info("Kafka confirms again")

    def _say(self, error: CdcOutboxError) -> None:
        """Log a trouble and its remedy at once, and while it lasts one line a minute."""
        now, text = time.monotonic(), str(error)
        if now - self._said.get(text, -SAY_AGAIN) >= SAY_AGAIN:
            self._said[text] = now
            goes_on = "" if "goes on" in error.next else "; until then it waits, and goes on by itself"
            _log.warning("waiting", error=text, next=error.next + goes_on)

    async def prepare(self, publisher: KafkaPublisher, topic: str) -> TopicMissing | None:
        """Wait until the bus can take rows for a topic; why a row of it is poison, where the settings have it so."""
        return await prepared(publisher, topic, self._settings, self._say)

    def tell_of_age(self, topic: str, expired: str | None) -> None:
        """Log once for a topic that it won't keep its first row, which is the oldest or nearly so, where that is so."""
        if expired is not None and topic not in self._told_of_age:
            _log.warning("noticed", what=expired)
            self._told_of_age.add(topic)

    def leave_out(self, number: int, reason: str) -> None:
        """Count a row that a rule leaves out, once, however often it is met."""
        if number > self._counted:
            self._counted = number
            self.left_out[reason] = self.left_out.get(reason, 0) + 1

    @property
    def suspect(self) -> int:
        """The number of a row that was refused, and is tried alone."""
        return self._suspect

    @property
    def rate(self) -> RateLimit:
        return self._rate


class _Carrier:
    """The hands of one session: rows from portions to the publisher."""

    def __init__(self, passage: Passage, publisher: KafkaPublisher, ledger: Ledger) -> None:
        self._passage = passage
        self._publisher = publisher
        self._ledger = ledger
        self.last: Encoded | None = None
        """The row that was published last."""

    @property
    def failure(self) -> CdcOutboxError | None:
        failed = self._publisher.failed
        return failed.result() if failed.done() else None

    async def give(self, kept: _Kept) -> None:
        """Publish the rows of a portion, as fast as the limits allow. Raises what the publisher fails with."""
        passage, publisher, rate = self._passage, self._publisher, self._passage.rate
        encode, created_us, publish = kept.plan.encode, kept.plan.created_us, publisher.publish
        # A topic refuses what is far ahead of its clock, as times without a zone are that are read as UTC.
        now_us = time.time_ns() // 1000
        suspect = passage.suspect
        allowed = first = rate.rows()
        number = kept.first - 1
        for values in kept.portion:
            number += 1
            encoded = encode(values, 0, number, min(created_us(values, now_us), now_us))
            if isinstance(encoded, str):
                passage.leave_out(number, encoded)
                continue
            if number == suspect:
                await self.settle()
            try:
                publish(encoded, 0, number)
            except TopicUnknown as unknown:
                await self._prepare(unknown.topic, encoded, number)
                publish(encoded, 0, number)
            if number == suspect:
                self.last = encoded
                await self.settle()
            allowed -= 1
            if allowed <= 0:
                rate.took(first - allowed)
                await self._pause()
                allowed = first = rate.rows()
        rate.took(first - allowed)
        self._ledger.idle(kept.end)
        publisher.flush(late=LATE)
        self._require()
        passage.release(self._ledger.confirmable)
        while passage.is_full(publisher.inflight_bytes) and self._ledger.unsettled:
            await self._wait()

    async def settle(self) -> None:
        """Wait until everything that was published is confirmed."""
        while self._ledger.unsettled:
            await self._wait(late=0.0)
        self._require()
        self._passage.release(self._ledger.confirmable)

    async def _wait(self, *, late: float = LATE) -> None:
        """Wait until something was confirmed."""
        self._publisher.flush(late=late)
        self._require()
        await self._publisher.room()
        self._require()
        self._passage.release(self._ledger.confirmable)

    async def _pause(self) -> None:
        """Wait until the rate limit allows another row."""
        rate = self._passage.rate
        while rate.rows() <= 0:
            self._publisher.flush()
            await asyncio.sleep(rate.wait)
            self._require()

    async def _prepare(self, topic: str, encoded: Encoded, number: int) -> None:
        self._publisher.flush()
        error = await self._passage.prepare(self._publisher, topic)
        if error is not None:
            raise Unpublishable(
                str(error), encoded, next=error.next, reason="unknown_topic", lsn=0, seq=number
            )
        self._passage.tell_of_age(topic, self._publisher.expired(encoded))

    def _require(self) -> None:
        """Raise what made the publisher fail, if it has."""
        if self._publisher.failed.done():
            raise self._publisher.failed.result()
