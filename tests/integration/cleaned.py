"""A database with an outbox and its slot, and `cleanup` run on it as its users do."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import Database
from tests.integration.connected import run_sql
from tests.servers.process import Process
from tests.servers.relay import clean_environment, complaint, run_command
from tests.servers.wait import PATIENCE, eventually

PROVE = """
update cdc_outbox_witness
   set snapshot = pg_current_snapshot(), position = pg_current_wal_insert_lsn(), updated_at = clock_timestamp()
"""
"""What a relay does once it has delivered everything."""

ROWS = """
insert into {table} (aggregate_type, aggregate_id, event_type, created_at)
select 'order', n::text, {name}, now() - {age}::interval from generate_series(1, {count}) as n
"""

PENDING: LiteralString = "select 1 from pg_replication_slots where slot_name = %s"


class Place:
    """A database with an outbox, its slot, and the command on it."""

    def __init__(self, database: Database, slot: str) -> None:
        self.database = database
        self.slot = slot
        self.environment = {"CDC_OUTBOX_DSN": database.dsn}

    def init(self, *flags: str) -> Place:
        done = run_command("init", "--slot", self.slot, *flags, env=self.environment)
        assert done.returncode == 0, done.stderr
        return self

    def sql(self, *statements: str) -> None:
        run_sql(self.database.dsn, *statements)

    def insert(self, name: str, count: int, age: str, table: str = "outbox") -> None:
        """Rows of that age, told by their event type."""
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute(
                SQL(ROWS).format(
                    table=Identifier(table), name=Literal(name), age=Literal(age), count=Literal(count)
                )
            )

    def rows(self, table: str = "outbox") -> dict[str, int]:
        """How many rows there are of each name."""
        query = SQL("select event_type, count(*)::int from {} group by 1").format(Identifier(table))
        return dict(self.database.server.execute(query, dbname=self.database.name))

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command(
            "cleanup", "--slot", self.slot, *arguments, env={**self.environment, **(env or {})}
        )

    def clean(self, *arguments: str, code: int = 0, age: str = "7d") -> dict[str, Any]:
        """What it says of the one table; its errors are `error` and `next`."""
        done = self.run("--older-than", age, "--json", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        (table,) = json.loads(done.stdout)["tables"]
        words = dict(line.split(": ", 1) for line in done.stderr.splitlines() if line)
        return {**table, **words}

    def refused(self, *arguments: str, code: int = 78, env: dict[str, str] | None = None) -> tuple[str, str]:
        done = self.run(*arguments, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        return complaint(done)


@pytest.fixture
def place(database: Database, slot: str) -> Place:
    return Place(database, slot)


def init_counts(place: Place, slot: str) -> Process:
    """An `init` for another slot, under way."""
    return Process(
        [sys.executable, "-m", "cdc_outbox", "init", "--slot", slot, "--publication", f"{slot}_pub"],
        env=clean_environment(place.environment),
        pipes=True,
    )


def seen(place: Place, query: LiteralString, *parameters: str) -> None:
    """Wait until a query finds something."""
    server, name = place.database.server, place.database.name
    eventually(lambda: server.execute(query, parameters, dbname=name), PATIENCE, query)
