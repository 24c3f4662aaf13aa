"""Batches for Kafka: order per partition, and no linger.

**When to send.** A row is appended to the open batch of its partition (its *lane*). An open batch leaves when nothing
is in flight, as Nagle's algorithm has it: a lone event leaves at once, and under load batches grow by themselves
while the last request is out. A full batch leaves as soon as its lane is free. The client puts what it has for a broker
into one request: so no more is out at a time than a request may hold. In a backlog rows are late anyway:
there batches may grow for a part of that time before they leave, since each request and each batch has its price.

**Order.** A lane hands the client one batch at a time, and the next only after the broker has confirmed it. The client
would take more, but a batch that fails for good leaves a hole, and a broker that knows nothing of this producer
yet accepts the batch behind the hole. On any delivery error the whole publisher is thrown away.

**Outages.** With idempotence the client retries for ever, and its sequence numbers let no retry appear twice; so
an absent broker is waited for. Where all brokers come back under other addresses, the bootstrap list finds them.

**Too large.** A size limit rejects a whole batch and doesn't name the record. So a lane's batches are as large as we,
the topic (where it may be read) and what was learnt allow; and a lane whose batch was rejected goes on, in a new
session, with half of its bytes, down to a single record. Only that one is poison.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError

from cdc_outbox import log
from cdc_outbox.ended import ended
from cdc_outbox.errors import CdcOutboxError, ConfigError, Held, KafkaUnavailable
from cdc_outbox.kafka import client, delivery_errors, expiry, options, topics
from cdc_outbox.kafka.lane import Batch, Lane
from cdc_outbox.kafka.partitioner import HASHES, spread
from cdc_outbox.kafka.records import Records, size_of
from cdc_outbox.publisher import BusRefused, StartOver, TopicUnknown, Unpublishable
from cdc_outbox.table.unfit import LEAVE_OUT
from cdc_outbox.tally import Tally, reason

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from aiokafka import AIOKafkaProducer

    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.backoff import Backoff
    from cdc_outbox.event import Encoded
    from cdc_outbox.publisher import Deliveries
    from cdc_outbox.settings import KafkaSettings

_log = log.get(__name__)

ROUND: Final = 0.02
"""Seconds after which open batches stop waiting for what is in flight (a partition without a leader, say)."""

LONGEST_ROUND: Final = 0.5
"""The most of that in a backlog, where batches may grow though nothing is in flight."""

WORTH_SENDING: Final = 64 * 1024
"""Bytes a lane, on average, that are worth a request in a backlog: a request and each of its batches have a price."""

MOST_GATHERED: Final = 12 * 1024 * 1024
"""Bytes that are worth a request in any case."""

WATCH: Final = 1.0
"""Seconds between looks at what the cluster says of our topics."""

STALLED: Final = 3.0
"""Seconds without a confirmation after which the bootstrap list is asked for other addresses."""

DOUBT: Final = 3.0
"""Seconds for which a topic may be missing from the cluster's answers: a broker that has just come back knows none."""

GROW_AFTER: Final = 600.0
"""Seconds until a limit that was learnt is doubled: the topic's may have been raised."""

SEQUENCE_LIMIT: Final = 2**31 - 2**24
"""Records of a partition that one producer sends: its sequence numbers wrap wrongly after 2^31."""

_ASK_AGAIN: Final = 0.1
_OVERHEAD: Final = 96
"""Bytes of memory that a record takes beside its bytes in the batch, about."""


