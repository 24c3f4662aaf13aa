"""Whoever reads the topics: every record, by its id, in the order of arrival."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc_outbox.demo.account import Arrival
from cdc_outbox.demo.mock_cluster import PARTITIONS
from cdc_outbox.demo.stage import PATIENCE
from cdc_outbox.errors import CdcOutboxError

_PAUSE: Final = 0.05


class Subscriber:
    """Reads topics from their beginning. `arrivals` by topic."""

    def __init__(self, bootstrap: str, *topics: str) -> None:
        self.arrivals: dict[str, list[Arrival]] = {topic: [] for topic in topics}
        self._partitions = [
            TopicPartition(topic, number, 0) for topic in topics for number in range(PARTITIONS)
        ]
        self._read: dict[tuple[str, int], int] = {}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "fetch.error.backoff.ms": 50,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )
        self._consumer.assign(self._partitions)

    def read_for(self, seconds: float) -> None:
        """Read whatever comes in that time."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            self._poll(min(left, _PAUSE))

    def read_until(self, done: Callable[[], bool], what: str) -> None:
        """Read until `done`. Raises CdcOutboxError when that takes too long."""
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline:
                raise CdcOutboxError(
                    f"{what} did not happen within {PATIENCE:.0f} s",
                    next="run cdc-outbox demo once more on a quieter machine; if it fails again, please report it",
                )
            self._poll(_PAUSE)

    def read_all(self) -> None:
        """Read everything that the broker has by now."""
        ends = {
            (each.topic, each.partition): self._consumer.get_watermark_offsets(each, timeout=PATIENCE)[1]
            for each in self._partitions
        }
        self.read_until(
            lambda: all(self._read.get(place, 0) >= end for place, end in ends.items()),
            "reading what the broker has",
        )

    def _poll(self, seconds: float) -> None:
        record = self._consumer.poll(seconds)
        if record is None or record.error() is not None:  # while the broker is away
            return
        topic, partition, offset = str(record.topic()), record.partition() or 0, record.offset() or 0
        self._read[topic, partition] = offset + 1
        headers = dict(record.headers() or [])
        self.arrivals[topic].append(
            Arrival(_text(headers["id"]), _text(record.key()), json.loads(_text(record.value()))["number"])
        )

    def close(self) -> None:
        """Leave the broker."""
        try:
            self._consumer.close()
        except KafkaException:
            return  # it is gone already


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
