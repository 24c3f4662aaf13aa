"""What a start says of slots and tables beside its own: a slip is seen, and nothing is passed over unsaid."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

import pytest
from psycopg.sql import SQL, Identifier

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE


@pytest.fixture
def pipeline(outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    return make_pipeline(outbox, kafka).prepare()


@pytest.fixture
def elsewhere(database: Database, slot: str) -> Iterator[str]:
    """A slot of another database."""
    name = f"{database.name}_elsewhere"
    database.server.create_database(name)
    create = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
    database.server.execute(create, (f"{slot}_elsewhere",), dbname=name)
    yield f"{slot}_elsewhere"
    database.server.drop_database(name)


def noticed(pipeline: Pipeline, words: str) -> list[str]:
    """What the last relay noticed with these words in it, so far."""
    told = [str(record.get("what")) for record in pipeline.relays[-1].records]
    return [what for what in told if words in what]


def refused(pipeline: Pipeline) -> str:
    relay = pipeline.start(state=None, http=False)
    assert relay.wait() == 78, relay.text()
    return str(relay.records[-1]["error"])


def test_a_missing_slot_names_those_of_this_database(pipeline: Pipeline, elsewhere: str) -> None:
    right = pipeline.slot
    pipeline.init()
    pipeline.value(
        "select pg_create_logical_replication_slot(%s, 'test_decoding')::text", (f"{right}_foreign",)
    )
    pipeline.slot = f"{right}_slip"
    assert refused(pipeline) == f'there is no replication slot "{pipeline.slot}"; this database has: {right}'


def test_a_missing_slot_names_none_where_there_is_none(pipeline: Pipeline, elsewhere: str) -> None:
    pipeline.sql(SQL("create publication outbox_pub for table outbox with (publish = 'insert')"))
    assert refused(pipeline) == f'there is no replication slot "{pipeline.slot}"'


def test_a_table_that_only_the_publication_names_is_refused_and_each_remedy_works(
    pipeline: Pipeline,
) -> None:
    """Its rows would be confirmed with ours, and nobody else could have them."""
    pipeline.init()
    second(pipeline)
    ids = {insert(pipeline, "outbox", "a"), insert(pipeline, "second", "b")}
    relay = pipeline.start(state=None, http=False)
    assert relay.wait() == 78, relay.text()
    error, remedy = str(relay.records[-1]["error"]), str(relay.records[-1]["next"])
    assert error.startswith("publication outbox_pub also has public.second: a relay of public.outbox alone")
    with_all, _, dropping = remedy.partition("; or, where their rows need no delivery: ")
    assert dropping == "alter publication outbox_pub drop table public.second;"
    again = run_command("init", "--slot", pipeline.slot, env={"CDC_OUTBOX_DSN": pipeline.dsn})
    assert again.returncode == 78
    assert error in again.stderr
    flags = shlex.split(with_all)[4:]
    assert flags[:4] == ["--table", "public.outbox", "--table", "public.second"]
    named = pipeline.start(*flags)
    pipeline.consumer().wait_ids(ids, PATIENCE)
    assert named.terminate()[0] == 0


def test_a_table_that_only_the_publication_names_and_another_slot_may_feed_is_warned_of_once(
    pipeline: Pipeline,
) -> None:
    pipeline.init()
    pipeline.sql(
        SQL('create table "Second Outbox" (id int)'),
        SQL('alter publication outbox_pub add table "Second Outbox"'),
    )
    pipeline.value(
        "select pg_create_logical_replication_slot(%s, 'pgoutput')::text", (f"{pipeline.slot}_second",)
    )
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    relay.wait_for(lambda record: "passed over" in str(record.get("what")), message="the warning")
    [warning] = noticed(pipeline, "passed over")
    assert warning.startswith('publication outbox_pub also has public."Second Outbox": rows of those')
    pipeline.sql(SQL('insert into "Second Outbox" values (1)'))
    consumer.wait_ids(writer.write(5))
    pipeline.value("select pg_terminate_backend(%s)::text", (pipeline.slot_value("active_pid"),))
    relay.wait_for(lambda record: record.get("event") == "waiting", PATIENCE, message="the end of a session")
    relay.wait_state("streaming")
    consumer.wait_ids(writer.write(5))
    assert len(noticed(pipeline, "passed over")) == 1
    assert relay.terminate()[0] == 0


@pytest.mark.parametrize("scope", ["table outbox", "all tables"])
def test_a_publication_without_such_a_table_is_not_warned_of(pipeline: Pipeline, scope: str) -> None:
    """One of all tables, which was hardly made for us, would name them all."""
    pipeline.sql(SQL("create table other (id int)"))
    pipeline.sql(SQL(f"create publication outbox_pub for {scope} with (publish = 'insert')"))
    pipeline.init()
    assert pipeline.start().terminate()[0] == 0
    assert noticed(pipeline, "passed over") == []


def second(pipeline: Pipeline) -> None:
    """Another outbox, which the publication has too."""
    pipeline.sql(
        SQL("create table second (like outbox including all)"),
        SQL("alter publication outbox_pub add table second"),
    )


def insert(pipeline: Pipeline, table: str, key: str) -> str:
    statement = SQL(
        "insert into {} (aggregate_type, aggregate_id, event_type) values (%s, %s, 'x') returning id::text"
    ).format(Identifier(table))
    return str(pipeline.value(statement, (pipeline.aggregate_type, key)))


def test_a_slot_that_feeds_another_table_is_refused_and_the_remedy_loses_nothing(pipeline: Pipeline) -> None:
    pipeline.init()
    second(pipeline)
    ids = {insert(pipeline, "outbox", "a"), insert(pipeline, "second", "b")}
    relay = pipeline.start("--table", "second", state=None, http=False)
    assert relay.wait() == 78, relay.text()
    error, remedy = str(relay.records[-1]["error"]), str(relay.records[-1]["next"])
    assert f"the slot {pipeline.slot} feeds public.outbox too" in error
    program, command, *flags = shlex.split(remedy.partition(";")[0])
    assert (program, command) == ("cdc-outbox", "start")
    assert flags[:6] == ["--slot", pipeline.slot, "--table", "public.outbox", "--table", "public.second"]
    pipeline.start(*flags[2:])
    pipeline.consumer().wait_ids(ids, PATIENCE)


def test_a_table_that_is_given_up_is_accepted_once(pipeline: Pipeline) -> None:
    pipeline.init()
    second(pipeline)
    insert(pipeline, "outbox", "a")
    kept = insert(pipeline, "second", "b")
    relay = pipeline.start("--table", "second", state=None, http=False)
    assert relay.wait() == 78, relay.text()
    *_, dropping = str(relay.records[-1]["next"]).split("need no delivery any more, ")
    assert "(alter publication outbox_pub drop table public.outbox;)" in dropping
    pipeline.sql(SQL("alter publication outbox_pub drop table public.outbox"))
    flags = shlex.split(dropping.partition("cdc-outbox start ")[2])[2:]
    assert flags[:3] == ["--accept-gap", "--table", "public.second"]
    accepted = pipeline.start(*flags)
    pipeline.consumer().wait_ids({kept}, PATIENCE)
    assert accepted.terminate()[0] == 0
    pipeline.start("--table", "second")


def test_a_table_that_was_renamed_is_no_other(pipeline: Pipeline) -> None:
    pipeline.init()
    pipeline.sql(SQL("alter table outbox rename to events"))
    pipeline.start("--table", "events")


def test_a_publication_for_all_tables_is_no_excuse(pipeline: Pipeline) -> None:
    pipeline.sql(
        SQL("create table second (like outbox including all)"),
        SQL("create publication outbox_pub for all tables with (publish = 'insert')"),
    )
    pipeline.init()
    relay = pipeline.start("--table", "second", state=None, http=False)
    assert relay.wait() == 78, relay.text()
    assert "feeds public.outbox too" in str(relay.records[-1]["error"])
