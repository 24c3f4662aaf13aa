"""Where an event goes at Kafka, what keeps it from there, and whether it is there."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.kafka.placement import Placement
from cdc_outbox.kafka.reading import Place, Span, reading
from cdc_outbox.repair.whereabouts import AFTER_ALL, ROWS, SEARCH, Delivery, Event
from cdc_outbox.table.raw import SOURCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_outbox.repair.books import IdFrom
    from cdc_outbox.settings import KafkaSettings

EARLY: Final = 60_000
"""Milliseconds before the time that the row gives, from which on the topic is searched."""

NOT_THERE: Final = "not in the topic"

_UNTIL_FOUND: Final = (Delivery.UNCONFIRMED, Delivery.LEFT_OUT, Delivery.PASSED, Delivery.UNKNOWN)
"""What holds until the event is found in the topic: then it was delivered."""

_AHEAD: Final = (Delivery.UNCONFIRMED, Delivery.WAITING)
"""What holds of an event that a relay is yet to send, where nothing keeps it from that."""


async def placement(settings: KafkaSettings, told: Callable[[str], None]) -> Placement:
    """The cluster's choice of partitions; `told` hears why there is none, where it can't be reached."""
    cluster = Placement(settings)
    try:
        await cluster.look()
    except CdcOutboxError as error:
        told(f"partitions are not shown: {error}")
    return cluster


async def placed(event: Event, placement: Placement) -> Event:
    """With its partition, where the cluster was reached, and what keeps it from getting there.

    Without a key the partition depends on the place in the stream.
    """
    message, here = event.message, event.in_slot
    if message is None:
        return event
    lsn, seq = (here.lsn, here.seq) if here is not None else (0, 0)
    partition = await placement.of(message, lsn, seq)
    known = message[1] is not None or message[2] is not None or here is not None
    event = replace(event, partition=partition if known else None)
    if event.delivery not in _AHEAD:
        return event
    streamed = [header for header in message[5] if header[0] != SOURCE]
    return replace(event, obstacle=await placement.obstacle((*message[:5], streamed)))


def stuck(event: Event) -> Event:
    """With the way out as the next step, where no relay can send the event as things are."""
    hindrance = event.poison or event.obstacle
    if hindrance is None or event.delivery not in _AHEAD:
        return event
    steps = [hindrance.next, f"then {event.next}"] if event.next else [hindrance.next]
    return replace(event, said=f"{event.said}; as things are it can't be sent", next="; ".join(steps))


async def sought(settings: KafkaSettings, event: Event, ids_from: Sequence[IdFrom]) -> Event:
    """With its place in the topic, from about the time that its row gives on. What is there may be there twice.

    Another relay may have chosen the partition in its own way, and a key's partition is another one since the topic got
    more of them: then all are searched.
    """
    message = event.message
    if message is None:
        return event
    topic, _, _, _, ms, headers = message
    wanted = next(value for name, value in headers if name == "id")
    async with reading(settings) as topics:
        partitions = range((await topics.topics()).get(topic, 0))
        likely = [event.partition] if event.partition in partitions and not event.sent_elsewhere else []
        count, until = 0, time.monotonic() + SEARCH
        for numbers in (likely, [number for number in partitions if number not in likely]):
            places = [Place(topic, number) for number in numbers if number is not None]
            begins = await topics.at(places, ms - EARLY if event.created_us is not None else 0)
            ends = await topics.ends(places)
            spans = [Span(place, begins[place], ends[place]) for place in places]
            async for place, records in topics.records(spans, stalled=SEARCH):
                for record in records:
                    if ("id", wanted) in record.headers or any(find(record) == wanted for find in ids_from):
                        return replace(
                            event, partition=place.partition, offset=record.offset, searched="found"
                        )
                count += len(records)
                if count >= ROWS or time.monotonic() > until:
                    return replace(event, searched=f"not among the {count} records that were looked at")
    return replace(event, searched=NOT_THERE if partitions else f"there is no topic {topic}")


def concluded(event: Event, event_id: str, again: str) -> Event:
    """With what the topic adds to how far it has come; `again`: the command that sends it again."""
    if event.offset is not None:
        said = f"found at offset {event.offset}"
        if event.delivery in _UNTIL_FOUND:
            return replace(event, delivery=Delivery.DELIVERED, said=said, next="")
        return replace(event, said=f"{event.said}, and {said}") if event.sent_elsewhere else event
    named = shlex.quote(event_id)
    if event.sent_elsewhere:
        step = f"say where its messages have the id: cdc-outbox find --in-topic --id-from header:NAME {named}"
        return replace(event, next=step)
    if event.delivery is Delivery.LEFT_OUT:
        return replace(event, next=f"{AFTER_ALL}: {again}")
    if event.delivery is Delivery.PASSED:
        return replace(event, next=f"send it again: {again}")
    if event.delivery is Delivery.DELIVERED and event.searched == NOT_THERE:
        passed = "it was passed over, as in a gap that was accepted; send it again"
        return replace(event, next=f"if the topic keeps its messages for that long, {passed}: {again}")
    return event
