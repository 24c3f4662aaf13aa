"""From rows to records, run by run: what a test of the messages themselves needs, and no more.

Each run of the relay ends by itself once all that was committed is confirmed. So a test knows when to look, and
what isn't in Kafka by then was not sent.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import psycopg

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, read_all
from tests.servers.relay import RelayProcess, run_command


class Passage:
    """One slot of a fresh database, and topics of its own."""

    def __init__(self, database: Database, kafka: Kafka, slot: str, topics: str) -> None:
        self.database = database
        self.kafka = kafka
        self.slot = slot
        self.topics = topics

    def sql(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run SQL in a transaction of its own; the rows of a query."""
        return self.transaction((statement, parameters))

    def transaction(self, *statements: str | tuple[str, tuple[object, ...]]) -> list[tuple[Any, ...]]:
        """Run several statements in one transaction; the rows of the last."""
        with psycopg.connect(self.database.dsn) as connection:
            cursor = connection.cursor()
            for each in statements:
                text, parameters = (each, ()) if isinstance(each, str) else each
                cursor.execute(text.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def init(self, *flags: str) -> Passage:
        """`cdc-outbox init`."""
        done = run_command("init", "--slot", self.slot, *flags, env={"CDC_OUTBOX_DSN": self.database.dsn})
        assert done.returncode == 0, done.stderr
        return self

    def run(
        self, *flags: str, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Relay until caught up; the run must end with `code`."""
        done = run_command(
            *("start", "--slot", self.slot, "--bootstrap-servers", self.kafka.bootstrap),
            *("--no-http", "--until-caught-up", "--log-format", "json", *flags),
            env={"CDC_OUTBOX_DSN": self.database.dsn, **(env or {})},
        )
        assert done.returncode == code, f"ended with {done.returncode}:\n{done.stderr}"
        return done

    def relay(
        self, *flags: str, bootstrap: str | None = None, env: Mapping[str, str] | None = None
    ) -> RelayProcess:
        """Start a relay that stays; the caller closes it."""
        return RelayProcess(
            self.database.dsn, bootstrap or self.kafka.bootstrap, slot=self.slot, flags=flags, env=env
        )

    def topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic; its full name."""
        self.kafka.create_topic(self.topics + name, partitions, config)
        return self.topics + name

    def read(self, *topics: str) -> list[Record]:
        """Everything that these topics hold now, by topic, partition and offset."""
        return read_all(self.kafka.bootstrap, *topics)
