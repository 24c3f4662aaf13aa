"""Every command of `docs/tutorial/first-event.md`, run as it stands there, on real servers."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.postgres import PostgresServer
from tests.servers.process import free_port
from tests.servers.shell import Shell, blocks, shell_of_checkout

PAGE = blocks((CHECKOUT / "docs" / "tutorial" / "first-event.md").read_text())
TOPIC = "outbox.event.order"

# The README's commands, and those of other pages, write to the same topic.
pytestmark = pytest.mark.xdist_group("readme")


@pytest.fixture
def shell(
    make_postgres: Callable[..., PostgresServer], kafka: Kafka, tmp_path: Path
) -> Iterator[tuple[Shell, PostgresServer]]:
    server = make_postgres()
    shell = shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_DSN=server.create_database("app"),
        CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
        CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}",
    )
    with kafka.without(TOPIC):
        yield shell, server


def test_the_tutorial(shell: tuple[Shell, PostgresServer], kafka: Kafka) -> None:
    reader, server = shell
    assert list(PAGE) == ["start", "insert", "rollback", "kill", "audit", "drop"]
    reader.run(f"{PAGE['start']}export RELAY")
    relay = int(reader.run("echo $RELAY").stdout)
    try:
        found = reader.run(PAGE["insert"]).stdout
        assert "delivered" in found
        assert f"{TOPIC}, partition 0, offset 0" in found
        log = reader.home / "relay.log"
        assert "first event confirmed" in log.read_text()
        reader.run(PAGE["rollback"])
        reader.run(PAGE["kill"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(relay, signal.SIGKILL)
    reader.run(PAGE["audit"])
    ours = {str(id_) for (id_,) in server.execute("select id from outbox", dbname="app")}
    arrived = [record.header("type") for record in read_all(kafka.bootstrap, TOPIC) if record.id in ours]
    assert list(dict.fromkeys(arrived)) == ["OrderPlaced", "OrderPaid"]
    reader.run(PAGE["drop"])
    assert server.value("select count(*) from pg_replication_slots") == 0
