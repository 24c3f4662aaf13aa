"""Secrets are planted in everything that a run is given, and looked for in everything that it puts out."""

from __future__ import annotations

import base64
import json
import secrets
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PASSWORD
from tests.servers.relay import RelayProcess, run_command
from tests.servers.security import USERS, Listener, client_settings
from tests.servers.wait import PATIENCE

LISTENER: Listener = "SASL_PLAINTEXT"
PATHS = ("/", "/livez", "/readyz", "/healthz", "/metrics", "/status", "/page.js", "/nowhere")


class Run:
    """The secrets of one run, the files that they are in, and all that was put out."""

    def __init__(self, database: Database, broker: KafkaBroker, slot: str, kind: str, home: Path) -> None:
        self.database, self.broker, self.slot = database, broker, slot
        self.secrets = {
            "PostgreSQL's password": PASSWORD,
            "Kafka's password": USERS["relay"],
            "the token": secrets.token_hex(16),
            "a payload": f"payload-{secrets.token_hex(8)}",
            "a key": f"key-{secrets.token_hex(8)}",
            "a header": f"header-{secrets.token_hex(8)}",
        }
        self.kind = kind
        self.said: dict[str, str] = {}
        for name, text in (
            ("dsn", database.dsn),
            ("kafka", USERS["relay"]),
            ("token", self.secrets["the token"]),
        ):
            (home / name).write_text(text)
        client = client_settings(LISTENER, "SCRAM-SHA-512")
        self.environment = {
            "CDC_OUTBOX_DSN": "",
            "CDC_OUTBOX_DSN_FILE": str(home / "dsn"),
            "CDC_OUTBOX_SLOT": slot,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": broker.address(LISTENER),
            "CDC_OUTBOX_KAFKA_SECURITY_PROTOCOL": client["security.protocol"],
            "CDC_OUTBOX_KAFKA_SASL_MECHANISM": client["sasl.mechanism"],
            "CDC_OUTBOX_KAFKA_SASL_USERNAME": client["sasl.username"],
            "CDC_OUTBOX_KAFKA_SASL_PASSWORD_FILE": str(home / "kafka"),
            "CDC_OUTBOX_HTTP_TOKEN_FILE": str(home / "token"),
        }

    def insert(self, aggregate_type: str) -> None:
        with psycopg.connect(self.database.dsn) as connection:
            connection.execute(
                "insert into outbox (aggregate_type, aggregate_id, event_type, payload, headers)"
                " values (%s, %s, 'Placed', %s, %s)",
                (
                    aggregate_type,
                    self.secrets["a key"],
                    json.dumps({"told": self.secrets["a payload"]}),
                    json.dumps({"told": self.secrets["a header"]}),
                ),
            )

    def command(self, *arguments: str, code: int | None = 0, **environment: str) -> None:
        done = run_command(*arguments, env={**self.environment, **environment})
        assert code in (None, done.returncode), done.stderr
        self.said[" ".join(arguments)] = done.stdout + done.stderr

    def found(self, *, besides: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        """Where which secret was put out, in any of the spellings that a program might give it."""
        places = []
        for name, secret in self.secrets.items():
            if name not in besides:
                spellings = {secret, quote(secret, safe=""), json.dumps(secret)[1:-1], repr(secret)[1:-1],
                             base64.b64encode(secret.encode()).decode().rstrip("=")}  # fmt: skip
                places += [
                    (where, name) for where, text in self.said.items() if any(s in text for s in spellings)
                ]
        return places


@pytest.fixture
def run(
    outbox: Database,
    secure_kafka: KafkaBroker,
    slot: str,
    aggregate_type: str,
    outbox_topic: str,
    tmp_path: Path,
) -> Iterator[Run]:
    with secure_kafka.without(outbox_topic):
        secure_kafka.create_topic(outbox_topic)
        secure_kafka.allow("relay", "write", outbox_topic)
        yield Run(outbox, secure_kafka, slot, aggregate_type, tmp_path)


def test_nothing_secret_is_put_out(run: Run, make_relay: Callable[..., RelayProcess]) -> None:
    run.command("init")
    relay = make_relay(
        "", run.broker.address(LISTENER), slot=run.slot, env=run.environment, flags=["--log-level", "debug"]
    )
    relay.wait_state("streaming")
    run.insert(run.kind)
    relay.wait_for(lambda record: record["event"] == "first event confirmed", PATIENCE)
    # A session that breaks: the server's words, a traceback at this level, and a new session.
    since = len(relay.records)
    run.database.server.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (run.slot,)
    )
    relay.wait_for(lambda record: record["event"] == "streaming", PATIENCE, since=since)
    for path in PATHS:
        for token in ("", run.secrets["the token"], "wrong"):
            asked = urllib.request.Request(
                f"http://127.0.0.1:{relay.http_port}{path}", headers={"Authorization": f"Bearer {token}"}
            )
            try:
                with urllib.request.urlopen(asked, timeout=20) as answer:
                    run.said[f"{path} with {token or 'none'}"[: len(path) + 9]] = answer.read().decode()
            except urllib.error.HTTPError as refused:
                run.said[f"{path} refused"] = refused.read().decode()
    of_process = Path("/proc") / str(relay.pid)
    run.said["cmdline"] = (of_process / "cmdline").read_text()
    run.said["environ"] = (of_process / "environ").read_text()
    # A row that can't be published ends it, and is named.
    run.insert(f"{run.kind} with spaces")
    assert relay.wait(PATIENCE) == 70
    run.said["log"] = relay.text(last=1_000_000)
    for arguments in (
        ("config", "show"), ("config", "show", "--json"), ("config", "validate"), ("config", "schema"),
        ("health",), ("health", "--json"), ("health", "--format", "nagios"), ("health", "--format", "prometheus"),
    ):  # fmt: skip
        run.command(*arguments, code=None)
    run.command("doctor", "--json", code=None)
    run.command("start", "--no-http", "--log-format", "text", code=70)
    wrong = "Wrong-" + secrets.token_hex(8)
    run.secrets["a wrong password"] = wrong
    run.command("start", "--no-http", "--log-level", "debug", code=78, CDC_OUTBOX_DSN_FILE="",
                CDC_OUTBOX_DSN=run.database.dsn.replace(PASSWORD, wrong))  # fmt: skip
    assert len(run.said) > 25
    assert run.found() == []
    run.said["a leak"] = f"could not connect with {quote(USERS['relay'], safe='')}"
    assert run.found() == [("a leak", "Kafka's password")]
