"""Every command of the README, run as it stands there, with real servers.

A fenced block of commands is marked `<!-- run: NAME -->`, and each name has its test here; a block without a mark, or
with a name that has no test, fails. `addresses` to `start` are one reader's shell, in the virtual environment that
`install` makes in a copy of the checkout; behind `addresses` its three variables get the values of our servers.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Consumer, read_all
from tests.servers.postgres import PostgresServer
from tests.servers.relay import clean_environment
from tests.servers.security import USERS, certificates
from tests.servers.shell import FENCE, Running, Shell, blocks, path_of

pytestmark = pytest.mark.xdist_group("readme")

README = (CHECKOUT / "README.md").read_text()
ORDER = [
    "make",
    "addresses",
    "server",
    "install",
    "set-up",
    "look",
    "secured",
    "start",
    "insert",
    "error",
    "compare",
    "cut-over",
    "own-table",
]
"""The blocks that are tested below, as they follow each other."""

TOPIC = "outbox.event.order"


BLOCKS = blocks(README)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the checkout with the command installed as the README says; directory and environment."""
    copy = tmp_path_factory.mktemp("reader") / "cdc-outbox"
    shutil.copytree(CHECKOUT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "tests", "venv"))
    environment = clean_environment({"PATH": path_of(Path(sys.prefix))})
    del environment["PYTHONPATH"]  # what is run is what was installed
    found = Shell(copy, environment).run(f"{BLOCKS['install']}command -v cdc-outbox").stdout.splitlines()[-1]
    venv = copy / "venv"
    assert found == str(venv / "bin" / "cdc-outbox")
    shutil.rmtree(copy / "cdc_outbox")
    return copy, {**environment, "PATH": path_of(venv), "VIRTUAL_ENV": str(venv)}


@pytest.fixture
def shell(installed: tuple[Path, dict[str, str]]) -> Shell:
    return Shell(*installed)


@pytest.fixture
def launch(shell: Shell, launched: Callable[[Shell, str], Running]) -> Callable[[str], Running]:
    """Launches commands in the shell, and ends them with the test."""
    return partial(launched, shell)


@pytest.fixture
def app(shell: Shell, make_postgres: Callable[..., PostgresServer], kafka: Kafka) -> PostgresServer:
    """A server of the reader's own with the database `app`, which the shell's variables name, and the broker."""
    server = make_postgres()
    owner = server.create_database("app")
    shell.export(CDC_OUTBOX_DSN=owner, CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap)
    return server


@pytest.fixture
def free_topic(kafka: Kafka) -> Iterator[str]:
    """The README's topic, removed afterwards if it wasn't there before."""
    with kafka.without(TOPIC):
        yield TOPIC


def test_each_block_is_marked_and_has_a_test():
    assert [found[1] for found in FENCE.finditer(README)] == ORDER
    fences = sum(line.lstrip().startswith("```") for line in README.splitlines())
    assert fences == 2 * len(ORDER), "a block is fenced in a way that these tests don't see"


def test_the_targets_of_make_are_there():
    for line in BLOCKS["make"].splitlines():
        command = line.partition("#")[0].split()
        assert command[0] == "make"
        shown = subprocess.run(
            [*command, "--dry-run"], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=False
        )
        assert shown.returncode == 0, shown.stderr
    # What they do is tested elsewhere: the demo by its own test, and `make test` is what runs this one.
    assert (CHECKOUT / "tests" / "integration" / "test_demo.py").is_file()


def test_the_first_event_in_production(
    shell: Shell,
    launch: Callable[[str], Running],
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_consumer: Callable[..., Consumer],
    free_topic: str,
):
    # A server of its own, for the README's names of slot and role belong to the whole server.
    server = make_postgres()
    owner = server.create_database("app")
    password = secrets.token_hex(8)
    relay = server.dsn("app", user="outbox_relay", password=password)
    shell.run(BLOCKS["addresses"])
    valid = 'CDC_OUTBOX_BOOTSTRAP_SERVERS="$KAFKA" cdc-outbox config validate'
    shell.run(f'CDC_OUTBOX_DSN="$OWNER_DSN" {valid}; CDC_OUTBOX_DSN="$RELAY_DSN" {valid}')
    shell.export(OWNER_DSN=owner, RELAY_DSN=relay, KAFKA=kafka.bootstrap)
    alter, restart, show = BLOCKS["server"].splitlines()
    shell.run(alter)
    assert restart.startswith("# restart PostgreSQL here")
    server.restart()
    assert " logical\n" in shell.run(show).stdout
    said = dict(server.execute("select name, setting from pg_settings where sourcefile like '%auto.conf'"))
    assert said == {"wal_level": "logical", "max_slot_wal_keep_size": "20480"}
    consumer = make_consumer(kafka.bootstrap, free_topic)

    def arrived() -> list[tuple[bytes | None, bytes | None, list[str]]]:
        ours = {str(id_) for (id_,) in server.execute("select id from outbox", dbname="app")}
        return [
            (record.key, record.value, [name for name, _ in record.headers])
            for record in consumer.records
            if record.id in ours
        ]

    done = shell.run(BLOCKS["set-up"], typed=f"{password}\n" * 2)
    assert "create table if not exists" in done.stdout
    assert 'slot "outbox_slot" stands at ' in done.stdout

    shown = shell.run(BLOCKS["look"]).stdout
    for expected in (free_topic, "42", "OrderPlaced", '{"total": 12.5}'):
        assert expected in shown

    running = launch(BLOCKS["start"])
    first = (b"42", b'{"total": 12.5}', ["id", "type"])
    second = (b"43", b'{"total": 20}', ["id", "type"])
    running.wait(lambda: arrived() == [first])
    assert kafka.topics()[free_topic] == 12

    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("create table orders (id int primary key, total numeric)")
    (shell.home / "insert.sql").write_text(BLOCKS["insert"])
    shell.run('psql -v ON_ERROR_STOP=1 "$OWNER_DSN" -f insert.sql')
    running.wait(lambda: arrived() == [first, second])

    assert running.terminate() == 0
    assert arrived() == [first, second]

    shell.run('CDC_OUTBOX_DSN="$OWNER_DSN" cdc-outbox drop --yes')
    refused = shell.run("cdc-outbox start --log-format text", code=78)
    assert refused.stderr.endswith(BLOCKS["error"])


