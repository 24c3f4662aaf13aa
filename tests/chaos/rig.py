"""A relay under load between servers of its own, and the judgement at the end."""

from __future__ import annotations

import contextlib
import json
import secrets
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tests.chaos.load import Load
from tests.chaos.tally import Again, Books, Tally
from tests.servers.kafka import KafkaBroker
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.relay import run_command

PARTITIONS = 4

ON_ITS_WAY_MS = 1000
"""So long after a relay's death Kafka may still take what it sent."""


@dataclass(frozen=True, slots=True)
class Kill:
    """When a relay was killed or ended, in ms since the epoch; what came twice by it, and how old the oldest was."""

    at_ms: int
    again: int
    oldest_ms: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a run showed.

    What came twice within the life of one relay is `restarted` where PostgreSQL ended between, else `unexplained`.
    """

    committed: int
    records: int
    again: int
    restarted: int
    unexplained: int
    kills: tuple[Kill, ...]
    faults: tuple[str, ...]

    def __str__(self) -> str:
        oldest = max((kill.oldest_ms for kill in self.kills if kill.again), default=0)
        return (
            f"{self.committed} committed, {self.records} records, {self.again} came twice"
            f" ({self.restarted} of them from one relay when PostgreSQL had ended, {self.unexplained} without),"
            f" {len(self.kills)} kills,"
            f" at most {max((kill.again for kill in self.kills), default=0)} by one,"
            f" the oldest {oldest / 1000:.2f} s before it; {len(self.faults)} faults"
        )


def blame(
    kills: Sequence[int], again: Iterable[Again], restarts: Sequence[int] = ()
) -> tuple[tuple[Kill, ...], int, int]:
    """What each kill cost, by the first after a first delivery; what came twice by `restarts`, and what by neither.

    Kills and restarts (the ends of PostgreSQL) are in ms since the epoch. What was on its way when a relay or a server
    died is appended a moment after it.
    """
    ages: dict[int, list[int]] = {at: [] for at in kills}
    restarted = unexplained = 0
    for each in again:
        between, before = _around(kills, each)
        if between or before:
            at = between[0] if between else before[-1]
            ages[at].append(at - each.first_ms)
        elif any(_around(restarts, each)):
            restarted += 1
        else:
            unexplained += 1
    return (
        tuple(Kill(at, len(each), max(each, default=0)) for at, each in ages.items()),
        restarted,
        unexplained,
    )


def _around(ends: Sequence[int], each: Again) -> tuple[list[int], list[int]]:
    """The ends between two deliveries, and those shortly before the first."""
    between = [at for at in ends if each.first_ms <= at <= each.again_ms]
    return between, [at for at in ends if each.first_ms - ON_ITS_WAY_MS <= at < each.first_ms]


class Rig:
    """PostgreSQL, Kafka, a proxy before PostgreSQL, one relay, a load and a tally."""

    def __init__(self, *, rate: float, seed: int) -> None:
        with contextlib.ExitStack() as stack:
            self.postgres = PostgresServer(settings={"max_wal_size": "4GB"}).start()
            stack.callback(self.postgres.close)
            self.kafka = KafkaBroker().start()
            stack.callback(self.kafka.close)
            self.proxy = stack.enter_context(Proxy(("127.0.0.1", self.postgres.port)))
            aggregate_type = f"chaos-{secrets.token_hex(4)}"
            topic = f"outbox.event.{aggregate_type}"
            create_outbox(self.postgres.dsn())
            self.kafka.create_topic(topic, PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
            self.pipeline = Pipeline(
                self.postgres,
                self.kafka,
                slot="chaos",
                way=self.postgres.dsn(port=self.proxy.port),
                flags=["--provenance-headers"],  # the broker stamps records by its own clock
            ).init()
            stack.callback(self.pipeline.close)
            self.pipeline.start()
            self.tally = Tally(self.kafka.bootstrap, topic, PARTITIONS)
            stack.callback(self.tally.close)
            self.load = Load(self.postgres.dsn(), aggregate_type, rate=rate, seed=seed).start()
            self.kills: list[int] = []
            self.restarts: list[int] = []
            self._closing = stack.pop_all()

    def kill_relay(self) -> None:
        """`kill -9`, and write down when."""
        self.kills.append(time.time_ns() // 1_000_000)
        self.pipeline.relay.kill()

    def stop_postgres(self, mode: Literal["fast", "immediate"], timeout: float = 60) -> float:
        """Stop the server, and write down when; the seconds that it took."""
        self.restarts.append(time.time_ns() // 1_000_000)
        return self.postgres.stop(mode, timeout=timeout)

    def ended(self, code: int) -> None:
        """A relay was told to end and did. Its memory of deliveries went with it, as in a kill.

        A signal that comes before the relay listens for signals ends it as any process.
        """
        assert code in (0, 1, -signal.SIGTERM), f"exit {code}:\n{self.pipeline.relay.text()}"
        self.kills.append(time.time_ns() // 1_000_000)

    def check(self) -> None:
        """Raise if a part of the rig has ended that shouldn't."""
        self.load.check()
        self.tally.check()

    def judge(self, timeout: float = 120) -> Judgement:
        """End the load, let everything arrive, and compare. Servers and relay must be up."""
        self.load.stop()
        self.pipeline.wait_confirmed(self.pipeline.end_of_wal(), timeout)
        self.tally.read_to_end(timeout)
        truth = self.load.truth()
        books = self.tally.books
        kills, restarted, unexplained = blame(self.kills, books.again, self.restarts)
        return Judgement(
            sum(len(numbers) for numbers in truth.values()),
            books.records,
            len(books.again),
            restarted,
            unexplained,
            kills,
            (*books.compare(truth), *self._audited(sum(map(len, truth.values())), books)),
        )

    def _audited(self, committed: int, books: Books) -> list[str]:
        """What `cdc-outbox audit`, which knows nothing of the books, objects to, and where the two don't agree."""
        done = run_command(
            "audit",
            "--json",
            "--settled",
            "--twice-ok",
            env={
                "CDC_OUTBOX_DSN": self.postgres.dsn(),
                "CDC_OUTBOX_SLOT": self.pipeline.slot,
                "CDC_OUTBOX_BOOTSTRAP_SERVERS": self.kafka.bootstrap,
            },
            timeout=600,
        )
        if not done.stdout:
            return [f"the audit ended with {done.returncode}: {done.stderr}"]
        report = json.loads(done.stdout)
        found = {
            "delivered": (report["rows"]["delivered"], committed),
            "records": (report["messages"]["read"], books.records),
            "twice": (report["twice"]["count"], len({(each.key, each.n) for each in books.again})),
            "undecided": (report["undecided"]["count"] + report["messages"]["order_not_judged"], 0),
        }
        faults = report["faults"].items()
        return [
            *(f"audit: {count} {kind}, {report[kind]['events'][:3]}" for kind, count in faults),
            *(
                f"audit: {own} {what}, and {other} by the books"
                for what, (own, other) in found.items()
                if own != other
            ),
        ]

    def close(self) -> None:
        """End everything."""
        self._closing.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
