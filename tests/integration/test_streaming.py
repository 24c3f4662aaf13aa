"""Plain streaming, on each version of PostgreSQL: everything that committed, nothing that didn't, in order, once."""

from __future__ import annotations

import json
import uuid

import psycopg
from psycopg.sql import SQL, Identifier, Literal

from cdc_outbox.lsn import LSN
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.pipeline import Pipeline
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE

pytestmark = ALL_VERSIONS

INSERT = "insert into outbox (id, aggregate_type, aggregate_id, event_type, payload) values (%s, %s, %s, 'made', %s)"


def test_what_commits_arrives_in_order_and_once(pipeline: Pipeline) -> None:
    """Several writers, rollbacks, transactions of several rows; restarts in between, and a backlog at the start."""
    writer = pipeline.writer(rate=400, threads=3, rows_per_transaction=3, rollback_share=0.2)
    consumer = pipeline.consumer()
    writer.write(200)
    writer.stop()
    relay = pipeline.start()
    writer.start()
    for _ in range(2):
        writer.wait_written(200, PATIENCE)
        assert relay.terminate()[0] == 0
        writer.wait_written(50, PATIENCE)
        relay = pipeline.start()
    writer.wait_written(50, PATIENCE)
    verdict = pipeline.books(writer, consumer)
    print(verdict)
    assert not verdict.duplicates
    pipeline.wait_confirmed()
    assert relay.terminate()[0] == 0


def test_transactions_of_every_shape(pipeline: Pipeline) -> None:
    """Savepoints, a prepared transaction, one that began first and commits last, an insert that is deleted at once."""
    pipeline.start()
    consumer = pipeline.consumer()

    def row(key: str) -> tuple[str, str, str, str]:
        event_id = str(uuid.uuid4())
        return event_id, pipeline.aggregate_type, key, json.dumps({"key": key})

    expected: list[str] = []
    never: list[str] = []
    with psycopg.connect(pipeline.dsn) as early, psycopg.connect(pipeline.dsn, autocommit=True) as late:
        first = row("overtaken")
        early.execute(INSERT, first)
        second = row("overtaken")
        late.execute(INSERT, second)
        with early.transaction():
            kept = row("savepoint")
            early.execute(INSERT, kept)
            with early.transaction(force_rollback=True):
                lost = row("savepoint")
                early.execute(INSERT, lost)
                never.append(lost[0])
        early.commit()
        expected += [second[0], first[0], kept[0]]
        gone = row("deleted")
        with late.transaction():
            late.execute(INSERT, gone)
            late.execute("delete from outbox where id = %s", (gone[0],))
        expected.append(gone[0])
        rolled_back = row("rolled back")
        with late.transaction(force_rollback=True):
            late.execute(INSERT, rolled_back)
        never.append(rolled_back[0])
        updated = row("updated")
        late.execute(INSERT, updated)
        late.execute("update outbox set payload = '{}' where id = %s", (updated[0],))
        expected.append(updated[0])
    with psycopg.connect(pipeline.dsn) as preparing:
        prepared = row("prepared")
        preparing.tpc_begin(preparing.xid(1, pipeline.slot, "outbox"))
        preparing.execute(INSERT, prepared)
        preparing.tpc_prepare()
        preparing.tpc_commit()
        expected.append(prepared[0])
    records = consumer.wait_ids(expected, PATIENCE)
    assert sorted(str(record.id) for record in records) == sorted(expected)
    assert not {record.id for record in records} & set(never)
    overtaken = [record.id for record in records if record.key == b"overtaken"]
    assert overtaken == [second[0], first[0]], "the order of commits, not of inserts"
    pipeline.wait_confirmed()


def test_a_large_transaction_and_a_copy(pipeline: Pipeline) -> None:
    pipeline.start()
    consumer = pipeline.consumer()
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " select %s, (n %% 100)::text, 'made', jsonb_build_object('n', n) from generate_series(1, 5000) n",
            (pipeline.aggregate_type,),
        )
        with connection.cursor().copy(
            "copy outbox (aggregate_type, aggregate_id, event_type, payload) from stdin"
        ) as copy:
            for n in range(5001, 10001):
                copy.write_row((pipeline.aggregate_type, str(n % 100), "made", json.dumps({"n": n})))
        ids = {str(found[0]) for found in connection.execute("select id from outbox")}
    records = consumer.wait_ids(ids, PATIENCE)
    assert len(records) == len(ids) == 10_000
    last: dict[bytes | None, int] = {}
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        assert last.get(record.key, 0) < record.json()["n"]
        last[record.key] = record.json()["n"]
    pipeline.wait_confirmed()


def test_the_role_that_init_makes_has_every_right_it_needs(pipeline: Pipeline, database: Database) -> None:
    """It streams, confirms, writes the witness, sees what the publication hides, and takes over from another relay."""
    role, password = f"relay_{pipeline.slot}", "its-own-secret"
    owner = {"CDC_OUTBOX_DSN": pipeline.dsn}
    try:
        made = run_command("init", "--slot", pipeline.slot, "--role", role, env=owner)
        assert made.returncode == 0, made.stderr
        pipeline.sql(SQL("alter role {} password {}").format(Identifier(role), Literal(password)))
        dsn = database.server.dsn(database.name, user=role, password=password)
        relay, writer, consumer = pipeline.start(way=dsn), pipeline.writer(), pipeline.consumer()
        standby = pipeline.start(way=dsn, state="standby")
        consumer.wait_ids(writer.write(20))
        pipeline.wait_confirmed()
        relay.kill()
        standby.wait_state("streaming")
        consumer.wait_ids(writer.write(20))
        pipeline.wait_confirmed()
        confirmed = pipeline.confirmed()  # asked first: the witness moves on before the slot
        assert LSN.parse(pipeline.witness()["position"]) >= confirmed
        pipeline.sql(SQL("alter publication outbox_pub set (publish = 'update')"))
        standby.wait_state("held")
        assert [incident["kind"] for incident in pipeline.witness()["incidents"]] == ["hidden"]
        pipeline.sql(SQL("alter publication outbox_pub set (publish = 'insert')"))
        standby.wait_for(lambda record: "made again" in str(record.get("error")), PATIENCE)
        assert standby.terminate()[0] == 0
        pipeline.start("--accept-gap", way=dsn)
        writer.write(20)
        print(pipeline.books(writer, consumer))
    finally:
        for each in pipeline.relays:
            each.close()
        pipeline.sql(
            SQL("drop owned by {}").format(Identifier(role)), SQL("drop role {}").format(Identifier(role))
        )
