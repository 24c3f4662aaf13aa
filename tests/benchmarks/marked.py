"""What marks cost: a backlog drained with `--mark update` and without, and a steady load with it and without.

The table has what a polling relay has: a status and a time, and a partial index on rows that wait, so that each mark
changes an index. A drain shows what noting the keys costs the relay; the steady load what the marks cost the server.
"""

from __future__ import annotations

import secrets
import statistics
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.benchmarks import drain, latency
from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.usage import Watch
from tests.servers.relay import RelayProcess
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from tests.benchmarks.ground import Ground

_COLUMNS = """
alter table outbox add column status text not null default 'pending', add column sent_at timestamptz;
create index outbox_waiting on outbox (created_at) where status = 'pending';
"""
_ANEW = "update outbox set status = 'pending', sent_at = null where status <> 'pending'"
_MARKED = "select count(*) from outbox where status = 'sent' and sent_at is not null"
_MARKER = "select pid from pg_stat_activity where application_name ~ '^cdc-outbox/.*/mark' and datname = %s"

FLAGS = {"marked": ("--mark", "update"), "unmarked": ()}


@dataclass(frozen=True)
class Drains:
    """Medians with and without, in turns over the same backlog; and how fast rows were marked."""

    marked: drain.Figures
    unmarked: drain.Figures
    marks_per_second: float

    @property
    def rate(self) -> float:
        """Events a second with marks, of those without."""
        return self.marked.rate / self.unmarked.rate

    @property
    def cpu(self) -> float:
        """CPU of the relay an event with marks, of that without."""
        return self.marked.cpu_us / self.unmarked.cpu_us


@dataclass(frozen=True)
class Load:
    """A steady load: CPU in µs an event, bytes of WAL an event."""

    what: str
    events: int
    relay_us: float
    walsender_us: float
    session_us: float
    wal_bytes: float


def drains(ground: Ground, shape: Shape, *, repeat: int) -> Drains:
    """Drain `repeat` times with and without marks, over a Unix socket."""
    runs: dict[str, list[drain.Figures]] = {"marked": [], "unmarked": []}
    rates = []
    with Backlog(ground.postgres) as backlog:
        backlog.connection.execute(_COLUMNS)
        backlog.fill(shape)
        for turn in range(repeat):
            for kind in ("marked", "unmarked") if turn % 2 else ("unmarked", "marked"):
                figures = drain.relay(ground, backlog, shape, "unix", flags=FLAGS[kind])
                runs[kind].append(replace(figures, reader=kind))
            backlog.connection.execute(_ANEW)
            backlog.connection.execute("vacuum analyze outbox")
            rates.append(_rate(ground, backlog, shape))
            backlog.connection.execute(_ANEW)
            backlog.connection.execute("vacuum analyze outbox")
    return Drains(drain.median(runs["marked"]), drain.median(runs["unmarked"]), statistics.median(rates))


def _rate(ground: Ground, backlog: Backlog, shape: Shape) -> float:
    """Rows marked a second, from the first mark on."""
    with backlog.slot() as slot:
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name),
            ground.kafka.bootstrap,
            slot=slot,
            flags=FLAGS["marked"],
        )
        try:
            eventually(lambda: backlog.value(_MARKED), drain.LIMIT, process.text)
            began, first = time.monotonic(), backlog.value(_MARKED)
            eventually(lambda: backlog.value(_MARKED) >= shape.rows, drain.LIMIT, process.text)
            seconds = time.monotonic() - began
            assert process.terminate()[0] == 0
        finally:
            process.close()
    return float((shape.rows - first) / seconds)


def load(ground: Ground, what: str, rate: int, seconds: float) -> Load:
    """One-row transactions at a rate."""
    shape = Shape("load", 0, kind=f"load-{secrets.token_hex(2)}")
    ground.topics(shape)
    with Backlog(ground.postgres) as backlog, Watch() as watch:
        backlog.connection.execute(_COLUMNS)
        backlog.connection.execute(latency._WRITE)
        slot = backlog.origin
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap, slot=slot, flags=FLAGS[what]
        )
        try:
            relay = watch.add(process.pid)
            walsender = watch.add(eventually(lambda: backlog.walsender(slot), 30, process.text) or 0)
            write = "call write('outbox', %s, %s, %s)"
            backlog.connection.execute(write, (shape.kind, float(rate), latency.WARM_UP))
            found = backlog.connection.execute(_MARKER, (backlog.name,)).fetchall()
            session = watch.add(found[0][0]) if found else None
            lsn, began = backlog.value("select pg_current_wal_insert_lsn()"), time.time()
            backlog.connection.execute(write, (shape.kind, float(rate), seconds))
            events = round(rate * seconds)
            if session is not None:
                total = backlog.value("select count(*) from outbox")
                eventually(lambda: backlog.value(_MARKED) >= total, 60, process.text)
            else:
                time.sleep(2)  # belongs to the span that is measured, as the marks of the other run do
            ended = time.time()
            wal = backlog.value("select pg_current_wal_insert_lsn() - %s::pg_lsn", (lsn,))
            assert process.terminate()[0] == 0
        finally:
            process.close()
    each = 1e6 / events
    return Load(
        what,
        events,
        relay.between(began, ended) * each,
        walsender.between(began, ended) * each,
        session.between(began, ended) * each if session is not None else 0.0,
        float(wal) / events,
    )
