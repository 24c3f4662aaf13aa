"""A reader that costs little: per aggregate one array of append times, and a list of what came twice.

Its topic carries the broker's own append times (`message.timestamp.type=LogAppendTime`), so that a second delivery
tells how old the first one was when the relay was killed.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.servers.wait import eventually

NEVER = -1


@dataclass(frozen=True, slots=True)
class Again:
    """A second delivery: the append times of the first and of this one, in ms since the epoch."""

    key: str
    n: int
    first_ms: int
    again_ms: int


@dataclass(slots=True)
class Aggregate:
    """What came of one key: by counter the time of the first delivery, and the last first delivery."""

    partition: int
    first_ms: array[int] = field(default_factory=lambda: array("q"))
    last: int = 0


class Books:
    """What arrived, in the order of its offsets within each partition."""

    def __init__(self) -> None:
        self.records = 0
        self.distinct = 0
        self.again: list[Again] = []
        self.faults: list[str] = []
        self._aggregates: dict[str, Aggregate] = {}

    def take(self, key: str, n: int, partition: int, offset: int, at_ms: int) -> None:
        """Enter one record."""
        self.records += 1
        known = self._aggregates.get(key)
        if known is None:
            known = self._aggregates[key] = Aggregate(partition)
        if known.partition != partition:
            self.faults.append(f"{key} {n} is in partition {partition}, others in {known.partition}")
        times = known.first_ms
        if n >= len(times):
            times.extend([NEVER] * (n + 1000 - len(times)))
        if times[n] != NEVER:
            self.again.append(Again(key, n, times[n], at_ms))
            return
        times[n] = at_ms
        self.distinct += 1
        if n < known.last:
            self.faults.append(f"{key}: {n} at {partition}/{offset} comes after {known.last}")
        known.last = max(known.last, n)

    def compare(self, truth: Mapping[str, Sequence[int]]) -> list[str]:
        """All that is wrong: disorder, rows that are missing, records of rows that never committed."""
        faults = list(self.faults)
        for key, numbers in truth.items():
            known = self._aggregates.get(key)
            times = known.first_ms if known is not None else ()
            missing = [n for n in numbers if n >= len(times) or times[n] == NEVER]
            if missing:
                faults.append(f"{key}: {len(missing)} missing, the first {min(missing)}")
        for key, known in self._aggregates.items():
            committed = set(truth.get(key, ()))
            invented = [n for n, at in enumerate(known.first_ms) if at != NEVER and n not in committed]
            if invented:
                faults.append(f"{key}: {len(invented)} never committed, the first {invented[0]}")
        return faults


class Tally:
    """Reads a topic from its beginning, in a thread, into the books."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.books = Books()
        self._topic = topic
        self._bootstrap = bootstrap
        self._next = [0] * partitions
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._client = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"tally-{secrets.token_hex(4)}",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 500,
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 50,
                "log_level": 0,
            }
        )
        self._client.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        self._thread = threading.Thread(target=self._guard, daemon=True)
        self._thread.start()

    def _guard(self) -> None:
        try:
            while not self._stop.is_set():
                for message in self._client.consume(1000, 0.2):
                    if message.error() is None:
                        self._take(message)
        except BaseException as error:
            self._error = error
        finally:
            self._client.close()

    def _take(self, message: object) -> None:
        key = message.key().decode()  # type: ignore[attr-defined]  # confluent-kafka has no types
        n = orjson.loads(message.value())["n"]  # type: ignore[attr-defined]
        partition, offset = message.partition(), message.offset()  # type: ignore[attr-defined]
        at_ms = message.timestamp()[1]  # type: ignore[attr-defined]
        self.books.take(key, n, partition, offset, at_ms)
        self._next[partition] = offset + 1

    def check(self) -> None:
        """Raise what the reading thread died of, if it did."""
        if self._error is not None:
            raise self._error

    def read_to_end(self, timeout: float = 120) -> None:
        """Wait until everything that the topic holds now was read."""

        # A client of its own: the reading thread's would make this call wait for its turn, for ever.
        asking = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "ends", "log_level": 0})

        def ends() -> Sequence[int] | None:
            with contextlib.suppress(KafkaException):
                return [
                    asking.get_watermark_offsets(TopicPartition(self._topic, number), timeout=5)[1]
                    for number in range(len(self._next))
                ]
            return None

        goal = eventually(ends, timeout, "the topic's end offsets") or ()
        asking.close()

        def read() -> bool:
            self.check()
            return all(here >= end for here, end in zip(self._next, goal, strict=True))

        eventually(read, timeout, lambda: f"the topic read to {goal}; it is at {self._next}")

    def close(self) -> None:
        """End the reading."""
        self._stop.set()
        self._thread.join(30)
