"""Faults at random, several at a time, all from one seed.

Relay, PostgreSQL, broker and network each are in order or broken. A step breaks one that is in order or mends a
broken one, so that faults meet: the broker is away while PostgreSQL crashes while the relay is killed. Between them
come what a database sees on any day: DDL on the table, long and huge transactions, checkpoints, ended sessions.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import psycopg

from tests.chaos.rig import Rig
from tests.servers.wait import PATIENCE, eventually

QUICKLY = PATIENCE
"""Seconds that a fast shutdown of PostgreSQL gets here: while the network is frozen the walsender waits for its
wal_sender_timeout, which is half of them. The bar of two seconds has a test of its own."""

PAUSE = (0.2, 2.0)
"""The least and the most seconds between two steps."""


class Storm:
    """One run's faults. `log` tells what happened, with the seconds since its beginning."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._chance = random.Random(seed)
        self._began = time.monotonic()
        self._columns = 0
        self._mends: dict[str, Callable[[], None]] = {}
        self.log: list[str] = []
        self._breaks: dict[str, list[Callable[[], Callable[[], None] | None]]] = {
            "relay": [self._kill_relay, self._kill_relay, self._stop_relay],
            "postgres": [self._crash_postgres, self._crash_postgres, self._stop_postgres],
            "kafka": [self._pause_kafka, self._kill_kafka],
            "network": [self._cut, self._freeze, self._refuse],
            "session": [self._terminate],
            "table": [self._alter, self._huge, self._begin_long, self._end_long, self._checkpoint],
        }

    def blow(self, seconds: float) -> None:
        """Break and mend for so long; at the end everything is in order again."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._step()
            self._wait(min(self._chance.uniform(*PAUSE), max(0.0, end - time.monotonic())))
        while self._mends:
            self._mend(self._chance.choice(sorted(self._mends)))

    def _step(self) -> None:
        # Each kind of harm is as likely as any other.
        part = self._chance.choice([part for part, harms in self._breaks.items() for _ in harms])
        # What is broken gets mended rather than left, or soon nothing at all would flow.
        if self._mends and (part in self._mends or len(self._mends) > 1):
            self._mend(part if part in self._mends else self._chance.choice(sorted(self._mends)))
            return
        harm = self._chance.choice(self._breaks[part])
        self._say(harm.__name__.strip("_").replace("_", " "))
        mend = harm()
        if mend is not None:
            self._mends[part] = mend

    def _mend(self, part: str) -> None:
        self._say(f"{part} in order again")
        self._mends.pop(part)()

    def _say(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self._began:6.2f} {what}")

    def _wait(self, seconds: float) -> None:
        """Wait, and see that nothing ends that shouldn't."""
        end = time.monotonic() + seconds

        def over() -> bool:
            self._rig.check()
            relay = self._rig.pipeline.relay
            assert relay.running or "relay" in self._mends, f"the relay ended by itself:\n{relay.text()}"
            return time.monotonic() >= end

        eventually(over, seconds + 30, "the next step")

    def _kill_relay(self) -> Callable[[], None]:
        self._rig.kill_relay()
        return self._start_relay

    def _stop_relay(self) -> Callable[[], None]:
        relay = self._rig.pipeline.relay
        self._rig.ended(relay.terminate(timeout=60)[0])
        return self._start_relay

    def _start_relay(self) -> None:
        self._rig.pipeline.start(http=False, state=None)

    def _crash_postgres(self) -> Callable[[], None]:
        self._rig.stop_postgres("immediate")
        return self._start_postgres

    def _stop_postgres(self) -> Callable[[], None]:
        # An open transaction is ended by this; its session finds out later.
        self._say(f"PostgreSQL stopped in {self._rig.stop_postgres('fast', QUICKLY):.2f} s")
        return self._start_postgres

    def _start_postgres(self) -> None:
        self._rig.postgres.start()

    def _pause_kafka(self) -> Callable[[], None]:
        self._rig.kafka.pause()
        return self._rig.kafka.resume

    def _kill_kafka(self) -> Callable[[], None]:
        self._rig.kafka.kill()
        return self._start_kafka

    def _start_kafka(self) -> None:
        self._rig.kafka.start()

    def _cut(self) -> None:
        self._rig.proxy.cut()

    def _freeze(self) -> Callable[[], None]:
        self._rig.proxy.freeze()
        return self._rig.proxy.resume

    def _refuse(self) -> Callable[[], None]:
        self._rig.proxy.refuse_new()
        self._rig.proxy.cut()
        return self._rig.proxy.resume

    def _terminate(self) -> None:
        self._sql("select pg_terminate_backend(active_pid) from pg_replication_slots where active")

    def _checkpoint(self) -> None:
        self._sql("checkpoint")

    def _alter(self) -> None:
        self._rig.load.end_long()  # or the statement would wait for its lock
        if self._columns and self._chance.random() < 0.5:
            self._sql(f"alter table outbox drop column if exists extra_{self._columns}")
            self._columns -= 1
        else:
            self._columns += 1
            self._sql(f"alter table outbox add column if not exists extra_{self._columns} text default 'x'")

    def _huge(self) -> None:
        self._rig.load.huge(self._chance.choice((2_000, 10_000)))

    def _begin_long(self) -> None:
        self._rig.load.begin_long()

    def _end_long(self) -> None:
        self._rig.load.end_long()

    def _sql(self, statement: str) -> None:
        """Run a statement, if the server is there."""
        with (
            contextlib.suppress(psycopg.OperationalError, psycopg.InterfaceError),
            psycopg.connect(self._rig.postgres.dsn(), autocommit=True, connect_timeout=5) as connection,
        ):
            connection.execute(statement.encode())
