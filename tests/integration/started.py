"""`cdc-outbox start` on a database and run to its end, as its users do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, LiteralString

import pytest

from tests.integration.conftest import Database
from tests.servers.postgres import PASSWORD
from tests.servers.process import free_port
from tests.servers.relay import complaint, run_command

SECRET = "s3cret-and-more"


class Start:
    """`cdc-outbox start` on one database, ending by itself. Nothing listens where it looks for Kafka by default."""

    def __init__(self, database: Database, slot: str) -> None:
        self.database = database
        self.slot = slot
        self.bootstrap = f"127.0.0.1:{free_port()}"

    def environment(self, changes: Mapping[str, str]) -> dict[str, str]:
        return {
            "CDC_OUTBOX_DSN": self.database.dsn,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap,
            "CDC_OUTBOX_SLOT": self.slot,
            **changes,
        }

    def init(self, *flags: str) -> Start:
        done = run_command("init", *flags, env=self.environment({}))
        assert done.returncode == 0, done.stderr
        return self

    def refused(
        self, *flags: str, code: int, cwd: Path | None = None, http: str | None = None, **changes: str
    ) -> tuple[str, str]:
        """Error and next step of a `start` that exits with `code`, the same in both forms."""
        environment = self.environment(changes)
        arguments = ["start", *(["--no-http"] if http is None else ["--http", http]), *flags]
        text = run_command(*arguments, "--log-format", "text", env=environment, cwd=cwd)
        as_json = run_command(*arguments, "--log-format", "json", env=environment, cwd=cwd)
        for done in (text, as_json):
            assert done.returncode == code, done.stderr
            assert done.stdout == ""
            for forbidden in (PASSWORD, SECRET, "Traceback"):
                assert forbidden not in done.stderr
        said = complaint(text)
        *_, last = [json.loads(line) for line in as_json.stderr.splitlines()]
        assert (last["error"], last["next"]) == said
        return said

    def execute(self, query: LiteralString, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        return self.database.server.execute(query, parameters, dbname=self.database.name)


@pytest.fixture
def start(database: Database, slot: str) -> Start:
    return Start(database, slot)


@pytest.fixture
def ready(outbox: Database, slot: str) -> Start:
    """Everything is there but what the test takes away."""
    return Start(outbox, slot).init()
