"""Every command of the pages on a small table and on finding an event, run as it stands there, on real servers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.sql import SQL

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import Record, read_all
from tests.servers.postgres import PASSWORD
from tests.servers.shell import FENCE, Running, Shell, blocks, shell_of_checkout
from tests.servers.wait import eventually

PAGES = {
    name: (CHECKOUT / "docs" / "how-to" / f"{name}.md").read_text()
    for name in ("keep-the-table-small", "find-an-event")
}
SMALL, FIND = (blocks(page) for page in PAGES.values())
TESTED = {
    "keep-the-table-small": ["dry-run", "error", "grant", "start", "partitions", "insert-delete", "inbox"],
    "find-an-event": ["find", "in-topic"],
}
OLD = (
    "insert into outbox (aggregate_type, aggregate_id, event_type, created_at)"
    " values ('order', '1', 'old', now() - interval '8 days') returning id::text"
)
ID = "0197c7c0-5a70-7cc0-8f0e-2b1a33a4f1d2"
TOPIC = "outbox.event.order"


def test_each_block_is_tested() -> None:
    for name, page in PAGES.items():
        assert [found[1] for found in FENCE.finditer(page)] == TESTED[name]


class Place:
    """A database with the default outbox and a person's shell."""

    def __init__(self, database: Database, shell: Shell, kafka: Kafka) -> None:
        self.database = database
        self.shell = shell
        self.kafka = kafka

    def sql(self, statement: str) -> str:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            cursor = connection.execute(SQL(statement))
            return str((cursor.fetchone() or [""])[0]) if cursor.description else ""

    def rows(self) -> int:
        return int(self.sql("select count(*) from outbox"))

    def records(self) -> list[Record]:
        """Those that this test has sent."""
        return [record for record in read_all(self.kafka.bootstrap, TOPIC) if record.id in self.ids]

    ids: tuple[str, ...] = ()


@pytest.fixture
def place(outbox: Database, slot: str, kafka: Kafka, tmp_path: Path) -> Iterator[Place]:
    shell = shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_DSN=outbox.dsn,
        OWNER_DSN=outbox.dsn,
        CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
        CDC_OUTBOX_LOG_FORMAT="text",
        CDC_OUTBOX_HTTP="off",
        CDC_OUTBOX_SLOT=slot,
    )
    shell.run("cdc-outbox init")
    with kafka.without(TOPIC):
        yield Place(outbox, shell, kafka)


def test_cleaning_up_and_finding(place: Place, slot: str, launched: Callable[[Shell, str], Running]) -> None:
    place.ids = (place.sql(OLD), place.sql(OLD))
    said = place.shell.run(SMALL["dry-run"], code=1).stderr
    error, remedy = said.splitlines()[-2:]
    shown = re.sub(r"[0-9a-f-]{36} \([^)]+\)", "ID (TIME)", f"{error}\n{remedy}\n").replace(
        slot, "outbox_slot"
    )
    assert re.sub(r"which is \S+ MiB", "which is 0.0 MiB", shown) == SMALL["error"]
    assert place.rows() == 2
    running = launched(place.shell, "cdc-outbox start --create-topics")
    place.shell.export(EVENT_ID=place.ids[0])
    running.wait(lambda: len(place.records()) == 2)
    eventually(lambda: "delivered" in place.shell.run(FIND["find"]).stdout, 60, "proven")
    assert f"{TOPIC}, partition 0, offset" in place.shell.run(FIND["in-topic"]).stdout
    place.shell.run(SMALL["dry-run"])
    assert place.rows() == 0
    running.terminate()
    place.shell.run("cdc-outbox inbox create")
    place.shell.run(SMALL["inbox"])


@pytest.mark.xdist_group("outbox_relay")  # the page's name for the role, which belongs to the whole server
def test_the_relay_needs_the_rights_for_it_and_the_slot_sends_what_was_deleted_at_once(
    place: Place, launched: Callable[[Shell, str], Running]
) -> None:
    place.sql(f"create role outbox_relay login replication password '{PASSWORD}'")
    try:
        place.shell.run("cdc-outbox init --role outbox_relay")
        place.sql(SMALL["grant"])
        place.shell.export(CDC_OUTBOX_DSN=place.database.server.dsn(place.database.name, user="outbox_relay"))
        (place.shell.home / "insert.sql").write_text(SMALL["insert-delete"])
        place.shell.run('psql -v ON_ERROR_STOP=1 "$OWNER_DSN" -f insert.sql')
        assert place.rows() == 0
        place.ids = (ID, place.sql(OLD))
        place.shell.export(CDC_OUTBOX_CLEANUP_OLDER_THAN="1s")
        running = launched(place.shell, SMALL["start"].replace("7d", "1s"))
        running.wait(lambda: place.rows() == 0)
        assert [record.id for record in place.records()] == list(place.ids)
        assert running.terminate() == 0
    finally:
        place.sql("drop owned by outbox_relay")
        place.sql("drop role outbox_relay")


def test_partitions(place: Place) -> None:
    place.sql("drop table outbox")
    place.sql(
        "create table outbox (id uuid default gen_random_uuid(), aggregate_type text, aggregate_id text,"
        " event_type text, payload jsonb, created_at timestamptz) partition by range (created_at)"
    )
    place.sql(
        "create table old partition of outbox for values from (minvalue) to (now() - interval '7 days')"
    )
    place.sql("alter publication outbox_pub add table outbox")
    place.ids = (place.sql(OLD),)
    place.shell.run("cdc-outbox start --create-topics --until-caught-up --accept-gap")
    running = place.shell.launch("cdc-outbox start")
    try:
        eventually(
            lambda: place.shell.run(SMALL["partitions"], code=None).returncode == 0, 60, "acknowledged"
        )
    finally:
        running.terminate()
    assert place.sql("select to_regclass('old') is null") == "True"
