"""An upgrade and a removal by the commands of `docs/how-to/upgrade-or-remove.md`, run as they stand there.

Those for systemd are run in test_systemd.py, those for compose in test_containers.py.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.sql import SQL, Literal

from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.relay import clean_environment
from tests.servers.shell import FENCE, Running, Shell, blocks, path_of

PAGE = (CHECKOUT / "docs" / "how-to" / "upgrade-or-remove.md").read_text()
BLOCKS = blocks(PAGE)
OLD = "0.0.1"


def test_each_block_is_run() -> None:
    for_others = ["systemd", "compose", "systemd-remove"]
    assert sorted(BLOCKS) == sorted(["install", "start", "drain", "drop", "role", *for_others])
    assert len(FENCE.findall(PAGE)) == len(BLOCKS)


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A new checkout, and the environment of a person in whose virtual environment an old version was installed."""
    home = tmp_path_factory.mktemp("upgrade")
    subprocess.run([sys.executable, "-m", "venv", home / "venv"], check=True)
    environment = clean_environment({"PATH": path_of(home / "venv"), "VIRTUAL_ENV": str(home / "venv")})
    del environment["PYTHONPATH"]  # what is run is what was installed
    for name in ("old", "new"):
        ignored = shutil.ignore_patterns(".*", "__pycache__", "tests")
        shutil.copytree(CHECKOUT, home / name, ignore=ignored)
    module = home / "old" / "cdc_outbox" / "__init__.py"
    (line,) = [line for line in module.read_text().splitlines() if line.startswith("__version__ = ")]
    module.write_text(module.read_text().replace(line, f'__version__ = "{OLD}"'))
    Shell(home / "old", environment).run("pip install .")
    return home / "new", environment


def test_an_upgrade_and_a_removal(
    upgraded: tuple[Path, dict[str, str]],
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    aggregate_type: str,
    outbox_topic: str,
    launched: Callable[[Shell, str], Running],
) -> None:
    server = make_postgres()
    owner = server.create_database("app")
    password = secrets.token_hex(8)
    server.execute(SQL("create role outbox_relay login replication password {}").format(Literal(password)))
    place, environment = upgraded
    shell = Shell(place, environment)
    shell.export(
        OWNER_DSN=owner,
        CDC_OUTBOX_DSN=server.dsn("app", user="outbox_relay", password=password),
        CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
        CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}",
    )
    kafka.create_topic(outbox_topic)

    def insert(name: str) -> None:
        server.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', %s)",
            (aggregate_type, name),
            dbname="app",
        )

    def types() -> list[str | None]:
        return [record.header("type") for record in read_all(kafka.bootstrap, outbox_topic)]

    assert OLD in shell.run("cdc-outbox --version").stdout
    shell.run('CDC_OUTBOX_DSN="$OWNER_DSN" cdc-outbox init --create-table --role outbox_relay')
    insert("by the old")
    old = launched(shell, "cdc-outbox start")
    old.wait(lambda: types() == ["by the old"])
    assert old.terminate() == 0
    insert("meanwhile")
    assert OLD not in shell.run(BLOCKS["install"]).stdout.splitlines()[-1]
    new = launched(shell, BLOCKS["start"])
    insert("by the new")
    sent = ["by the old", "meanwhile", "by the new"]
    new.wait(lambda: types() == sent)
    assert new.terminate() == 0

    insert("the last")
    shell.run(BLOCKS["drain"])
    assert types() == [*sent, "the last"]
    said = shell.run(BLOCKS["drop"]).stdout
    statements = BLOCKS["role"].splitlines()[1:-1]
    assert said.splitlines()[-1].endswith(" ".join(statements))
    shell.run(BLOCKS["role"])
    left = """
    select (select count(*) from pg_replication_slots), (select count(*) from pg_publication),
           (select count(*) from pg_roles where rolname = 'outbox_relay'),
           to_regclass('public.cdc_outbox_witness') is null, (select count(*) from outbox)
    """
    assert server.execute(left, dbname="app") == [(0, 0, 0, True, 4)]
