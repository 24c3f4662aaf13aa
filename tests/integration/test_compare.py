"""`peek --follow --compare` as its users run it: beside a polling relay, and nothing changes by it."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from cdc_outbox.postgres import catalogue, lookup
from cdc_outbox.postgres.unseen import Unseen
from cdc_outbox.repair.old_book import Book
from cdc_outbox.settings import load
from cdc_outbox.table.mapping import Mapping
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.peeked import TEMPORARY, Make, Place, lines_of
from tests.polling.table import A, B, Table
from tests.servers.kafka import Kafka
from tests.servers.process import free_port
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

INSERT_A: LiteralString = (
    "insert into outbox (aggregate_type, aggregate_id, topic, payload, status)"
    " values ('order', %s, %s, '{}', %s) returning id::text"
)


class Trial:
    """A database with a polling relay's table, and a comparison on it."""

    def __init__(self, database: Database, slot: str, bootstrap: str, make_relay: Make, table: Table) -> None:
        self.database = database
        self.place = Place(database, slot, bootstrap)
        self._make_relay = make_relay
        table.make(database.dsn)
        done = self.place.run("init", "--only", "publication", *table.key_flags)
        assert done.returncode == 0, done.stderr

    def start(self, *flags: str) -> RelayProcess:
        process = self._make_relay(
            self.database.dsn,
            self.place.bootstrap,
            slot=self.place.slot,
            command="peek",
            http=False,
            flags=["--follow", *flags],
        )
        process.wait_for(lambda record: record["event"] == "following", 60, message="peek follows")
        return process

    def insert(self, key: str, *, topic: str = "orders", status: str = "pending") -> str:
        return str(self.place.execute(INSERT_A, (key, topic, status))[0][0])


@pytest.fixture
def trial(database: Database, slot: str, make_relay: Make) -> Trial:
    """On table A. Kafka is away."""
    return Trial(database, slot, f"127.0.0.1:{free_port()}", make_relay, A)


def account_of(process: RelayProcess, code: int) -> dict[str, Any]:
    assert process.wait(90) == code, process.text()
    return dict(json.loads(process.output[-1]))


@ALL_VERSIONS
def test_marked_and_deleted_rows_are_the_same_and_what_was_just_written_is_undecided(trial: Trial) -> None:
    process = trial.start("--compare", "1h", "--json", "--limit", "9")
    marked, deleted, waits = trial.insert("1"), trial.insert("2"), trial.insert("3")
    trial.insert("4", status="sent")
    trial.place.execute("update outbox set status = 'sent', sent_at = now() where id = %s", (int(marked),))
    trial.place.execute("delete from outbox where id = %s", (int(deleted),))
    trial.place.execute("update outbox set status = 'processing' where id = %s", (int(waits),))
    with psycopg.connect(trial.database.dsn) as connection:  # whoever has the row isn't waited for
        connection.execute("select from outbox where id = %s for update", (int(waits),))
        lines_of(process, 3)
        process.signal(signal.SIGINT)
        account = account_of(process, 0)
    assert {name: account[name] for name in ("events", "same", "different", "undecided", "neither")} == {
        "events": 3,
        "same": 2,
        "different": 0,
        "undecided": 1,
        "neither": 0,
    }
    assert account["left_out"] == {"sent": 1}
    assert 0 <= account["old_relay_delay_seconds"]["p50"] <= account["old_relay_delay_seconds"]["max"] < 30
    assert account["differences"] == []
    eventually(lambda: not trial.place.execute(TEMPORARY), PATIENCE, "the temporary slot is gone")


def test_each_difference_is_named_with_its_step(
    database: Database, slot: str, kafka: Kafka, topics: str, make_relay: Make
) -> None:
    topic = f"{topics}orders"
    kafka.create_topic(topic, partitions=1)
    trial = Trial(database, slot, kafka.bootstrap, make_relay, B)
    process = trial.start("--compare", "1h", "--limit", "9", *B.key_flags)
    rows = [("kafka", topic), ("nats", topic), ("kafka", "no topic"), ("kafka", "absent")]
    for number, (bus, where) in enumerate(rows):
        trial.place.execute(
            "insert into outbox (event_id, bus, topic, payload, status)"
            " values (%s, %s, %s, '{\"order_id\": 7}', 'pending')",
            (f"00000000-0000-0000-0000-00000000000{number}", bus, where),
        )
    trial.place.execute("update outbox set status = 'sent', sent_at = now()")
    eventually(lambda: "absent" in "".join(process.output), PATIENCE, process.text)
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 1, process.text()
    shown = "\n".join(process.output)
    for number, difference in enumerate(
        (
            "ours would leave out (nats), the old relay sent",
            "ours would stop at (topic), the old relay sent",
            "ours could not deliver (unknown_topic), the old relay sent",
        ),
        1,
    ):
        assert f"DIFFERENT: {difference}" in shown
        after = shown.partition(difference)[2].splitlines()
        assert after[2].split() == ["ids:", f"00000000-0000-0000-0000-00000000000{number}"]
        assert after[3].split()[0] == "next:"
    assert "1  sent by the old relay, and ours would send them" in shown
    assert process.output[-1] == "3 of 4 events would be different"


