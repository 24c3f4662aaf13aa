"""The servers that everything is measured on: PostgreSQL 18 and Kafka 4.4 on this machine, as users run them.

PostgreSQL flushes its WAL, unlike in the tests; Kafka's JVM compiles as it likes, on a heap of 512 MB. Both are warmed
up before anything counts.
"""

from __future__ import annotations

import platform
import sys
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

from tests.servers.kafka import VERSION, KafkaBroker
from tests.servers.postgres import PostgresServer

if TYPE_CHECKING:
    from tests.benchmarks.backlog import Shape

POSTGRES = {
    "fsync": "on",
    "autovacuum": "off",  # it comes when it likes, to one reader and not to the other
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "1h",
    "wal_sender_timeout": "0",  # a reader that throws away has no status to send
}
KAFKA_JVM = ("-Xms512m", "-Xmx512m")


class Ground(AbstractContextManager["Ground"]):
    """Both servers."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Ground:
        with self._stack as stack:
            self.postgres = PostgresServer(18, settings=POSTGRES)
            stack.callback(self.postgres.close)
            self.kafka = KafkaBroker(jvm=KAFKA_JVM)
            stack.callback(self.kafka.close)
            self.kafka.launch()
            self.postgres.start()
            self.kafka.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(f"PostgreSQL's log ends:\n{self.postgres.log_text()[-2000:]}", file=sys.stderr)
        self._stack.close()

    def dsn(self, database: str, socket: str) -> str:
        """The way to a database over `unix` or `tcp`."""
        return self.postgres.socket_dsn(database) if socket == "unix" else self.postgres.dsn(database)

    def topics(self, shape: Shape) -> None:
        """Make the topics of a shape that aren't there yet, with the broker's clock as their records' time."""
        known = self.kafka.topics()
        for topic in shape.topics:
            if topic not in known:
                self.kafka.create_topic(topic, shape.partitions, {"message.timestamp.type": "LogAppendTime"})

    def describe(self) -> dict[str, str]:
        """What it was measured on."""
        return {
            "machine": f"{platform.machine()}, {_cores()} cores, {platform.system()} {platform.release()}",
            "python": platform.python_version(),
            "postgresql": str(self.postgres.value("show server_version")),
            "kafka": VERSION,
            "relay": "acks=all, idempotent, no compression",
        }


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0))