class KafkaPublisher:
    """An idempotent producer for the time of one session. See `cdc_outbox.publisher.Publisher`."""

    def __init__(
        self, settings: KafkaSettings, ledger: Ledger, deliveries: Deliveries, tally: Tally | None = None
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._deliveries = deliveries
        self._tally = tally or Tally()
        self._replay_until = deliveries.until
        self._hash = HASHES[settings.partitioner]
        self._lanes: dict[str, list[Lane]] = {}
        self._lifetimes: dict[str, float | None] = {}
        self._waiting: list[Lane] = []
        self._submissions: deque[Batch] = deque()
        self._submit = asyncio.Event()
        self._progress = asyncio.Event()
        self._out: dict[Batch, float] = {}
        self._out_bytes = 0
        self._request = options.request_size(settings)
        self._crowded: deque[Lane] = deque()
        self._patience = 0.0
        self._round_started = 0.0
        self._round_timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._max_record = options.max_request_size(settings)
        self._max_batch = options.batch_size(settings)
        self.failed: asyncio.Future[CdcOutboxError] = asyncio.get_running_loop().create_future()
        self.away: CdcOutboxError | None = None
        self.inflight_bytes = 0
        self._out_events = 0
        self.unanswered = 0
        self.published: dict[str, int] = {}
        self.committed_us = 0
        self._producer: AIOKafkaProducer = client.producer(settings)
        self._codec = options.codec(settings)

    async def start(self) -> None:
        """Connect to the cluster.

        Raises KafkaUnavailable when no broker answers, BusRefused where credentials or protocol are wrong.
        """
        await client.start(self._producer, self._settings)
        self._go_on_with(self._submitter(), "kafka-submitter")
        self._go_on_with(self._watch(), "kafka-watch")

    def start_later(self, why: KafkaUnavailable | BusRefused, backoff: Backoff) -> None:
        """After `start` failed: go on trying. Until it succeeds, `away` is the reason, and no topic is known."""
        self._not_yet(why)
        self._go_on_with(self._reach(backoff), "kafka-start")

    def _not_yet(self, why: KafkaUnavailable | BusRefused | ConfigError) -> None:
        kind = KafkaUnavailable if isinstance(why, KafkaUnavailable) else Held
        self.away = kind(str(why), next=why.next)

    async def _reach(self, backoff: Backoff) -> None:
        while self.away is not None:
            await asyncio.sleep(backoff.seconds())
            await client.stop(self._producer, within=0.0)  # what has failed to start isn't started again
            try:
                self._producer = client.producer(self._settings)
                await self.start()
            except (KafkaUnavailable, BusRefused, ConfigError) as error:
                self._not_yet(error)
            else:
                self.away = None
                _log.info("Kafka is reached", bootstrap_servers=self._settings.bootstrap_servers)

    def _go_on_with(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, CdcOutboxError):  # a file that the settings name can't be used any more, say
            self._fail(error)
        elif error is not None:
            self._fail(KafkaUnavailable(f"the Kafka client failed: {error!r}", next="please report it"))

    async def prepare(self, topic: str) -> None:
        """Make lanes for a topic: look it up, and create it where that was asked for.

        Raises TopicMissing or Held while the cluster doesn't have it or forbids it, KafkaUnavailable.
        """
        if self.away is not None:
            raise type(self.away)(str(self.away), next=self.away.next)
        found = await topics.look_up(self._producer, self._settings, topic)
        self._lifetimes[topic] = found.lifetime
        if topic in self._lanes:
            await self.settled()  # keys move to other partitions: nothing of them may still be under way
        place, learnt = self._deliveries.place, self._deliveries.limits
        limit = self._max_batch if found.max_bytes is None else min(self._max_batch, found.max_bytes)
        self._lanes[topic] = [
            Lane(topic, number, place(topic, number, found.partitions), limit, learnt.get((topic, number)))
            for number in range(found.partitions)
        ]

    def expired(self, encoded: Encoded) -> str | None:
        """That the row is older than its topic, which was prepared, keeps records, in words; None where it isn't."""
        topic, _, _, _, written_ms, _ = encoded
        return expiry.expired(topic, written_ms, self._lifetimes[topic], self._settings)

    def publish(self, encoded: Encoded, lsn: int, seq: int) -> None:
        """Append a row to its lane. Raises TopicUnknown, PoisonEvent."""
        topic, number, key, value, timestamp, headers = encoded
        lanes = self._lanes.get(topic)
        if lanes is None:
            raise TopicUnknown(topic)
        if number is None:
            lane = lanes[(spread(lsn, seq) if key is None else self._hash(key)) % len(lanes)]
        elif 0 <= number < len(lanes):
            lane = lanes[number]
        else:
            raise Unpublishable(
                f"it names partition {number}, and topic {topic} has {len(lanes)}",
                encoded,
                next=f"add partitions to {topic}, or {LEAVE_OUT}",
                reason="partition",
                lsn=lsn,
                seq=seq,
            )
        if lsn <= self._replay_until and (lsn, seq) <= lane.delivered:
            return
        batch = lane.open
        if batch is None:
            batch = self._open(lane, encoded, lsn, seq)
        # A first record always fits.
        while (appended := batch.put(batch.count, timestamp, key=key, value=value, headers=headers)) is None:
            batch = self._open_next(lane, batch, encoded, lsn, seq)
        batch.last_lsn = lsn
        batch.last_seq = seq
        batch.count += 1
        size = appended.size + _OVERHEAD
        batch.bytes += size
        self.inflight_bytes += size

    def _open(self, lane: Lane, encoded: Encoded, lsn: int, seq: int) -> Batch:
        # A batch refuses what doesn't fit, but for its first record: only that one has to be measured.
        size = size_of(encoded)
        if size > self._max_record:
            raise Unpublishable(
                delivery_errors.oversized(size, self._max_record),
                encoded,
                next=delivery_errors.room_for(lane.topic, size, self._settings),
                reason="too_large",
                lsn=lsn,
                seq=seq,
            )
        if lane.max_bytes < lane.most and time.monotonic() - lane.learnt_at > GROW_AFTER:
            self._learn(lane, min(lane.most, lane.max_bytes * 2))
        pin = self._ledger.pin(self.committed_us)
        batch = Batch(lane, Records(lane.max_bytes, self._codec), pin, (lsn, seq))
        lane.open = batch
        if lane.out is None and not lane.full:
            self._waiting.append(lane)
        return batch

    def _learn(self, lane: Lane, limit: int) -> None:
        lane.max_bytes, lane.learnt_at = limit, time.monotonic()
        self._deliveries.limits[lane.topic, lane.number] = limit, lane.learnt_at

    def _open_next(self, lane: Lane, batch: Batch, encoded: Encoded, lsn: int, seq: int) -> Batch:
        self._close(lane, batch)
        return self._open(lane, encoded, lsn, seq)

    def _close(self, lane: Lane, batch: Batch) -> None:
        """The open batch is full: it leaves as soon as its lane is free."""
        batch.closed_us = self.committed_us
        lane.open = None
        lane.full.append(batch)
        if lane.out is None and len(lane.full) == 1:
            self._crowded.append(lane)
            self._send_crowded()

    def flush(self, *, late: float = 0.0) -> None:
        """Send open batches, if nothing is in flight or the round has lasted too long.

        `late`: in a backlog, the seconds that rows are late by. Batches may grow for a part of that.
        """
        self._patience = min(late / 4, LONGEST_ROUND)
        self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        now = time.monotonic()
        lasted = now - self._round_started
        limit = max(ROUND, self._patience)
        if lasted < limit and (
            self._out or (self._patience and self.inflight_bytes - self._out_bytes < self._enough())
        ):
            if self._round_timer is None:
                loop = asyncio.get_running_loop()
                self._round_timer = loop.call_later(limit - lasted, self._end_round)
            return
        self._round_started = now
        waiting, self._waiting = self._waiting, []
        for lane in waiting:
            batch = lane.open
            if batch is not None and lane.out is None and not lane.full:
                self._close(lane, batch)

    def _enough(self) -> int:
        """Bytes in open batches that make a request worth its price, in a backlog."""
        return min(len(self._waiting) * WORTH_SENDING, MOST_GATHERED)

    def _end_round(self) -> None:
        self._round_timer = None
        self._flush()

    def _send_crowded(self) -> None:
        """Send from the lanes that are free and have something to send, as much as a request may hold."""
        crowded = self._crowded
        while crowded and (not self._out or self._out_bytes + crowded[0].full[0].bytes <= self._request):
            lane = crowded.popleft()
            self._send(lane, lane.full.popleft())

    def _send(self, lane: Lane, batch: Batch) -> None:
        lane.out = batch
        self._out[batch] = time.monotonic()
        self._out_events += batch.count
        self._out_bytes += batch.bytes
        batch.size = batch.records.size()
        batch.records.seal(batch.count)
        lane.sent += batch.count
        if lane.sent > SEQUENCE_LIMIT:
            self._fail(
                StartOver(f"a new producer takes over before sequence numbers of {lane.topic} run out")
            )
        self._submissions.append(batch)
        self._submit.set()

    async def _submitter(self) -> None:
        """Hand batches to the client. It doesn't wait there: topics are known and each lane is free."""
        submissions, send = self._submissions, self._producer.send_batch
        partitions = self._producer.client.cluster.partitions_for_topic
        while True:
            await self._submit.wait()
            self._submit.clear()
            while submissions:
                batch = submissions.popleft()
                lane = batch.lane
                if await self._is_gone(lane.topic, lane.number):
                    # The client would ask the cluster for this topic by name, which may create it.
                    self._fail(topics.missing(lane.topic, self._settings))
                    return
                lanes, count = self._lanes.get(lane.topic), len(partitions(lane.topic) or ())
                if lanes is not None and count != len(lanes):
                    self._fail(topics.changed(lane.topic, len(lanes), count, self._settings))
                    return
                try:
                    confirmation = await send(batch.records, lane.topic, partition=lane.number)
                except KafkaError as error:
                    self._tally.publish_errors[reason(error)] += 1
                    self._fail(delivery_errors.translate(error, lane.topic, self._settings))
                    return
                self.unanswered += 1
                confirmation.add_done_callback(partial(self._confirmed, batch))

    async def _is_gone(self, topic: str, number: int) -> bool:
        """Whether the cluster has no such partition, asked again for a while."""
        kafka = self._producer.client
        deadline = time.monotonic() + DOUBT
        while number not in (kafka.cluster.partitions_for_topic(topic) or ()):
            left = deadline - time.monotonic()
            if left <= 0:
                return True
            with suppress(TimeoutError, KafkaError):
                async with asyncio.timeout(left):
                    await kafka.force_metadata_update()
                    await asyncio.sleep(_ASK_AGAIN)
        return False

    def _confirmed(self, batch: Batch, confirmation: asyncio.Future[object]) -> None:
        lane = batch.lane
        error = None if confirmation.cancelled() else confirmation.exception()
        if error is not None:
            self._rejected(batch, error)
            return
        if confirmation.cancelled() or confirmation.result() is None:
            # A broker that has confirmed says where: this one the client has dropped.
            self._fail(
                KafkaUnavailable(
                    f"the Kafka client dropped a batch for {lane.topic}", next="please report it"
                )
            )
            return
        self.unanswered -= 1
        self._ledger.settle(batch.pin)
        lane.delivered = (batch.last_lsn, batch.last_seq)
        self._deliveries.settle(lane.topic, lane.number, lane.delivered)
        self.published[lane.topic] = self.published.get(lane.topic, 0) + batch.count
        self.inflight_bytes -= batch.bytes
        self._out_bytes -= batch.bytes
        self._out_events -= batch.count
        since = self._out.pop(batch)
        commits_us = batch.pin.committed_us, batch.closed_us
        self._tally.confirmed(lane.topic, batch.count, batch.size, since=since, commits_us=commits_us)
        lane.out = None
        if lane.full:
            self._crowded.append(lane)
        elif lane.open is not None:
            self._waiting.append(lane)
        self._send_crowded()
        self._flush()
        self._progress.set()

    def _rejected(self, batch: Batch, error: BaseException) -> None:
        lane = batch.lane
        self._tally.publish_errors[reason(error)] += 1
        if delivery_errors.is_refusal(error):
            self.unanswered -= 1
        if not isinstance(error, KafkaError):
            self._fail(KafkaUnavailable(f"the Kafka client failed: {error!r}", next="please report it"))
        elif not delivery_errors.concerns_records(error):
            self._fail(delivery_errors.translate(error, lane.topic, self._settings))
        elif batch.count > 1:
            # A size limit is the topic's; what else may be wrong with a record is its own matter.
            alike = self._lanes.get(lane.topic, [lane]) if delivery_errors.is_too_large(error) else [lane]
            for each in alike:
                self._learn(each, min(each.max_bytes, batch.size // 2))
            self._fail(
                StartOver(
                    f"{lane.topic}[{lane.number}] refused a batch of {batch.count} records and {batch.size} bytes "
                    f"({type(error).__name__}): they go out in halves"
                )
            )
        else:
            place = lane.topic, lane.number, *batch.first
            self._fail(delivery_errors.refused(error, *place, batch.size, self._settings))

    def _fail(self, error: CdcOutboxError) -> None:
        if not self.failed.done():
            self.failed.set_result(error)
        self._progress.set()

    async def room(self) -> None:
        """Wait until something in flight was confirmed, or everything failed."""
        self._progress.clear()
        await self._progress.wait()

    async def settled(self) -> None:
        """Wait until everything that was published is confirmed.

        Raises the error that makes it impossible.
        """
        while self._ledger.unsettled:
            if self.failed.done():
                raise self.failed.result()
            self.flush()
            await self.room()

    @property
    def inflight_events(self) -> int:
        """Rows in batches of any kind; it looks at each lane, so it isn't for the hot path."""
        lanes = [lane for lanes in self._lanes.values() for lane in lanes]
        still_here = sum(batch.count for lane in lanes for batch in (*lane.full, lane.open) if batch)
        return self._out_events + still_here

    @property
    def silent_for(self) -> float:
        """Seconds for which the oldest batch that is out has waited for its confirmation; 0 with nothing out."""
        return time.monotonic() - next(iter(self._out.values())) if self._out else 0.0

    async def _watch(self) -> None:
        """Notice topics that have gone, partitions that were added, and brokers that have come back elsewhere."""
        cluster = self._producer.client.cluster
        while True:
            await asyncio.sleep(WATCH)
            for topic, lanes in list(self._lanes.items()):
                known = cluster.partitions_for_topic(topic)
                if known is not None and len(known) == len(lanes):
                    continue
                if known is not None:
                    self._fail(topics.changed(topic, len(lanes), len(known), self._settings))
                    return
                if any(lane.out is not None or lane.open is not None or lane.full for lane in lanes):
                    if not await self._is_gone(topic, 0):
                        continue
                    # The client would wait for it until it gives up; there may be another topic of that name by then.
                    self._fail(topics.missing(topic, self._settings))
                    return
                del self._lanes[topic]  # the next row asks for it again
            if self.silent_for > STALLED:
                await client.bootstrap_again(self._producer, self._settings)

    def halt(self, error: CdcOutboxError) -> None:
        """Fail, and let nothing leave any more, not even what is under way."""
        self._fail(error)
        for task in self._tasks:
            task.cancel()
        client.halt(self._producer)

    async def stop(self, *, within: float) -> None:
        """End the producer; what isn't confirmed by then has an unknown outcome."""
        if self._round_timer is not None:
            self._round_timer.cancel()
        await ended(*self._tasks)
        await client.stop(self._producer, within=within)