def test_what_can_not_be_compared_is_refused_with_a_step(trial: Trial) -> None:
    place = trial.place
    error, remedy = place.refused("--follow", "--compare", "soon", code=2)
    assert "not 'soon'" in error
    assert "--compare 60" in remedy
    error, remedy = place.refused("--compare", "60", code=2)
    assert remedy == f"next: cdc-outbox peek --slot {place.slot} --follow --compare 60"
    place.execute("drop publication outbox_pub")
    error, remedy = place.refused("--follow", "--compare", "60")
    assert remedy == f"next: cdc-outbox init --slot {place.slot} --only publication"
    error, remedy = place.refused()
    assert remedy == f"next: cdc-outbox init --slot {place.slot}"
    assert place.run("init", "--only", "publication").returncode == 0
    place.execute("alter table outbox drop constraint outbox_pkey")
    error, remedy = place.refused("--follow", "--compare", "60")
    assert "has no index" in error
    assert "create unique index concurrently outbox_id_idx on public.outbox (id)" in remedy
    place.execute("create unique index concurrently outbox_id_idx on outbox (id)")
    place.execute("alter table outbox drop status, drop sent_at")
    error, remedy = place.refused("--follow", "--compare", "60")
    assert "neither a status nor a time of sending" in error
    assert "--deleted-is-sent" in remedy
    process = trial.start("--compare", "1h", "--deleted-is-sent", "--json", "--limit", "1")
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, topic, payload) values ('order', '1', 'orders', '{}')"
    )
    place.execute("delete from outbox")
    lines_of(process, 1)
    process.signal(signal.SIGTERM)
    assert account_of(process, 0)["old_relay_delay_seconds"]["at_most"] is True


def test_reading_the_table_takes_a_right_and_the_same_database(trial: Trial) -> None:
    place = trial.place
    role = f"peeker_{place.slot}"
    with psycopg.connect(place.database.dsn, autocommit=True) as owner:
        owner.execute(SQL("create role {} login replication password 'x'").format(Identifier(role)))
    try:
        dsn = place.database.server.dsn(place.database.name, user=role, password="x")
        done = place.run("peek", "--follow", "--compare", "60", dsn=dsn)
        assert done.returncode == 78, done.stderr
        assert f"grant select on public.outbox to {role}" in done.stderr
        elsewhere = place.database.server.dsn("postgres")
        done = run_command(
            "peek",
            "--follow",
            "--compare",
            "60",
            "--admin-dsn",
            elsewhere,
            env={"CDC_OUTBOX_DSN": place.database.dsn},
        )
        assert done.returncode == 78, done.stderr
        assert "let both name the same server and database" in done.stderr
    finally:
        with psycopg.connect(place.database.dsn, autocommit=True) as owner:
            owner.execute(SQL("drop role {}").format(Identifier(role)))


def test_rows_that_seem_sent_from_the_insert_on_and_that_the_old_relay_took_up_are_named(
    trial: Trial,
) -> None:
    """`published_at` is the article's, and the old relay deletes what it has sent: ours would leave it out."""
    place = trial.place
    place.execute("alter table outbox drop status, drop sent_at, add published_at timestamptz")
    process = trial.start("--compare", "1h", "--deleted-is-sent")
    insert: LiteralString = (
        "insert into outbox (aggregate_type, aggregate_id, topic, payload, published_at)"
        " values ('order', '1', 'orders', '{}', now()) returning id"
    )
    ((taken,),), ((left,),) = place.execute(insert), place.execute(insert)
    place.execute(
        "insert into outbox (aggregate_type, aggregate_id, topic, payload) values ('a', 'b', 'c', '{}')"
    )
    eventually(lambda: "committed" in "".join(process.output), PATIENCE, process.text)
    place.execute("delete from outbox where published_at is null or id = %s", (taken,))
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 1, process.text()
    shown = "\n".join(process.output)
    assert "1  DIFFERENT: ours would leave out (inserted as sent), the old relay sent" in shown
    assert f"ids: {taken}\n" in shown
    assert "--column created_at=NAME" in shown
    assert "1  inserted as sent (sent), not compared" in shown
    assert process.output[-1] == "1 of 2 events would be different"
    assert left != taken