def test_a_secured_kafka(shell: Shell, app: PostgresServer, secure_kafka: KafkaBroker):
    secure_kafka.create_topic(TOPIC)
    secure_kafka.allow("relay", "write", TOPIC)
    (shell.home / "ca.pem").write_bytes((certificates() / "ca.pem").read_bytes())
    (shell.home / "kafka-password").write_text(USERS["relay"])
    with app.connect("app") as connection:
        shell.run("cdc-outbox init --create-table")
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " values ('order', '42', 'OrderPlaced', '{}')"
        )
    shell.export(CDC_OUTBOX_BOOTSTRAP_SERVERS=secure_kafka.address("SASL_SSL"))
    shell.run(BLOCKS["secured"])
    shell.run("cdc-outbox doctor")
    shell.run("cdc-outbox start --until-caught-up --no-http")
    (record,) = read_all(secure_kafka.bootstrap, TOPIC)
    assert record.key == b"42"
    secure_kafka.withdraw("relay", "write", TOPIC)
    secure_kafka.delete_topic(TOPIC)


def test_leaving_a_polling_relay(
    shell: Shell,
    launch: Callable[[str], Running],
    app: PostgresServer,
    kafka: Kafka,
    make_consumer: Callable[..., Consumer],
):
    """The old relay is a statement here; a real one is left in test_cut_over.py. No step before has been taken."""
    password = secrets.token_hex(8)
    relay = app.dsn("app", user="outbox_relay", password=password)
    shell.export(OWNER_DSN=app.dsn("app"), RELAY_DSN=relay, KAFKA=kafka.bootstrap)
    topic = f"orders-{secrets.token_hex(4)}"
    kafka.create_topic(topic, 3)
    consumer = make_consumer(kafka.bootstrap, topic)
    with app.connect("app") as connection:
        connection.execute(
            "create table outbox (id bigserial primary key, aggregate_id text not null, topic text not null,"
            " payload jsonb, status text not null default 'pending', created_at timestamptz default now())"
        )

        def insert() -> None:
            connection.execute(
                "insert into outbox (aggregate_id, topic, payload) values ('7', %s, '{}')", (topic,)
            )

        first, _, compare = BLOCKS["compare"].strip().rpartition("\n")
        shell.run(first, typed=f"{password}\n" * 2)
        compared = launch(compare.replace("1m", "3s"))
        compared.wait(lambda: "following" in compared.log.read_text())
        insert()
        connection.execute("update outbox set status = 'sent'")
        assert compared.process.wait(30) == 0

        insert()
        init, backfill, start, audit = BLOCKS["cut-over"].splitlines()
        assert "holds 1 row" in shell.run(init, code=78).stderr
        assert "published 1" in shell.run(backfill).stdout
        running = launch(start)
        insert()
        running.wait(lambda: {"2", "3"} <= {record.id for record in consumer.records})
        shell.run(audit)
        assert running.terminate() == 0


@pytest.fixture
def own_settings(shell: Shell) -> Iterator[None]:
    """The README's file, in the directory of the shell."""
    file = shell.home / "cdc-outbox.toml"
    file.write_text(BLOCKS["own-table"])
    yield
    file.unlink()


@pytest.mark.usefixtures("own_settings")
def test_a_table_of_ones_own(
    shell: Shell, launch: Callable[[str], Running], app: PostgresServer, kafka: Kafka
) -> None:
    """The steps, as the README has them, with the file that it names."""
    password = secrets.token_hex(8)
    relay = app.dsn("app", user="outbox_relay", password=password)
    shell.export(OWNER_DSN=app.dsn("app"), RELAY_DSN=relay, KAFKA=kafka.bootstrap)
    kind = f"Placed{secrets.token_hex(4)}"
    with app.connect("app") as connection:
        connection.execute("create schema shop")
        connection.execute(
            "create table shop.events (id bigserial primary key, event_type text, document json, noted_by text)"
        )
        shell.run(BLOCKS["set-up"].replace(" --create-table", ""), typed=f"{password}\n" * 2)
        connection.execute(
            "insert into shop.events (event_type, document) values (%s, %s)", (kind, '{"order_id":  7}')
        )
    assert kind in shell.run(BLOCKS["look"].partition("\n")[2].partition("\n")[2]).stdout
    running = launch(BLOCKS["start"])
    with kafka.without(f"shop.{kind}"):
        running.wait(lambda: f"shop.{kind}" in kafka.topics() and read_all(kafka.bootstrap, f"shop.{kind}"))
        (record,) = read_all(kafka.bootstrap, f"shop.{kind}")
        assert (record.key, record.value) == (b"7", b'{"order_id":  7}')
        assert record.headers == (("id", b"1"), ("type", kind.encode()))
        assert running.terminate() == 0
