"""A database with one slot, and `init` (or another command) run on it as its users do."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import Composed

from tests.integration.conftest import Database
from tests.servers.postgres import PASSWORD, binaries
from tests.servers.relay import clean_environment, complaint, run_command
from tests.servers.wait import PATIENCE, eventually

ROW: LiteralString = (
    "insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', '1', 'placed')"
)


class Set:
    """One database with one slot, and the command on it."""

    def __init__(self, database: Database, slot: str, dsn: str | None = None, admin: str = "") -> None:
        self.database = database
        self.slot = slot
        self.dsn = dsn or database.dsn
        self.admin = admin

    def run(self, *arguments: str, command: str = "init") -> subprocess.CompletedProcess[str]:
        environment = {"CDC_OUTBOX_DSN": self.dsn}
        if self.admin:
            environment["CDC_OUTBOX_ADMIN_DSN"] = self.admin
        return run_command(command, "--slot", self.slot, *arguments, env=environment)

    def as_role(self, role: str, admin: str = "") -> Set:
        """The same, on the relay's side as another role."""
        return Set(self.database, self.slot, self.database.server.dsn(self.database.name, user=role), admin)

    def ok(self, *arguments: str, command: str = "init") -> str:
        done = self.run(*arguments, command=command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, code: int = 78, command: str = "init") -> tuple[str, str]:
        """What is wrong and what is next."""
        done = self.run(*arguments, command=command)
        assert done.returncode == code, done.stdout + done.stderr
        assert PASSWORD not in done.stdout + done.stderr
        return complaint(done)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """An `init` that waits for an open transaction, with its pending slot half made; killed after the block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--slot", self.slot],
            env=clean_environment({"CDC_OUTBOX_DSN": self.dsn}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("waiting for open transactions: pid ")
            yield
        finally:
            process.kill()
            process.communicate()
        eventually(lambda: self.slots() == [], PATIENCE, "the half-made slot is gone")

    def steps(self, *arguments: str) -> dict[str, str]:
        document = json.loads(self.ok("--json", *arguments))
        return {step["name"]: step["status"] for step in document["steps"]}

    def execute(
        self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()
    ) -> list[tuple[Any, ...]]:
        return self.database.server.execute(query, parameters, dbname=self.database.name)

    def value(self, query: LiteralString | Composed) -> Any:
        return self.execute(query)[0][0]

    def slots(self) -> list[str]:
        rows = self.execute(
            "select slot_name from pg_replication_slots where slot_name in (%s, %s) order by 1",
            (self.slot, f"{self.slot}_pending"),
        )
        return [row[0] for row in rows]

    def start_of(self, slot: str) -> str:
        ((lsn,),) = self.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (slot,)
        )
        return str(lsn)


@pytest.fixture
def place(database: Database, slot: str) -> Set:
    return Set(database, slot)


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binaries(18) / "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", dsn],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )


@contextlib.contextmanager
def open_transaction(place: Set, application: str = "") -> Iterator[psycopg.Connection]:
    with psycopg.connect(place.database.dsn, application_name=application) as connection:
        connection.execute("create table if not exists written (at timestamptz default now())")
        connection.commit()
        connection.execute("insert into written default values")
        yield connection
        connection.rollback()
