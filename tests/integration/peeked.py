"""A database with an outbox and a slot, and `peek` run on it as its users do."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg

from tests.integration.conftest import Database
from tests.servers.postgres import PASSWORD
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

POSITIONS: LiteralString = (
    "select restart_lsn::text, confirmed_flush_lsn::text, catalog_xmin::text from pg_replication_slots"
    " where slot_name = %s"
)
TEMPORARY: LiteralString = (
    "select slot_name from pg_replication_slots where temporary and database = current_database()"
)

Make = Callable[..., RelayProcess]


class Place:
    """A database with an outbox, a slot, and `peek` on it. Kafka is away unless a test has one."""

    def __init__(self, database: Database, slot: str, bootstrap: str) -> None:
        self.database = database
        self.slot = slot
        self.bootstrap = bootstrap

    def init(self) -> Place:
        done = self.run("init")
        assert done.returncode == 0, done.stderr
        return self

    def run(self, command: str, *arguments: str, dsn: str = "") -> subprocess.CompletedProcess[str]:
        environment = {
            "CDC_OUTBOX_DSN": dsn or self.database.dsn,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap,
        }
        done = run_command(command, "--slot", self.slot, *arguments, env=environment)
        assert PASSWORD not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done

    def peek(self, *arguments: str) -> list[dict[str, Any]]:
        done = self.run("peek", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def refused(self, *arguments: str, code: int = 78) -> tuple[str, str]:
        done = self.run("peek", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        *_, error, remedy = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert remedy.startswith("next: ")
        return error, remedy

    def execute(self, query: LiteralString, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return self.database.server.execute(query, parameters, dbname=self.database.name)

    def insert(self, *keys: str, payload: str = '{"a": 1}') -> None:
        """One transaction with a row for each key."""
        with psycopg.connect(self.database.dsn) as connection:
            for key in keys:
                connection.execute(
                    "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
                    " values ('order', %s, 'placed', %s)",
                    (key, payload),
                )

    def positions(self) -> tuple[Any, ...]:
        return self.execute(POSITIONS, (self.slot,))[0]


def lines_of(process: RelayProcess, count: int) -> list[dict[str, Any]]:
    eventually(lambda: len(process.output) >= count, PATIENCE, lambda: f"{count} events\n{process.text()}")
    return [json.loads(line) for line in process.output]
