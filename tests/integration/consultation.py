"""What a test of `doctor` begins with: the command on one database, one slot and one cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import Composed

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.process import free_port
from tests.servers.relay import run_command
from tests.servers.security import USERS

NOWHERE = "127.0.0.1:1"


ROW: LiteralString = "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"


class Doctor:
    """One database, one slot, one cluster, and the command on them as one role."""

    def __init__(
        self, server: Postgres, database: str, slot: str, bootstrap: str, dsn: str | None = None
    ) -> None:
        self.server = server
        self.database = database
        self.slot = slot
        self.owner = server.dsn(database)
        self.environment = {
            "CDC_OUTBOX_DSN": dsn or self.owner,
            "CDC_OUTBOX_SLOT": slot,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": bootstrap,
            # At the default port may be somebody's relay.
            "CDC_OUTBOX_HTTP": f"127.0.0.1:{free_port()}",
        }

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `cdc-outbox ARGUMENTS`; no secret is ever printed."""
        done = run_command(*arguments, env={**self.environment, **environment})
        for secret in (PASSWORD, *USERS.values()):
            assert secret not in done.stdout + done.stderr
        return done

    def init(self, *flags: str) -> Doctor:
        done = self.command("init", *flags, CDC_OUTBOX_ADMIN_DSN=self.owner)
        assert done.returncode == 0, done.stderr
        return self

    def look(self, *flags: str, code: int = 0, **environment: str) -> dict[str, dict[str, Any]]:
        """The checks by side and name; the exit code and the document's status must fit."""
        done = self.command("doctor", "--json", *flags, **environment)
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        assert not done.stderr
        document = json.loads(done.stdout)
        assert document["schema_version"] == 1
        statuses = {check["status"] for check in document["checks"]}
        worst = "failed" if "failed" in statuses else "warning" if "warning" in statuses else "ok"
        assert document["status"] == worst
        assert (code != 0) == (worst == "failed")
        for check in document["checks"]:
            assert check.keys() == {"name", "side", "status", "message", "remedy"}
            assert check["remedy"] or check["status"] == "ok", check
        return {f"{check['side']}.{check['name']}": check for check in document["checks"]}

    def execute(self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()) -> list[Any]:
        return self.server.execute(query, parameters, dbname=self.database)

    def follow(self, check: Mapping[str, Any], *arguments: str) -> None:
        """Do what a remedy says, word for word: SQL as the superuser, commands as ourselves."""
        for line in check["remedy"].splitlines():
            if line.startswith("cdc-outbox "):
                done = self.command(*line.split()[1:], *arguments)
                assert done.returncode == 0, done.stderr
                return
            assert line.endswith(";"), line
            with psycopg.connect(self.owner, autocommit=True) as connection:
                for statement in line.split(";"):
                    if statement.strip():
                        connection.execute(statement.encode())


def worse(checks: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """What isn't ok."""
    return {name: check["status"] for name, check in checks.items() if check["status"] != "ok"}


@pytest.fixture
def doctor(database: Database, kafka: Kafka, slot: str) -> Doctor:
    """Nothing is set up yet; as the superuser."""
    return Doctor(database.server, database.name, slot, kafka.bootstrap)


@pytest.fixture
def as_relay(doctor: Doctor, plain_role: str) -> Doctor:
    """Set up by an owner, and looked at as the relay's role."""
    doctor.environment["CDC_OUTBOX_DSN"] = doctor.server.dsn(doctor.database, user=plain_role)
    return doctor.init("--create-table")
