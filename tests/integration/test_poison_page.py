"""Every command of `docs/how-to/get-past-a-poison-row.md`, run as it stands there, on real servers."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.process import free_port
from tests.servers.shell import FENCE, Running, Shell, blocks, shell_of_checkout
from tests.servers.wait import eventually

PAGE = (CHECKOUT / "docs" / "how-to" / "get-past-a-poison-row.md").read_text()
BLOCKS = blocks(PAGE)
TESTED = ["stop", "error", "look", "larger", "topic", "audit", "key", "leave-out", "insert", "block"]
INSERT = "insert into outbox (aggregate_type, aggregate_id, event_type, payload) values (%s, %s, %s, %s)"


class Stuck:
    """A relay's set-up with a good row, a poison one and a good one behind its slot."""

    def __init__(self, database: Database, shell: Shell, kafka: Kafka, http: str) -> None:
        self.database = database
        self.shell = shell
        self.kafka = kafka
        self.http = http

    def rows(self, poison: tuple[str, str | None, str]) -> None:
        """`poison`: aggregate type, aggregate id and payload of the row in the middle."""
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute("alter table outbox alter aggregate_id drop not null")
            connection.execute(INSERT, ("order", "1", "before", "{}"))
            kind, key, payload = poison
            connection.execute(INSERT, (kind, key, "poison", payload))
            connection.execute(INSERT, ("order", "1", "after", "{}"))

    def stop(self) -> str:
        """Start it as usual: it ends at the poison row. What it says."""
        return self.shell.run(BLOCKS["stop"], code=70).stderr

    def arrived(self, topic: str = "outbox.event.order") -> list[str | None]:
        """The types of our events on a topic, in their order."""
        with psycopg.connect(self.database.dsn) as connection:
            ours = {id_ for (id_,) in connection.execute("select id::text from outbox").fetchall()}
        return [
            record.header("type") for record in read_all(self.kafka.bootstrap, topic) if record.id in ours
        ]


@pytest.fixture
def stuck(outbox: Database, slot: str, kafka: Kafka, tmp_path: Path) -> Iterator[Stuck]:
    http = f"127.0.0.1:{free_port()}"
    shell = shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_DSN=outbox.dsn,
        CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
        CDC_OUTBOX_SLOT=slot,
        CDC_OUTBOX_LOG_FORMAT="text",
        CDC_OUTBOX_HTTP=http,
    )
    shell.run("cdc-outbox init")
    with kafka.without("outbox.event.order", "outbox.event.order_items", "outbox.event.unsorted"):
        yield Stuck(outbox, shell, kafka, http)


ILLEGAL = ("order items", "42", '{"items": 3}')


def test_each_block_is_tested() -> None:
    assert [found[1] for found in FENCE.finditer(PAGE)] == TESTED
    assert sum(line.lstrip().startswith("```") for line in PAGE.splitlines()) == 2 * len(TESTED)


def test_what_it_says_and_what_peek_shows(stuck: Stuck) -> None:
    stuck.rows(ILLEGAL)
    error, remedy = stuck.stop().splitlines()[-2:]
    error = re.sub(r"event [0-9a-f-]{36} of (\S+) at [0-9A-F]+/[0-9A-F]+,", r"event ID of \1 at LSN,", error)
    assert f"{error}\n{remedy}\n" == BLOCKS["error"]
    assert stuck.arrived() == ["before"]
    shown = stuck.shell.run(BLOCKS["look"]).stdout
    assert "poison (topic)" in shown
    assert "order items" in shown
    assert "row event_version    NULL" in shown


def test_a_topic_from_a_template(stuck: Stuck) -> None:
    stuck.rows(ILLEGAL)
    stuck.stop()
    stuck.shell.run(BLOCKS["topic"])
    assert stuck.arrived("outbox.event.unsorted") == ["poison", "after"]
    assert "missing      2\n" in stuck.shell.run("cdc-outbox audit --twice-ok", code=1).stdout
    stuck.shell.run(BLOCKS["audit"])
    stuck.shell.run(BLOCKS["stop"])


def test_a_row_without_a_key(stuck: Stuck) -> None:
    stuck.rows(("order", None, "{}"))
    stuck.stop()
    stuck.shell.run(BLOCKS["key"])
    assert sorted(map(str, stuck.arrived())) == ["after", "before", "poison"]


def test_a_row_that_is_too_large(stuck: Stuck) -> None:
    stuck.rows(("order", "1", f'"{"x" * 1_500_000}"'))
    remedy = stuck.stop().splitlines()[-1]
    found = re.search(r"--alter --topic (\S+) --add-config max.message.bytes=(\d+);", remedy)
    assert found is not None, remedy
    assert 1_500_000 < int(found[2]) < 4_194_304, "what the page's command allows"
    stuck.kafka.configure_topic(found[1], {"max.message.bytes": found[2]})
    try:
        stuck.shell.run(BLOCKS["larger"])
        assert stuck.arrived() == ["before", "poison", "after"]
    finally:
        stuck.kafka.configure_topic(found[1], {"max.message.bytes": None})


def test_leaving_it_out_and_sending_it_right(stuck: Stuck) -> None:
    stuck.rows(ILLEGAL)
    stuck.stop()
    stuck.shell.run(BLOCKS["leave-out"])
    assert stuck.arrived() == ["before", "after"]
    (stuck.shell.home / "insert.sql").write_text(BLOCKS["insert"])
    stuck.shell.run('psql -v ON_ERROR_STOP=1 "$CDC_OUTBOX_DSN" -f insert.sql')
    stuck.shell.run(BLOCKS["stop"])
    assert stuck.arrived("outbox.event.order_items") == ["ItemsPlaced"]


def test_blocking(stuck: Stuck, launched: Callable[[Shell, str], Running]) -> None:
    stuck.rows(ILLEGAL)
    running = launched(stuck.shell, BLOCKS["block"])

    def blocked() -> bool:
        try:
            urllib.request.urlopen(f"http://{stuck.http}/readyz", timeout=5).close()
        except urllib.error.HTTPError as answer:
            return answer.code == 503 and b'"blocked"' in answer.read()
        except OSError:
            return False
        return False

    eventually(blocked, 60, running.log.read_text)
    assert stuck.arrived() == ["before"]
    assert running.terminate() == 0
