"""How fast a backlog drains: the relay, a reader that throws away, `pg_recvlogical`, each on its own copy of a slot.

One run after the other on the same WAL, over the same kind of socket, in turns: on a shared machine only a ratio of
neighbours means something.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks import polling
from tests.benchmarks.backlog import PUBLICATION, Backlog, Shape
from tests.benchmarks.offsets import Offsets
from tests.benchmarks.usage import Usage, Watch, memory
from tests.servers.cache import CHECKOUT
from tests.servers.process import Process
from tests.servers.relay import RelayProcess, clean_environment
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.ground import Ground

PATIENCE = {"unix": 0.0002, "tcp": 0.02}
"""Seconds between the reader's reads, by kind of socket: the best of those that were tried."""

_PENDING = """
insert into outbox_polled (aggregate_type, aggregate_id, event_type, payload)
select %s, md5((n * 7919::bigint %% %s)::text)::uuid::text, 'OrderPlaced',
       ('{"n": ' || lpad(n::text, 9, '1') || ', "note": "' || repeat('an order of no importance ', 6)
        || '", "total": 12345}')::jsonb
from generate_series(1, %s) as n
"""

LIMIT = 300.0
"""Seconds after which a drain counts as stuck."""


@dataclass(frozen=True)
class Figures:
    """One drain, or the median of several."""

    reader: str
    socket: str
    events: int
    seconds: float
    cpu_us: float
    walsender_us: float
    peak_bytes: int
    extra: int = 0
    """Records that came twice, which none may in a quiet drain."""

    @property
    def rate(self) -> float:
        return self.events / self.seconds


def median(runs: list[Figures]) -> Figures:
    """The median of each figure."""
    first = runs[0]
    return Figures(
        first.reader,
        first.socket,
        first.events,
        statistics.median(run.seconds for run in runs),
        statistics.median(run.cpu_us for run in runs),
        statistics.median(run.walsender_us for run in runs),
        max(run.peak_bytes for run in runs),
        max(run.extra for run in runs),
    )


def document(figures: Figures) -> dict[str, object]:
    """For JSON."""
    return {**asdict(figures), "events_per_second": round(figures.rate)}


def relay(
    ground: Ground,
    backlog: Backlog,
    shape: Shape,
    socket: str,
    flags: tuple[str, ...] = (),
    start: Callable[..., RelayProcess] = RelayProcess,
) -> Figures:
    """`cdc-outbox start`, from its first append to its last."""
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    began = time.time()
    with backlog.slot() as slot, Watch() as watch:
        process = start(ground.dsn(backlog.name, socket), ground.kafka.bootstrap, slot=slot, flags=flags)
        try:
            usage = watch.add(process.pid)
            walsender = _walsender(watch, backlog, slot, lambda: None if process.running else process.text())
            eventually(
                lambda: offsets.count(before) >= shape.rows or not process.running,
                LIMIT,
                lambda: f"the backlog drained:\n{process.text()}",
            )
            assert process.running, process.text()
            walsender.take()
            used, peak = walsender.total, memory(process.pid)
            code, _ = process.terminate()
            assert code == 0, process.text()
        finally:
            process.close()
    span = offsets.span(began)
    return Figures(
        "relay",
        socket,
        shape.rows,
        span.seconds,
        usage.between(span.first, span.last) / shape.rows * 1e6,
        used / shape.rows * 1e6,
        peak,
        offsets.count(before) - shape.rows,
    )


def reader(ground: Ground, backlog: Backlog, shape: Shape, socket: str) -> Figures:
    """The reader that throws away."""
    command = [sys.executable, "-m", "tests.benchmarks.reader", "--publication", PUBLICATION]
    command += ["--rows", str(shape.rows), "--pause", str(PATIENCE[socket])]
    with backlog.slot() as slot, Watch() as watch:
        environment = clean_environment({"BENCHMARK_DSN": ground.dsn(backlog.name, socket)})
        process = Process([*command, "--slot", slot], env=environment, pipes=True, cwd=CHECKOUT)
        usage = watch.add(process.pid)
        walsender = _walsender(watch, backlog, slot, lambda: _end_of(process))
        out, err = process.popen.communicate(timeout=LIMIT)
        assert process.exit_code == 0, err.decode()
    told = json.loads(out)
    assert told["rows"] == shape.rows, told
    return Figures(
        "reads and throws away",
        socket,
        shape.rows,
        told["last"] - told["first"],
        usage.between(told["first"], told["last"]) / shape.rows * 1e6,
        walsender.total / shape.rows * 1e6,
        told["peak_bytes"],
    )


