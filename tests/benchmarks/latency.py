"""From commit to Kafka at a steady rate of one-row transactions, and what an event costs then.

A row carries the server's clock at its insert, in microseconds; the commit follows at once, and includes the flush of
the WAL. The topic has the broker's append time, which is whole milliseconds rounded down: half of one is added. On one
machine both clocks are the same. The second line is when a consumer had the record in its hands.
"""

from __future__ import annotations

import json
import secrets
import statistics
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from tests.benchmarks import polling
from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.usage import Usage, Watch
from tests.servers.relay import RelayProcess
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.ground import Ground
    from tests.servers.process import Process

HANDS = 2
"""Sessions that write, each at its part of the rate."""

WARM_UP = 3.0
"""Seconds that don't count."""

_WRITE = """
create procedure write(target text, kind text, rows_per_second float8, seconds float8) language plpgsql as $$
declare
  began timestamptz := clock_timestamp();
  n int := 0;
  ahead float8;
begin
  while n < rows_per_second * seconds loop
    ahead := n / rows_per_second - extract(epoch from clock_timestamp() - began);
    if ahead > 0.001 then
      perform pg_sleep(ahead);
    end if;
    n := n + 1;
    execute format('insert into %I (aggregate_type, aggregate_id, event_type, payload) values ($1, $2, $3, $4)',
                   target)
      using kind, (n % 1000)::text, 'OrderPlaced', jsonb_build_object(
        'at', (extract(epoch from clock_timestamp()) * 1000000)::bigint,
        'note', repeat('an order of no importance ', 6));
    commit;
  end loop;
end $$
"""


@dataclass(frozen=True)
class Figures:
    """What one relay did at a rate. Milliseconds; CPU in µs an event, of the relay and of its server process."""

    reader: str
    events: int
    append_p50: float
    append_p99: float
    arrival_p50: float
    arrival_p99: float
    cpu_us: float
    server_us: float


def relay(ground: Ground, rate: int, seconds: float) -> Figures:
    """`cdc-outbox start`."""

    def start(backlog: Backlog, watch: Watch) -> tuple[RelayProcess, Usage]:
        slot = backlog.origin
        process = RelayProcess(ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap, slot=slot)
        pid = eventually(lambda: backlog.walsender(slot), 30, process.text)
        return process, watch.add(pid or 0)

    return _measure(ground, "relay", "outbox", rate, seconds, start)


def polled(ground: Ground, rate: int, seconds: float) -> Figures:
    """The polling relay."""

    def start(backlog: Backlog, watch: Watch) -> tuple[Process, Usage]:
        backlog.connection.execute(polling.TABLE)
        process, pid = polling.start(backlog, ground.kafka.bootstrap)
        return process, watch.add(pid)

    return _measure(ground, "polling relay", "outbox_polled", rate, seconds, start)


def _measure(
    ground: Ground,
    name: str,
    table: str,
    rate: int,
    seconds: float,
    start: Callable[[Backlog, Watch], tuple[Any, Usage]],
) -> Figures:
    shape = Shape("latency", 0, kind=f"live-{secrets.token_hex(2)}", partitions=4)
    ground.topics(shape)
    with Backlog(ground.postgres) as backlog, Watch() as watch:
        backlog.connection.execute(_WRITE)
        process, server = start(backlog, watch)
        usage = watch.add(process.pid)
        arrivals: list[tuple[int, int, int]] = []
        stop = threading.Event()
        listening = threading.Event()
        consumer = threading.Thread(
            target=_consume, args=(ground.kafka.bootstrap, shape, arrivals, listening, stop), daemon=True
        )
        consumer.start()
        assert listening.wait(30), "the consumer has its partitions"
        expected = HANDS * round(rate / HANDS * (seconds + WARM_UP))
        try:
            began = time.time()
            hands = [
                threading.Thread(
                    target=_write, args=(ground, backlog, table, shape, rate, seconds), daemon=True
                )
                for _ in range(HANDS)
            ]
            for hand in hands:
                hand.start()
            for hand in hands:
                hand.join()
            ended = time.time()
            eventually(
                lambda: len(arrivals) >= expected, 60, lambda: f"{len(arrivals)} of {expected} arrived"
            )
        finally:
            process.kill()
            stop.set()
            consumer.join()
    counted = [each for each in arrivals if each[0] / 1e6 >= began + WARM_UP]
    appended = sorted(stamp + 0.5 - at / 1000 for at, stamp, _ in counted)
    arrived = sorted((now - at) / 1000 for at, _, now in counted)
    return Figures(
        name,
        len(counted),
        statistics.median(appended),
        appended[len(appended) * 99 // 100],
        statistics.median(arrived),
        arrived[len(arrived) * 99 // 100],
        usage.between(began + WARM_UP, ended) / len(counted) * 1e6,
        server.between(began + WARM_UP, ended) / len(counted) * 1e6,
    )


def _write(ground: Ground, backlog: Backlog, table: str, shape: Shape, rate: int, seconds: float) -> None:
    with ground.postgres.connect(backlog.name) as connection:
        connection.execute(
            "call write(%s, %s, %s, %s)", (table, shape.kind, float(rate // HANDS), seconds + WARM_UP)
        )


def _consume(
    bootstrap: str,
    shape: Shape,
    arrivals: list[tuple[int, int, int]],
    listening: threading.Event,
    stop: threading.Event,
) -> None:
    """Insert time (µs), append time (ms) and time of arrival (µs) of each record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "fetch.wait.max.ms": 100,
            "enable.auto.commit": False,
        }
    )
    consumer.assign(
        [TopicPartition(shape.topics[0], number, OFFSET_END) for number in range(shape.partitions)]
    )
    for number in range(shape.partitions):
        consumer.get_watermark_offsets(TopicPartition(shape.topics[0], number), timeout=10)
    consumer.poll(0.5)
    listening.set()
    while not stop.is_set():
        # One by one: a batch would be waited for until it is whole.
        record = consumer.poll(0.05)
        if record is None:
            continue
        now = time.time_ns() // 1000
        assert record.error() is None, record.error()
        arrivals.append((json.loads(record.value() or b"{}")["at"], record.timestamp()[1], now))
    consumer.close()
