"""From the start of the process to the first event, and what is sent again after `kill -9`."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.offsets import Offsets
from tests.servers.relay import RelayProcess
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from tests.benchmarks.ground import Ground


def first_event(ground: Ground) -> float:
    """Seconds from exec to the append of a row that waits."""
    shape = Shape("start", 1, kind=f"start-{secrets.token_hex(2)}", partitions=4)
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        began = time.time()
        process = RelayProcess(
            ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap, slot=backlog.origin
        )
        try:
            eventually(lambda: offsets.count(before) >= 1, 60, process.text)
        finally:
            process.close()
    return offsets.span(began).first - began


@dataclass(frozen=True)
class Again:
    """Records that came twice, beside those of the last seconds before the kill."""

    rows: int
    twice: int
    last_two_seconds: int


def after_kill(ground: Ground, rows: int) -> Again:
    """Kill a relay in the middle of a drain, and let another finish it."""
    shape = Shape("kill", rows, kind=f"kill-{secrets.token_hex(2)}", partitions=4)
    ground.topics(shape)
    offsets = Offsets(ground.kafka, shape.topics, shape.partitions)
    before = offsets.ends()
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        dsn, bootstrap = ground.postgres.socket_dsn(backlog.name), ground.kafka.bootstrap
        first = RelayProcess(dsn, bootstrap, slot=backlog.origin)
        try:
            eventually(lambda: offsets.count(before) > rows * 0.7, 120, first.text)
        finally:
            killed = time.time()
            first.close()
        recent = offsets.after(killed - 2)
        second = RelayProcess(dsn, bootstrap, slot=backlog.origin, flags=["--until-caught-up"])
        try:
            assert second.wait(timeout=120) == 0, second.text()
        finally:
            second.close()
    return Again(rows, offsets.count(before) - rows, recent)
