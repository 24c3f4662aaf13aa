"""Resident memory of the relay: idle, through a huge transaction, and with one huge event."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.offsets import Offsets
from tests.benchmarks.usage import memory
from tests.servers.cache import CHECKOUT
from tests.servers.relay import RelayProcess
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from tests.benchmarks.ground import Ground

MIB = 1 << 20


@dataclass(frozen=True)
class Peak:
    """The largest resident memory through something, and the most that it should be."""

    what: str
    bytes: int
    bar: int


@contextmanager
def without_extras() -> Iterator[dict[str, str]]:
    """An environment in which the relay finds what it needs, and no extra (the client loads codecs, used or not)."""
    with tempfile.TemporaryDirectory() as hidden:
        for extra in ("cramjam", "murmurhash2"):
            Path(hidden, f"{extra}.py").write_text("raise ImportError\n")
        yield {"PYTHONPATH": f"{hidden}:{CHECKOUT}"}


def idle(ground: Ground, seconds: float = 15.0) -> Peak:
    """What is resident once it streams, without extras, after a while of one small event a second."""
    shape = Shape("idle", 1, kind=f"idle-{secrets.token_hex(2)}", partitions=4)
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    with Backlog(ground.postgres) as backlog, without_extras() as environment:
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name),
            ground.kafka.bootstrap,
            slot=backlog.origin,
            env=environment,
        )
        try:
            process.wait_state("streaming", timeout=30)
            before, rounds = offsets.ends(), int(seconds)
            for done in range(1, rounds + 1):
                began = time.monotonic()
                backlog.fill(shape)
                eventually(lambda done=done: offsets.count(before) >= done, 30, "the event")  # type: ignore[misc]
                for path in ("/readyz", "/healthz", "/metrics", "/status"):
                    process.get(path)
                eventually(lambda began=began: time.monotonic() - began >= 1, 5)  # type: ignore[misc]
            return Peak("steady, one event and one scrape a second", memory(process.pid, "VmRSS"), 48 * MIB)
        finally:
            process.close()


def through(ground: Ground, rows: int) -> Peak:
    """The peak through one transaction."""
    shape = Shape(f"one transaction of {rows} rows", 1, rows, kind=f"huge-{secrets.token_hex(2)}")
    return Peak(shape.name, _peak(ground, shape), 96 * MIB)


def outage(ground: Ground, rows: int) -> Peak:
    """The peak while the broker is frozen and a backlog waits, and through its drain."""
    shape = Shape(
        f"a broker that is frozen while {rows} rows wait", rows, kind=f"late-{secrets.token_hex(2)}"
    )
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog:
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap, slot=backlog.origin
        )
        try:
            process.wait_state("streaming", timeout=30)
            backlog.fill(replace(shape, transactions=1))  # the topic must be known before the broker is gone
            eventually(lambda: offsets.count(before) >= 1, 60, process.text)
            ground.kafka.pause()
            try:
                backlog.fill(shape)
                began = time.monotonic()
                eventually(lambda: time.monotonic() - began > 5, 10)
            finally:
                ground.kafka.resume()
            eventually(lambda: offsets.count(before) > rows, 120, process.text)
            return Peak(shape.name, memory(process.pid), 96 * MIB)
        finally:
            process.close()


def event(ground: Ground, megabytes: int) -> Peak:
    """The peak through one event of so many MB, with the limits raised for it."""
    shape = Shape(f"one event of {megabytes} MB", 1, kind=f"event-{secrets.token_hex(2)}", partitions=1)
    limit = str((megabytes + 1) * MIB)
    ground.kafka.create_topic(shape.topics[0], 1, {"max.message.bytes": limit})
    offsets = Offsets(ground.kafka, shape.topics, 1)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog:
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name),
            ground.kafka.bootstrap,
            slot=backlog.origin,
            flags=["--kafka", f"max.request.size={limit}"],
        )
        try:
            process.wait_state("streaming", timeout=30)
            backlog.connection.execute(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
                " values (%s, '1', 'Huge', to_jsonb(repeat('x', %s)))",
                (shape.kind, megabytes * MIB - 1000),
            )
            eventually(lambda: offsets.count(before) >= 1 or not process.running, 60, process.text)
            assert process.running, process.text()
            return Peak(shape.name, memory(process.pid), (64 + 6 * megabytes) * MIB)
        finally:
            process.close()


def _peak(ground: Ground, shape: Shape) -> int:
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap, slot=backlog.origin
        )
        try:
            eventually(
                lambda: offsets.count(before) >= shape.rows or not process.running,
                300,
                process.text,
            )
            assert process.running, process.text()
            return memory(process.pid)
        finally:
            process.close()
