"""A password that a function knows: asked for before each connection, so that a new one needs no restart."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier, Literal

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

HOOKS = """
from pathlib import Path

FILE = Path(__file__).with_name("password")


def fetch(*, host, port, user):
    with FILE.with_name("asked").open("a") as asked:
        asked.write(f"{user} at {host}:{port}\\n")
    return FILE.read_text()


async def waiting(**login):
    return fetch(**login)
"""


@dataclass
class Login:
    """A relay's role, the file that its password is read from, and the variables that lead there."""

    database: Database
    name: str
    file: Path
    slot: str

    @property
    def dsn(self) -> str:
        """Without a password."""
        server = self.database.server
        return server.dsn(self.database.name, user=self.name, password="x").replace(":x@", "@")

    def environment(self, hook: str = "fetch") -> dict[str, str]:
        return {
            "CDC_OUTBOX_DSN": self.dsn,
            "CDC_OUTBOX_SLOT": self.slot,
            "CDC_OUTBOX_POSTGRES_PASSWORD_PROVIDER": f"hooks:{hook}",
            "PYTHONPATH": f"{self.file.parent}:{CHECKOUT}",
        }

    def give(self, password: str) -> None:
        """What the server expects from now on."""
        self.run(SQL("alter role {} password {}").format(Identifier(self.name), Literal(password)))

    def end_sessions(self) -> None:
        self.database.server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s", (self.name,)
        )

    def asked(self) -> list[str]:
        file = self.file.with_name("asked")
        return file.read_text().splitlines() if file.exists() else []

    def insert(self, kind: str) -> str:
        with psycopg.connect(self.database.dsn) as connection:
            row = connection.execute(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
                " values (%s, '1', 'Placed', '{}') returning id",
                (kind,),
            ).fetchone()
        assert row is not None
        return str(row[0])

    def run(self, statement: Composed) -> None:
        """As a superuser."""
        self.database.server.execute(statement, dbname=self.database.name)


@pytest.fixture
def login(outbox: Database, slot: str, tmp_path: Path) -> Iterator[Login]:
    (tmp_path / "hooks.py").write_text(HOOKS)
    login = Login(outbox, f"relay_{slot}", tmp_path / "password", slot)
    first = secrets.token_hex(8)
    outbox.server.execute(
        SQL("create role {} login replication password {}").format(Identifier(login.name), Literal(first))
    )
    login.file.write_text(f"{first}\n")
    try:
        done = run_command("init", "--slot", slot, "--role", login.name, env={"CDC_OUTBOX_DSN": outbox.dsn})
        assert done.returncode == 0, done.stderr
        yield login
    finally:
        login.end_sessions()
        login.run(SQL("drop owned by {}").format(Identifier(login.name)))
        login.run(SQL("drop role {}").format(Identifier(login.name)))


def test_a_password_that_changes_while_the_relay_runs(
    login: Login,
    kafka: Kafka,
    aggregate_type: str,
    outbox_topic: str,
    make_relay: Callable[..., RelayProcess],
) -> None:
    kafka.create_topic(outbox_topic)
    relay = make_relay(login.dsn, kafka.bootstrap, slot=login.slot, env=login.environment("waiting"))
    relay.wait_state("streaming")
    sent = [login.insert(aggregate_type)]

    def arrived() -> list[str | None]:
        return [record.id for record in read_all(kafka.bootstrap, outbox_topic)]

    eventually(lambda: arrived() == sent, PATIENCE, relay.text)
    old, new = login.file.read_text().strip(), secrets.token_hex(8)
    login.give(new)
    login.end_sessions()
    sent.append(login.insert(aggregate_type))
    relay.wait_state("held")
    refused = relay.wait_for(lambda record: "refuses the password" in str(record.get("error")), PATIENCE)
    assert "hooks:waiting" in refused["error"]
    assert login.name in refused["next"]
    login.file.write_text(new)
    relay.wait_state("streaming")
    eventually(lambda: arrived() == sent, PATIENCE, relay.text)
    assert relay.terminate()[0] == 0
    where = f"{login.name} at {psycopg.conninfo.conninfo_to_dict(login.dsn)['host']}:"
    asked = login.asked()
    assert asked
    assert all(line.startswith(where) for line in asked)
    for password in (old, new):
        assert password not in relay.text(last=100_000)


def test_one_that_fails_is_waited_for(
    login: Login, kafka: Kafka, make_relay: Callable[..., RelayProcess]
) -> None:
    kept = login.file.with_name("kept")
    login.file.rename(kept)
    environment = login.environment()
    relay = make_relay(login.dsn, kafka.bootstrap, slot=login.slot, env=environment)
    waiting = relay.wait_for(lambda record: record["event"] == "waiting", PATIENCE)
    assert waiting["error"] == (
        "there is no password for PostgreSQL: hooks:fetch failed with FileNotFoundError"
    )
    assert "called by hand: " in waiting["next"]
    assert relay.state() == "connecting"
    kept.rename(login.file)
    relay.wait_state("streaming")
    assert relay.terminate()[0] == 0


def test_what_a_start_ends_with(login: Login, kafka: Kafka) -> None:
    def start(*flags: str, **environment: str) -> tuple[int, list[str]]:
        done = run_command(
            *("start", "--no-http", "--log-format", "text", "--bootstrap-servers", kafka.bootstrap, *flags),
            env={**login.environment(), **environment},
        )
        return done.returncode, done.stderr.splitlines()[-2:]

    right = login.file.read_text()
    login.file.write_text("wrong-" + right)
    code, (error, remedy) = start()
    assert code == 78
    assert error.startswith("error: PostgreSQL refuses the password that hooks:fetch gives: ")
    assert remedy == f"next: check that hooks:fetch knows the password of role {login.name}"
    assert right.strip() not in error
    code, (error, _) = start(CDC_OUTBOX_POSTGRES_PASSWORD_PROVIDER="hooks:absent")
    assert code == 78
    assert "can't be imported" in error
    login.file.unlink()
    code, (error, remedy) = start("--fail-fast")
    assert code == 1
    assert error == "error: there is no password for PostgreSQL: hooks:fetch failed with FileNotFoundError"


def test_all_commands_ask_for_it_unless_a_dsn_has_one(login: Login, kafka: Kafka) -> None:
    environment = login.environment() | {"CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap}
    for arguments in (("health",), ("peek",), ("start", "--until-caught-up", "--no-http")):
        before = len(login.asked())
        done = run_command(*arguments, env=environment)
        assert done.returncode == 0, done.stderr
        assert len(login.asked()) > before, arguments
    before = len(login.asked())
    owner = login.database.dsn
    done = run_command("init", env=environment | {"CDC_OUTBOX_ADMIN_DSN": owner, "CDC_OUTBOX_DSN": owner})
    assert done.returncode == 0, done.stderr
    assert len(login.asked()) == before
