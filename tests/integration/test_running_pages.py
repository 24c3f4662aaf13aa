"""The commands of the pages on upgrading, rotating credentials, tuning and clouds, run as they stand there."""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox, read_all
from tests.servers.postgres import PASSWORD, PostgresServer, binaries
from tests.servers.process import free_port
from tests.servers.shell import Running, Shell, blocks, shell_of_checkout
from tests.servers.wait import PATIENCE, eventually

HOW_TO = CHECKOUT / "docs" / "how-to"
UPGRADE, ROTATE, TUNE, CLOUD = (
    blocks((HOW_TO / f"{name}.md").read_text())
    for name in ("upgrade-postgresql", "rotate-credentials", "tune", "run-on-each-cloud")
)
INSERT = (
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values (%s, '1', %s, '{}')"
    " returning id"
)


@pytest.fixture
def shell(kafka: Kafka, slot: str, tmp_path: Path) -> Shell:
    return shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
        CDC_OUTBOX_SLOT=slot,
        CDC_OUTBOX_LOG_FORMAT="text",
        CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}",
    )


def insert(dsn: str, kind: str, event_type: str) -> str:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(INSERT.encode(), (kind, event_type)).fetchone()
        assert row is not None
        return str(row[0])


@pytest.mark.parametrize("old", [15, 17])
def test_upgrading(
    old: int,
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    aggregate_type: str,
    outbox_topic: str,
    shell: Shell,
    launched: Callable[[Shell, str], Running],
) -> None:
    assert list(UPGRADE) == ["drain", "drop", "init", "start", "audit"]
    kafka.create_topic(outbox_topic)
    before, after = make_postgres(old), make_postgres(18)
    from_dsn, to_dsn = before.create_database("app"), after.create_database("app")
    create_outbox(from_dsn)
    shell.export(CDC_OUTBOX_DSN=from_dsn)
    shell.run("cdc-outbox init")
    sent = [insert(from_dsn, aggregate_type, "before")]
    shell.run(UPGRADE["drain"])
    shell.run(UPGRADE["drop"])
    dumped = subprocess.run([binaries(18) / "pg_dump", from_dsn], capture_output=True, check=True).stdout
    shell.export(CDC_OUTBOX_DSN=to_dsn)
    (shell.home / "dump.sql").write_bytes(dumped)
    shell.run('psql -q -v ON_ERROR_STOP=1 "$CDC_OUTBOX_DSN" -f dump.sql')
    sent.append(insert(to_dsn, aggregate_type, "too early"))
    shell.run(UPGRADE["init"])
    audited = shell.run(UPGRADE["audit"], code=1).stdout
    named = re.search(r"cdc-outbox replay .*", audited)
    assert named is not None, audited
    shell.run(f"{named[0]} --yes")
    running = launched(shell, UPGRADE["start"])
    sent.append(insert(to_dsn, aggregate_type, "after"))

    def arrived() -> list[str | None]:
        return [record.id for record in read_all(kafka.bootstrap, outbox_topic)]

    running.wait(lambda: arrived() == sent)
    shell.run(UPGRADE["audit"])
    assert running.terminate() == 0
    assert arrived() == sent


@pytest.fixture
def role(outbox: Database, shell: Shell) -> Iterator[Callable[[str], str]]:
    """The relay's own role, made by `init`; its DSN with a password."""
    shell.export(CDC_OUTBOX_DSN=outbox.dsn, OWNER_DSN=outbox.dsn)
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute(f"create role outbox_relay login replication password '{PASSWORD}'".encode())
    try:
        shell.run("cdc-outbox init --role outbox_relay")
        yield lambda password: outbox.server.dsn(outbox.name, user="outbox_relay", password=password)
    finally:
        with psycopg.connect(outbox.dsn, autocommit=True) as connection:
            connection.execute("drop owned by outbox_relay")
            connection.execute("drop role outbox_relay")