def recvlogical(ground: Ground, backlog: Backlog, shape: Shape, socket: str) -> Figures:
    """`pg_recvlogical -f /dev/null`. Raises FileNotFoundError with the places where it was looked for."""
    program = _pg_recvlogical(ground)
    with backlog.slot() as slot, Watch() as watch:
        command: list[str | Path] = [program, "--start", "--no-loop", "-S", slot, "-f", "/dev/null"]
        command += ["-o", "proto_version=1", "-o", f'publication_names="{PUBLICATION}"']
        command += ["--endpos", backlog.end]
        command += ["-d", ground.dsn(backlog.name, socket)]
        process = Process(command, env=dict(os.environ), pipes=True)
        usage = watch.add(process.pid)
        walsender = _walsender(watch, backlog, slot, lambda: _end_of(process))
        began = time.time()
        _, err = process.popen.communicate(timeout=LIMIT)
        ended = time.time()
        assert process.exit_code == 0, err.decode()
    return Figures(
        "pg_recvlogical -f /dev/null",
        socket,
        shape.rows,
        ended - began,
        usage.total / shape.rows * 1e6,
        walsender.total / shape.rows * 1e6,
        0,
    )


def polled(ground: Ground, rows: int) -> Figures:
    """The polling relay, with as many pending rows of its own table."""
    shape = Shape("polled", rows, kind=f"polled-{secrets.token_hex(2)}")
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog, Watch() as watch:
        backlog.connection.execute(polling.TABLE)
        backlog.connection.execute(_PENDING, (shape.kind, shape.keys, rows))
        backlog.connection.execute("analyze outbox_polled")
        began = time.time()
        process, pid = polling.start(backlog, ground.kafka.bootstrap)
        try:
            usage, server = watch.add(process.pid), watch.add(pid)
            eventually(
                lambda: offsets.count(before) >= rows or not process.running, LIMIT, "the backlog drained"
            )
            assert process.running, "the polling relay ended"
            peak = memory(process.pid)
        finally:
            process.kill()
    span = offsets.span(began)
    return Figures(
        "polling relay",
        "unix",
        rows,
        span.seconds,
        usage.between(span.first, span.last) / rows * 1e6,
        server.between(span.first, span.last) / rows * 1e6,
        peak,
        offsets.count(before) - rows,
    )


def _pg_recvlogical(ground: Ground) -> Path:
    tried = [ground.postgres.binaries / "pg_recvlogical"]
    tried += [Path(f"/usr/lib/postgresql/{major}/bin/pg_recvlogical") for major in range(20, 14, -1)]
    found = shutil.which("pg_recvlogical")
    if found:
        tried.append(Path(found))
    for program in tried:
        try:
            subprocess.run([program, "--version"], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    raise FileNotFoundError(f"no pg_recvlogical: looked in {', '.join(str(each.parent) for each in tried)}")


def _end_of(process: Process) -> str | None:
    return None if process.running else f"{process.popen.args!r} ended with {process.exit_code}"


def _walsender(watch: Watch, backlog: Backlog, slot: str, ended: Callable[[], str | None]) -> Usage:
    """The server's end of a reader, watched from now on. `ended` says how the reader ended, if it did."""

    def found() -> int | None:
        told = ended()
        assert told is None, told
        return backlog.walsender(slot)

    return watch.add(eventually(found, 60, f"a walsender for {slot}") or 0)


@dataclass(frozen=True)
class Comparison:
    """The relay beside others on one shape and kind of socket."""

    shape: str
    relay: Figures
    others: tuple[Figures, ...]
    skipped: str = ""

    @property
    def ratio(self) -> float:
        """The relay's rate, as part of the reader's."""
        return self.relay.rate / self.others[0].rate


def compare(
    ground: Ground, backlog: Backlog, shape: Shape, socket: str, *, repeat: int, beside: bool = False
) -> Comparison:
    """Run them in turns. `beside`: also pg_recvlogical."""
    readers: list[Callable[..., Figures]] = [relay, reader, *((recvlogical,) if beside else ())]
    runs: dict[str, list[Figures]] = {}
    skipped = ""
    for _ in range(repeat):
        for each in readers:
            try:
                runs.setdefault(each.__name__, []).append(each(ground, backlog, shape, socket))
            except FileNotFoundError as missing:
                skipped = str(missing)
    medians = [median(of) for of in runs.values() if of]
    return Comparison(shape.name, medians[0], tuple(medians[1:]), skipped)
