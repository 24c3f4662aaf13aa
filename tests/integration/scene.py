"""A database, a topic, a writer, a consumer and relays between them: what most tests of delivery begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Composed

from tests.servers.kafka import Kafka
from tests.servers.ledger import Consumer, Verdict, Writer, create_outbox, verify
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import eventually

PATIENCE = 60.0
"""Seconds that a slow machine gets for what should take one."""


@dataclass
class Scene:
    """One outbox table and its way to one topic. `dsn` is the superuser's."""

    dsn: str
    slot: str
    kafka: Kafka
    topic: str
    aggregate_type: str
    make_relay: Callable[..., RelayProcess]
    make_writer: Callable[..., Writer]
    make_consumer: Callable[..., Consumer]
    relays: list[RelayProcess] = field(default_factory=list)

    def init(self) -> None:
        """Make publication, witness and slot, as a user does."""
        done = run_command("init", "--slot", self.slot, env={"CDC_OUTBOX_DSN": self.dsn})
        assert done.returncode == 0, done.stderr

    def relay(
        self, *flags: str, dsn: str | None = None, state: str | None = "streaming", **options: Any
    ) -> RelayProcess:
        """Start a relay and wait for its state. `dsn` names another way to the server."""
        relay = self.make_relay(dsn or self.dsn, self.kafka.bootstrap, slot=self.slot, flags=flags, **options)
        self.relays.append(relay)
        if state is not None:
            relay.wait_state(state, timeout=PATIENCE)
        return relay

    def writer(self, **options: Any) -> Writer:
        return self.make_writer(self.dsn, **options)

    def consumer(self) -> Consumer:
        return self.make_consumer(self.kafka.bootstrap, self.topic)

    def sql(self, *statements: SQL | Composed) -> None:
        """Run statements, each in a transaction of its own."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def value(self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()) -> Any:
        """The first column of the first row."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            row = connection.execute(query, parameters).fetchone()
        assert row is not None
        return row[0]

    def slot_value(self, column: str) -> Any:
        """A column of pg_replication_slots."""
        query = SQL("select {} from pg_replication_slots where slot_name = %s").format(SQL(column))
        return self.value(query, (self.slot,))

    def witness(self) -> Mapping[str, Any]:
        """The slot's witness row."""
        found = self.value("select to_jsonb(w) from cdc_outbox_witness w where slot = %s", (self.slot,))
        assert isinstance(found, dict)
        return found

    def wait_confirmed(self, timeout: float = PATIENCE) -> None:
        """Wait until the slot has confirmed everything that is committed now.

        WAL behind the last row, as the witness's own, is confirmed only when there is enough of it, so some is made.
        """
        end = self.value("select pg_current_wal_insert_lsn()::text")
        self.value("select pg_logical_emit_message(false, 'noise', repeat('x', 70000))::text")
        eventually(
            lambda: self.value(
                "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s",
                (end, self.slot),
            ),
            timeout,
            f"the slot confirmed up to {end}",
        )

    def books(self, writer: Writer, consumer: Consumer, timeout: float = PATIENCE) -> Verdict:
        """End the writing, wait for every row, and compare."""
        writer.stop(timeout)
        return verify(
            writer.committed, consumer.wait_ids(writer.committed, timeout), rolled_back=writer.rolled_back
        )


@pytest.fixture
def make_scene(
    slot: str,
    aggregate_type: str,
    outbox_topic: str,
    make_relay: Callable[..., RelayProcess],
    make_writer: Callable[..., Writer],
    make_consumer: Callable[..., Consumer],
) -> Callable[..., Scene]:
    """Makes a scene: `make_scene(dsn, kafka)`; table and topic are made, `init` is not run."""

    def make(dsn: str, kafka: Kafka, *, table: bool = True, partitions: int = 3) -> Scene:
        if table:
            create_outbox(dsn)
        kafka.create_topic(outbox_topic, partitions)
        return Scene(dsn, slot, kafka, outbox_topic, aggregate_type, make_relay, make_writer, make_consumer)

    return make