@pytest.mark.xdist_group("outbox_relay")  # the page's name for the role, which belongs to the whole server
def test_rotating_the_password(
    outbox: Database,
    kafka: Kafka,
    aggregate_type: str,
    outbox_topic: str,
    shell: Shell,
    role: Callable[[str], str],
    launched: Callable[[Shell, str], Running],
) -> None:
    assert list(ROTATE) == ["password", "file", "start", "module", "provider", "token"]
    kafka.create_topic(outbox_topic)
    new = secrets.token_hex(8)
    file = shell.home / "dsn"
    file.write_text(role(PASSWORD))
    token = shell.home / "token"
    token.write_text("old-token")
    shell.export(
        CDC_OUTBOX_DSN="",
        CDC_OUTBOX_DSN_FILE=str(file),
        NEW_DSN=role(new),
        CDC_OUTBOX_HTTP_TOKEN_FILE=str(token),
    )
    first = launched(shell, ROTATE["start"])
    sent = [insert(outbox.dsn, aggregate_type, "before")]

    def arrived() -> list[str | None]:
        return [record.id for record in read_all(kafka.bootstrap, outbox_topic)]

    first.wait(lambda: arrived() == sent)
    address = shell.environment["CDC_OUTBOX_HTTP"]

    def answered() -> str:
        asked = f'curl -s -o answer -w "%{{http_code}}" -H "Authorization: Bearer $(cat {token})" http://{address}/status'
        return shell.run(asked, code=None).stdout

    assert answered() == "200"
    shell.run(ROTATE["token"])
    assert token.read_text() != "old-token"
    eventually(lambda: answered() == "200", PATIENCE, "the new token counts")

    shell.run(ROTATE["password"], typed=f"{new}\n" * 2)
    shell.run(ROTATE["file"])
    assert file.stat().st_mode & 0o777 == 0o600
    shell.export(CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}")
    second = launched(shell, ROTATE["start"])
    second.wait(lambda: "standby" in second.log.read_text())
    assert first.terminate() == 0
    sent.append(insert(outbox.dsn, aggregate_type, "after"))
    second.wait(lambda: arrived() == sent)
    for log in (first.log, second.log):
        assert PASSWORD not in log.read_text()
        assert new not in log.read_text()

    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute(f"alter role outbox_relay password '{PASSWORD}'".encode())
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where usename = 'outbox_relay'"
        )
    assert second.process.wait(60) == 78  # as the page says of a relay that comes back with the old password


@pytest.mark.xdist_group("outbox_relay")
def test_a_password_that_the_relay_asks_for(
    outbox: Database, shell: Shell, role: Callable[[str], str]
) -> None:
    module = ROTATE["module"].replace("/run/secrets", str(shell.home))
    (shell.home / "passwords.py").write_text(module)
    (shell.home / "outbox_relay").write_text(f"{PASSWORD}\n")
    given = psycopg.conninfo.conninfo_to_dict(role(PASSWORD))
    shell.export(DB=f"{given['host']}:{given['port']}")
    # Where the package is installed, its place needn't be said.
    block = ROTATE["provider"].replace("/app", f"/{outbox.name}").replace("$PWD", f"$PWD:{CHECKOUT}")
    said = shell.run(block)
    assert "outbox_relay" in said.stdout
    assert PASSWORD not in said.stdout + said.stderr


@pytest.mark.parametrize("name", list(TUNE))
def test_the_settings_of_the_page_on_tuning(name: str, shell: Shell) -> None:
    assert list(TUNE) == ["compression", "limits", "topics"]
    (shell.home / "cdc-outbox.toml").write_text(TUNE[name])
    shell.run("cdc-outbox config validate")


def test_doctor_as_the_page_on_clouds_calls_it(outbox: Database, shell: Shell) -> None:
    assert list(CLOUD) == ["doctor", "iam"]
    shell.export(CDC_OUTBOX_DSN=outbox.dsn)
    shell.run("cdc-outbox init")
    assert "postgres" in shell.run(CLOUD["doctor"]).stdout.lower()


def test_the_settings_of_amazons_iam(shell: Shell) -> None:
    """No server of Amazon's can be had here: that they are settings is all that is tried."""
    shell.export(RDS_ENDPOINT="app.abcdefghijkl.eu-central-1.rds.amazonaws.com")
    shell.run(CLOUD["iam"])
    shown = shell.run("cdc-outbox config show").stdout
    assert "cdc_outbox.aws:rds" in shown
    assert "amazonaws" not in shown
