"""F14: the table changes while rows are on their way. Each row is read by the columns that it was written with.

What isn't needed may come, go and change its name; what is needed may only go with a named stop, after everything
before it was delivered, and the printed ways out read old and new rows.
"""

from __future__ import annotations

import json
import re
import shlex
import uuid

import psycopg
import pytest
from psycopg.sql import SQL

from tests.servers.ledger import Consumer, Record
from tests.servers.pipeline import Pipeline
from tests.servers.wait import PATIENCE

UNNEEDED = (
    SQL("alter table outbox add column note text default 'new', add column amount numeric"),
    SQL("alter table outbox rename column note to remark"),
    SQL("alter table outbox alter column remark type varchar(40), alter column remark drop default"),
    SQL("alter table outbox drop column remark, add column note int"),
    SQL("alter table outbox drop column amount"),
    SQL("alter table outbox drop column event_version"),
    SQL("alter table outbox add column event_version int not null default 7"),
    SQL("alter table outbox drop column headers, drop column note"),
    SQL("alter table outbox add column headers jsonb"),
)


class Rows:
    """Writes rows with the columns that every state of the table has, in the caller's transactions."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.ids: list[str] = []
        self._type = pipeline.aggregate_type

    def insert(
        self,
        connection: psycopg.Connection,
        *,
        payload: str = "payload",
        key: str = "aggregate_id",
        rows: int = 3,
    ) -> None:
        for _ in range(rows):
            event_id = str(uuid.uuid4())
            connection.execute(
                SQL(
                    "insert into outbox (id, aggregate_type, {}, event_type, {}) values (%s, %s, 'k', 'made', %s)"
                ).format(SQL(key), SQL(payload)),
                (event_id, self._type, json.dumps({"place": len(self.ids)})),
            )
            self.ids.append(event_id)

    def arrived(self, consumer: Consumer) -> list[Record]:
        """Wait for all of them; once each, in their order, with their payload and key."""
        records = consumer.wait_ids(self.ids, PATIENCE)
        assert [record.id for record in records] == self.ids
        assert [record.json() for record in records] == [{"place": n} for n in range(len(self.ids))]
        assert {record.key for record in records} == {b"k"}
        return records


def refused(pipeline: Pipeline) -> tuple[str, str]:
    relay = pipeline.start(state=None, http=False)
    assert relay.wait() == 78, relay.text()
    return str(relay.records[-1]["error"]), str(relay.records[-1]["next"])


def test_F14_columns_that_are_not_needed_change_while_running(pipeline: Pipeline) -> None:  # noqa: N802
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        rows.insert(connection)
        for statement in UNNEEDED:
            connection.execute(statement)
            rows.insert(connection)
    versions = [record.header("version") for record in rows.arrived(consumer)]
    assert versions[0] is None
    assert versions[-1] == "7"
    assert relay.state() == "streaming"


def test_F14_columns_that_are_not_needed_change_within_a_transaction(pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.start()
    consumer, rows = pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn) as connection:
        rows.insert(connection)
        for statement in UNNEEDED:
            connection.execute(statement)
            rows.insert(connection)
    rows.arrived(consumer)


def test_F14_columns_that_are_not_needed_change_while_stopped(pipeline: Pipeline) -> None:  # noqa: N802
    """The backlog holds rows of ten tables, and the live catalogue knows the last one only."""
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        rows.insert(connection)
        rows.arrived(consumer)
        assert relay.terminate()[0] == 0
        for statement in UNNEEDED:
            rows.insert(connection)
            connection.execute(statement)
        rows.insert(connection)
    pipeline.start()
    rows.arrived(consumer)


def test_F14_the_table_is_rewritten_and_vacuumed(pipeline: Pipeline) -> None:  # noqa: N802
    """Neither changes what the table is, and neither is an incident."""
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        for statement in (
            SQL("vacuum full outbox"),
            SQL("vacuum (full, freeze) pg_catalog.pg_publication"),
            SQL("cluster outbox using outbox_pkey"),
            SQL("alter table outbox alter column aggregate_id type varchar"),
            SQL("truncate outbox"),
            SQL("alter table outbox replica identity full"),
        ):
            rows.insert(connection)
            connection.execute(statement)
        rows.insert(connection)
    rows.arrived(consumer)
    assert relay.state() == "streaming"
    assert pipeline.witness()["incidents"] == []


@pytest.mark.parametrize(
    ("role", "column", "successor"),
    [("payload", "payload", "what"), ("aggregate_id", "aggregate_id", "whose")],
)
@pytest.mark.parametrize("running", [True, False], ids=["running", "stopped"])
def test_F14_a_needed_column_is_renamed(  # noqa: N802 - the failure's own name
    role: str, column: str, successor: str, running: bool, pipeline: Pipeline
) -> None:
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        rows.insert(connection)
        rows.arrived(consumer)
        pipeline.wait_confirmed()
        if not running:
            assert relay.terminate()[0] == 0
        rows.insert(connection)
        before = list(rows.ids)
        connection.execute(SQL(f"alter table outbox rename column {column} to {successor}"))
        rows.insert(connection, **{"payload" if role == "payload" else "key": successor})  # type: ignore[arg-type]
    if running:
        assert relay.wait() == 78
        error, remedy = str(relay.records[-1]["error"]), str(relay.records[-1]["next"])
    else:
        error, remedy = refused(pipeline)
    assert column in error or role.replace("_", " ") in error
    if running:
        assert {record.id for record in consumer.wait_ids(before, PATIENCE)} == set(before)
    flag = f"--column {role}={successor},{column}"
    if running:  # it knew the old name, so that the remedy has both
        named = re.search(r"--column \S+", remedy)
        assert named
        assert named[0].replace("NEW", successor) == flag
    pipeline.start(*shlex.split(flag))
    rows.arrived(consumer)


def test_F14_a_needed_column_is_dropped(pipeline: Pipeline) -> None:  # noqa: N802 - the failure's own name
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        rows.insert(connection)
        connection.execute("alter table outbox drop column payload")
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, 'k', 'made')",
            (pipeline.aggregate_type,),
        )
    assert relay.wait() == 78
    assert "payload" in relay.records[-1]["error"]
    rows.arrived(consumer)
    confirmed = pipeline.slot_value("confirmed_flush_lsn::text")
    assert refused(pipeline)
    assert pipeline.slot_value("confirmed_flush_lsn::text") == confirmed


def test_F14_a_table_that_takes_the_name_of_the_old_one(pipeline: Pipeline) -> None:  # noqa: N802
    """What is written to it while the publication still has the old one is hidden: held, with the window."""
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        rows.insert(connection)
        rows.arrived(consumer)
        pipeline.wait_confirmed()
        with connection.transaction():
            connection.execute("alter table outbox rename to outbox_old")
            connection.execute("create table outbox (like outbox_old including all)")
        relay.wait_state("held")
        connection.execute("alter publication outbox_pub add table outbox")
        relay.wait_for(
            lambda record: "made again" in str(record.get("error")), PATIENCE, message="the incident"
        )
        assert relay.state() == "held"
        assert relay.terminate()[0] == 0
        rows.insert(connection)
    pipeline.start("--accept-gap")
    rows.arrived(consumer)


def test_F14_a_table_that_goes_by_another_name_for_a_moment(pipeline: Pipeline) -> None:  # noqa: N802
    """Between two looks of the guard nobody sees it. Its rows are ours all the same, by the table's OID."""
    relay, consumer, rows = pipeline.start(), pipeline.consumer(), Rows(pipeline)
    with psycopg.connect(pipeline.dsn) as connection:
        rows.insert(connection)
        connection.execute("alter table outbox rename to elsewhere")
        connection.execute(
            "insert into elsewhere (id, aggregate_type, aggregate_id, event_type, payload)"
            " values (%s, %s, 'k', 'made', %s)",
            (event_id := str(uuid.uuid4()), pipeline.aggregate_type, json.dumps({"place": len(rows.ids)})),
        )
        rows.ids.append(event_id)
        connection.execute("alter table elsewhere rename to outbox")
        rows.insert(connection)
    rows.arrived(consumer)
    assert relay.state() == "streaming"
