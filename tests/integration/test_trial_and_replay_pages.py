"""Every command of the pages on trying it beside the old relay and on replaying, run as it stands there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.integration.conftest import Database
from tests.polling.process import PollingRelay
from tests.polling.shop import Shop
from tests.polling.table import A
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import read_all
from tests.servers.process import free_port
from tests.servers.shell import Shell, blocks, shell_of_checkout
from tests.servers.wait import eventually

TRIAL = blocks((CHECKOUT / "docs" / "how-to" / "try-beside-the-old-relay.md").read_text())
REPLAY = blocks((CHECKOUT / "docs" / "how-to" / "replay.md").read_text())


@pytest.fixture
def shell_at(slot: str, kafka: Kafka, tmp_path: Path) -> Callable[[Database], Shell]:
    def at(database: Database) -> Shell:
        return shell_of_checkout(
            tmp_path,
            CDC_OUTBOX_DSN=database.dsn,
            CDC_OUTBOX_BOOTSTRAP_SERVERS=kafka.bootstrap,
            CDC_OUTBOX_SLOT=slot,
            CDC_OUTBOX_LOG_FORMAT="text",
            CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}",
        )

    return at


def test_the_trial(
    database: Database, kafka: Kafka, topics: str, shell_at: Callable[[Database], Shell]
) -> None:
    assert list(TRIAL) == ["publication", "look", "compare", "long", "drop"]
    A.make(database.dsn)
    topic = f"{topics}orders"
    kafka.create_topic(topic, partitions=3)
    shell = shell_at(database)
    shell.run(TRIAL["publication"])
    relay = PollingRelay(A, database.dsn, kafka.bootstrap, name="polling")
    shop = Shop(A, database.dsn, [topic], seed=2, rate=50).open().start()
    try:
        assert shell.run(TRIAL["look"]).stdout.count("header id") == 3
        said = shell.run(TRIAL["compare"]).stdout
        assert "sent by the old relay, and ours would send them" in said
        assert "events: nothing would be different" in said
        running = shell.launch(TRIAL["long"])
        running.wait(lambda: "following" in running.log.read_text())
        shop.wait_written(20)
        code = running.terminate()
        written = (shell.home / "account.json").read_text()
        assert code == 0, running.log.read_text() + written
        account = json.loads(written)
        assert account["different"] == 0
        assert account["same"] > 0
    finally:
        shop.stop()
        relay.close()
    shell.run(TRIAL["drop"])
    with psycopg.connect(database.dsn) as connection:
        assert connection.execute("select from pg_publication").fetchall() == []


def test_the_replay(outbox: Database, kafka: Kafka, shell_at: Callable[[Database], Shell]) -> None:
    assert list(REPLAY) == ["look", "replay", "beside"]
    topic = "outbox.event.order"
    shell = shell_at(outbox)
    shell.run("cdc-outbox init")

    def again() -> list[str | None]:
        return [
            record.header("type")
            for record in read_all(kafka.bootstrap, topic)
            if record.header("cdc.source") == "replay" and record.id in ids
        ]

    with kafka.without(topic):
        with psycopg.connect(outbox.dsn) as connection:
            rows = connection.execute(
                "insert into outbox (aggregate_type, aggregate_id, event_type, created_at) select 'order',"
                " 'order-' || key, 'type-' || n, now() - interval '5 hours' + n * interval '1 hour'"
                " from generate_series(1, 4) n, (values (17), (18)) keys (key) returning id::text"
            ).fetchall()
        ids = {id_ for (id_,) in rows}
        shell.run("cdc-outbox start --create-topics --until-caught-up")
        assert "1 event of public.outbox" in shell.run(REPLAY["look"]).stdout
        assert shell.run(REPLAY["replay"]).stdout == f"published 1 event again: 1 to {topic}\n"
        assert again() == ["type-4"]
        relay = shell.launch("cdc-outbox start")
        relay.wait(lambda: "streaming" in relay.log.read_text())

        def beside() -> bool:
            with psycopg.connect(
                outbox.dsn
            ) as connection:  # the relay records what it has delivered with new WAL
                connection.execute("create table if not exists other (filled text)")
                connection.execute(
                    "insert into other select repeat(md5(n::text), 50) from generate_series(1, 500) n"
                )
            return shell.run(REPLAY["beside"], code=None).returncode == 0

        eventually(beside, 60, relay.log.read_text)
        assert relay.terminate() == 0
        assert again() == ["type-4", "type-4"]
