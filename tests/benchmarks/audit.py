"""How fast table and topics are compared, and in how much memory and room on disk."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.usage import cpu_seconds, memory
from tests.servers.relay import RelayProcess

if TYPE_CHECKING:
    from tests.benchmarks.ground import Ground

BAR = 96 << 20
"""Bytes of resident memory that it stays under, however many events there are."""

EACH = 10_000
"""Rows of a transaction of the relay that delivers them first."""


@dataclass(frozen=True)
class Audited:
    """One audit of a table with so many rows, all of them delivered."""

    rows: int
    provenance: bool
    seconds: float
    cpu_us: float
    peak_bytes: int
    spool_bytes: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def run(ground: Ground, rows: int, *, provenance: bool) -> Audited:
    """Deliver them by the relay, then `cdc-outbox audit`. Raises AssertionError where it isn't clean."""
    shape = Shape(
        f"{rows} rows",
        max(1, rows // EACH),
        min(rows, EACH),
        kind=f"audit-{secrets.token_hex(3)}",
        keys=100_000,
    )
    ground.topics(shape)
    flags = ["--provenance-headers"] if provenance else []
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        way = ground.dsn(backlog.name, "tcp")
        relay = RelayProcess(
            way, ground.kafka.bootstrap, slot=backlog.origin, flags=[*flags, "--until-caught-up"], http=False
        )
        try:
            assert relay.wait(3600) == 0, relay.text()
        finally:
            relay.close()
        began = time.monotonic()
        process = RelayProcess(
            way,
            ground.kafka.bootstrap,
            slot=backlog.origin,
            flags=[*flags, "--settled", "--json"],
            command="audit",
            http=False,
        )
        try:
            peak, used, spool = _watched(process)
            assert process.wait() == 0, "\n".join([*process.output, process.text()])
        finally:
            process.close()
        seconds = time.monotonic() - began
        report = json.loads("".join(process.output))
        assert report["rows"]["delivered"] == shape.rows, report
        assert bool(report["messages"]["order_not_judged"]) is not provenance, report
        return Audited(shape.rows, provenance, seconds, used / shape.rows * 1e6, peak, spool)


def _watched(process: RelayProcess) -> tuple[int, float, int]:
    """The peak of resident memory, the CPU time and the largest size of the unnamed files of a process."""
    peak, used, spool = 0, 0.0, 0
    while process.running:
        with suppress(OSError, IndexError):
            peak, used = memory(process.pid), cpu_seconds(process.pid)
            spool = max(spool, _spooled(process.pid))
        time.sleep(0.1)  # /proc is sampled: it has no event to wait for, and is gone with the process
    return peak, used, spool


def _spooled(pid: int) -> int:
    """Bytes in files that have no name any more."""
    total = 0
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if "(deleted)" in str(descriptor.readlink()):
                total += descriptor.stat().st_size
    return total
