"""From rows to records, run by run: what a test of the messages themselves needs, and no more.

Each run of the relay ends by itself once all that was committed is confirmed. So a test knows when to look, and
what isn't in Kafka by then was not sent.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg

from cdc_outbox.lsn import LSN
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, read_all
from tests.servers.relay import RelayProcess, run_command

if TYPE_CHECKING:
    from tests.integration.conftest import Database


class Passage:
    """One slot of a fresh database, and topics of its own."""

    def __init__(
        self,
        database: Database,
        kafka: Kafka,
        slot: str,
        topics: str,
        *,
        bootstrap: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        """`bootstrap` and `client`, settings by their dotted names, are the relay's way to the cluster."""
        self.database = database
        self.kafka = kafka
        self.slot = slot
        self.topics = topics
        self.bootstrap = bootstrap
        variables = {
            "CDC_OUTBOX_KAFKA_" + name.upper().replace(".", "_"): value
            for name, value in (client or {}).items()
        }
        self.environment = {"CDC_OUTBOX_DSN": database.dsn, **variables}

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

    def backfill(self, *flags: str) -> subprocess.CompletedProcess[str]:
        """`cdc-outbox init`, which leaves the slot pending, and `cdc-outbox backfill`."""
        at = ("--slot", self.slot)
        assert run_command("init", *at, env=self.environment).returncode == 78
        way = ("--bootstrap-servers", self.bootstrap or self.kafka.bootstrap)
        done = run_command("backfill", "--yes", *flags, *at, *way, env=self.environment)
        assert done.returncode == 0, done.stderr
        return done

    def run(
        self, *flags: str, code: int = 0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Relay until caught up; the run must end with `code`."""
        done = run_command(
            *("start", "--slot", self.slot, "--bootstrap-servers", self.bootstrap or self.kafka.bootstrap),
            *("--no-http", "--until-caught-up", "--log-format", "json", *flags),
            env={**self.environment, **(env or {})},
        )
        assert done.returncode == code, f"ended with {done.returncode}:\n{done.stderr}"
        return done

    @contextmanager
    def relay(self, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[RelayProcess]:
        """A relay that stays, for the time of the block."""
        relay = RelayProcess(
            self.database.dsn,
            self.bootstrap or self.kafka.bootstrap,
            slot=self.slot,
            flags=flags,
            env={**self.environment, **(env or {})},
        )
        try:
            yield relay
        finally:
            relay.close()

    def confirmed(self) -> LSN:
        """The slot's confirmed position."""
        [(shown,)] = self.sql(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", self.slot
        )
        return LSN.parse(shown)

    def end_of_wal(self) -> LSN:
        """Where the next WAL record would be written."""
        [(shown,)] = self.sql("select pg_current_wal_insert_lsn()::text")
        return LSN.parse(shown)

    def table(self, payload: str = "text") -> Passage:
        """A table `outbox` of id, topic, key and payload, with publication and slot."""
        self.sql(
            f"create table outbox (id bigserial primary key, topic text, aggregate_id text, payload {payload})"
        )
        return self.init()

    def insert(self, topic: str, *rows: tuple[str | None, str | None]) -> None:
        """One transaction of rows (key, payload) for a topic."""
        statement = "insert into outbox (topic, aggregate_id, payload) values (%s, %s, %s)"
        self.transaction(*((statement, (topic, key, payload)) for key, payload in rows))

    def topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Make a topic; its full name."""
        self.kafka.create_topic(self.topics + name, partitions, config)
        return self.topics + name

    def read(self, *topics: str) -> list[Record]:
        """Everything that these topics hold now, by topic, partition and offset."""
        return read_all(self.kafka.bootstrap, *topics)


def last_words(run: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What a run that failed said last: `error` and `next`."""
    last = json.loads(run.stderr.splitlines()[-1])
    return last["error"], last["next"]


def payloads(records: list[Record]) -> list[str]:
    return [(record.value or b"").decode() for record in records]