def test_a_status_that_is_not_the_outboxs_own(trial: Trial) -> None:
    """A row that is `completed` from its insert on is sent by both, as the old relay goes by `sent_at`."""
    trial.place.execute("alter table outbox drop constraint outbox_status_check")
    process = trial.start("--compare", "1h", "--json", "--limit", "2")
    marked = trial.insert("1", status="completed")
    trial.insert("2", status="completed")
    trial.place.execute("update outbox set sent_at = now() where id = %s", (int(marked),))
    lines_of(process, 2)
    process.signal(signal.SIGINT)
    account = account_of(process, 0)
    assert (account["same"], account["undecided"], account["left_out"]) == (1, 1, {})


def test_what_an_update_has_written_is_named(trial: Trial) -> None:
    """Ours sends inserts: neither what an UPDATE has made of a row, nor a row that is set back to unsent."""
    place = trial.place
    old, backlog, touched = (trial.insert(key) for key in ("old", "backlog", "touched"))
    sent: LiteralString = "update outbox set status = 'sent', sent_at = clock_timestamp() where id = any(%s)"
    place.execute(sent, ([int(old), int(touched)],))
    process = trial.start("--compare", "1h", "--json", "--limit", "9")
    with psycopg.connect(trial.database.dsn) as connection:
        ((filled,),) = connection.execute(INSERT_A, ("filled", "orders", "pending")).fetchall()
        connection.execute(
            "update outbox set payload = '{\"n\": 1}', attempts = 1 where id = %s", (int(filled),)
        )
    whole = trial.insert("whole")
    lines_of(process, 2)
    place.execute(
        "update outbox set payload = '{\"n\": 2}', status = 'pending', sent_at = null where id = %s",
        (int(old),),
    )
    place.execute("update outbox set attempts = 7 where id = %s", (int(touched),))
    place.execute(sent, ([int(id_) for id_ in (old, backlog, filled, whole)],))
    process.signal(signal.SIGINT)
    account = account_of(process, 1)
    assert (account["events"], account["same"], account["updates_unknown"]) == (3, 1, False)
    told = {each["kind"]: (each["what"], each["ids"], each["sent"]) for each in account["differences"]}
    assert told == {"changed": ("payload", [filled], True), "never inserted": ("", [old], True)}
    assert all("one INSERT" in each["next"] for each in account["differences"])


def test_without_a_time_of_sending_nobody_knows_of_updates(trial: Trial) -> None:
    trial.place.execute("alter table outbox drop sent_at")
    process = trial.start("--compare", "1h", "--limit", "1")
    id_ = trial.insert("1")
    eventually(lambda: "committed" in "".join(process.output), PATIENCE, process.text)
    trial.place.execute("update outbox set status = 'sent' where id = %s", (int(id_),))
    process.signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0, process.text()
    assert "note: rows that an UPDATE sets back to unsent were not looked for" in "".join(process.output)


def test_a_row_that_is_marked_while_the_backlog_is_read_was_not_written_anew(database: Database) -> None:
    A.make(database.dsn)
    settings = load("peek", {"dsn": database.dsn}, {}, Path("/nonexistent"))
    (table,) = settings.outbox.tables

    async def sent_since(marking: psycopg.Connection) -> frozenset[str] | None:
        async with lookup.connected(settings.postgres, "test") as conn:
            plan = await catalogue.preview(conn, Mapping(settings.outbox, "s"), table, "p")
            assert plan is not None
            marking.execute("lock table outbox in access exclusive mode")
            beginning = asyncio.create_task(Unseen.begin(conn, table, Book.of(plan)))
            while not marking.execute("select from pg_locks where not granted").fetchall():
                await asyncio.sleep(0)
            # A transaction of its own number, which is younger than the moment at which the reading began.
            with marking.transaction():
                marking.execute("update outbox set status = 'sent', sent_at = clock_timestamp()")
            marking.commit()
            unseen = await beginning
            assert unseen is not None
            return await unseen.sent_since()

    with psycopg.connect(database.dsn) as connection:
        connection.execute(INSERT_A, ("1", "orders", "pending"))
        connection.commit()
        assert asyncio.run(sent_since(connection)) == frozenset()


def test_a_table_without_columns_is_none(trial: Trial) -> None:
    trial.place.execute("create table bare ()")
    trial.place.execute("alter publication outbox_pub set table bare")
    error, remedy = trial.place.refused("--follow", "--compare", "60", "--table", "bare")
    assert "public.bare" in error
    assert remedy == "next: name the outbox table with --table SCHEMA.NAME"
