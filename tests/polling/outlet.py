"""How the polling relay publishes: librdkafka, acks of all, a key for each row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import Producer

SENT_BY = "sent-by"
"""The header that names the relay. A message without it is none of a polling relay's."""


class Row(NamedTuple):
    """A row that was claimed: the table's id, the id that consumers know, and how often it was tried before."""

    id: int
    event_id: str
    topic: str
    key: str
    payload: str
    attempts: int


class Outlet:
    """One producer. `partitioner` by librdkafka's name: `murmur2_random` is Java's, `consistent_random` its own."""

    def __init__(self, bootstrap: str, *, partitioner: str, name: str) -> None:
        self._name = name
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "partitioner": partitioner,
                "linger.ms": 2,
                "delivery.timeout.ms": 10_000,
                "log_level": 0,
            }
        )

    def publish(self, rows: Sequence[Row]) -> dict[int, str]:
        """Send rows in their order and wait for the broker; the table's ids of those that failed, and why."""
        failed: dict[int, str] = {}

        def delivered(id_: int, error: object, _message: object) -> None:
            if error is not None:
                failed[id_] = str(error)

        for row in rows:
            self._producer.produce(
                row.topic,
                key=row.key,
                value=row.payload,
                headers=[("id", row.event_id), (SENT_BY, self._name)],
                on_delivery=partial(delivered, row.id),
            )
            self._producer.poll(0)
        self._producer.flush()
        return failed
