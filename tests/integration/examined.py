"""A slot as `health` sees it with the rights of the role that streams, in all its forms at once."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from psycopg.sql import SQL, Identifier, Literal

from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.relay import run_command
from tests.unit.health_schema import require_valid


@dataclass(frozen=True)
class Seen:
    """One look: exit code, text, the JSON document, and the textfile's samples by name and labels."""

    code: int
    text: str
    document: dict[str, Any]
    metrics: dict[tuple[str, tuple[tuple[str, str], ...]], float]

    @property
    def status(self) -> str:
        return str(self.document["status"])

    @property
    def headline(self) -> str:
        return self.text.splitlines()[0]

    @property
    def next(self) -> str:
        return str(self.document["next"])

    def check(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(each for each in self.document["checks"] if each["name"] == name)
        return found

    def metric(self, name: str, **labels: str) -> float | None:
        return self.metrics.get((f"cdc_outbox_{name}", tuple(sorted(labels.items()))))


@dataclass
class Examined:
    """A slot, its database, and a role that may only log in and replicate."""

    server: Postgres
    database: str
    slot: str
    role: str = field(default_factory=lambda: f"relay_{secrets.token_hex(4)}")
    made: bool = False
    """Whether the role is there."""

    def init(self) -> Examined:
        """Make the role, and slot, publication and witness for it."""
        self.make_role()
        done = run_command(
            "init", "--slot", self.slot, "--role", self.role, env={"CDC_OUTBOX_DSN": self.owner}
        )
        assert done.returncode == 0, done.stderr
        return self

    def make_role(self) -> None:
        self.server.execute(
            SQL("create role {} login replication password {}").format(
                Identifier(self.role), Literal(PASSWORD)
            )
        )
        self.made = True

    @property
    def owner(self) -> str:
        """The superuser's connection string."""
        return self.server.dsn(self.database)

    @property
    def dsn(self) -> str:
        """The role's."""
        return self.server.dsn(self.database, user=self.role, password=PASSWORD)

    def run(
        self,
        *flags: str,
        env: Mapping[str, str] | None = None,
        slot: str | None = None,
        cwd: Path | None = None,
    ) -> Any:
        """`cdc-outbox health` with these flags, to its end."""
        environment = {"CDC_OUTBOX_DSN": self.dsn, "CDC_OUTBOX_HTTP": "off", **(env or {})}
        return run_command("health", "--slot", slot or self.slot, *flags, env=environment, cwd=cwd)

    def look(self, *flags: str, env: Mapping[str, str] | None = None, slot: str | None = None) -> Seen:
        """Look in each form, side by side; they say the same."""
        with ThreadPoolExecutor(3) as pool:
            text, document, metrics = pool.map(
                lambda form: self.run(*flags, "--format", form, env=env, slot=slot),
                ("text", "json", "prometheus"),
            )
        assert PASSWORD not in text.stdout + document.stdout + text.stderr + document.stderr
        assert text.returncode == document.returncode == metrics.returncode, (text, document, metrics)
        found = json.loads(document.stdout)
        require_valid(found)
        name = slot or self.slot
        assert text.stdout.startswith(f"{name}  {found['status'].upper()}  "), text.stdout
        samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(metrics.stdout)
            for sample in family.samples
        }
        assert samples["cdc_outbox_slot_health", (("slot", name), ("status", found["status"]))] == 1
        return Seen(text.returncode, text.stdout, found, samples)

    def sql(self, *statements: Any) -> None:
        """Run statements as the owner, each in a transaction of its own."""
        for statement in statements:
            self.server.execute(statement, dbname=self.database)

    def value(self, query: Any, parameters: tuple[object, ...] = ()) -> Any:
        return self.server.value(query, parameters, dbname=self.database)

    def write_wal(self, mib: int) -> None:
        """Write so much WAL that is nobody's event."""
        self.sql(
            SQL(
                "select count(pg_logical_emit_message(false, 'noise', repeat('x', 1048576 - 64)))"
                " from generate_series(1, {})"
            ).format(Literal(mib))
        )
