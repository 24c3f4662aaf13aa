"""What a start says of slots and tables beside its own: a slip is seen, and nothing is passed over unsaid."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from psycopg.sql import SQL

from tests.integration.conftest import Database
from tests.integration.scene import PATIENCE, Scene, make_scene
from tests.servers.kafka import Kafka

__all__ = ["make_scene"]


@pytest.fixture
def scene(outbox: Database, kafka: Kafka, make_scene: Callable[..., Scene]) -> Scene:
    return make_scene(outbox.dsn, kafka, table=False)


@pytest.fixture
def elsewhere(database: Database, slot: str) -> Iterator[str]:
    """A slot of another database."""
    name = f"{database.name}_elsewhere"
    database.server.create_database(name)
    create = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
    database.server.execute(create, (f"{slot}_elsewhere",), dbname=name)
    yield f"{slot}_elsewhere"
    database.server.drop_database(name)


def noticed(scene: Scene, words: str) -> list[str]:
    """What the last relay noticed with these words in it, so far."""
    told = [str(record.get("what")) for record in scene.relays[-1].records]
    return [what for what in told if words in what]


def refused(scene: Scene) -> str:
    relay = scene.relay(state=None, http=False)
    assert relay.wait() == 78, relay.text()
    return str(relay.records[-1]["error"])


def test_a_missing_slot_names_those_of_this_database(scene: Scene, elsewhere: str) -> None:
    right = scene.slot
    scene.init()
    scene.value("select pg_create_logical_replication_slot(%s, 'test_decoding')::text", (f"{right}_foreign",))
    scene.slot = f"{right}_slip"
    assert refused(scene) == f'there is no replication slot "{scene.slot}"; this database has: {right}'


def test_a_missing_slot_names_none_where_there_is_none(scene: Scene, elsewhere: str) -> None:
    scene.sql(SQL("create publication outbox_pub for table outbox with (publish = 'insert')"))
    assert refused(scene) == f'there is no replication slot "{scene.slot}"'


def test_a_table_that_only_the_publication_names_is_warned_of_once(scene: Scene) -> None:
    scene.init()
    scene.sql(
        SQL('create table "Second Outbox" (id int)'),
        SQL('alter publication outbox_pub add table "Second Outbox"'),
    )
    relay, writer, consumer = scene.relay(), scene.writer(), scene.consumer()
    [warning] = noticed(scene, "passed over")
    assert warning.startswith('publication outbox_pub also has public."Second Outbox": rows of those')
    scene.sql(SQL('insert into "Second Outbox" values (1)'))
    consumer.wait_ids(writer.write(5))
    scene.value("select pg_terminate_backend(%s)::text", (scene.slot_value("active_pid"),))
    relay.wait_for(lambda record: record.get("event") == "waiting", PATIENCE, message="the end of a session")
    relay.wait_state("streaming", timeout=PATIENCE)
    consumer.wait_ids(writer.write(5))
    assert len(noticed(scene, "passed over")) == 1
    assert relay.terminate()[0] == 0


@pytest.mark.parametrize("scope", ["table outbox", "all tables"])
def test_a_publication_without_such_a_table_is_not_warned_of(scene: Scene, scope: str) -> None:
    """One of all tables, which was hardly made for us, would name them all."""
    scene.sql(SQL("create table other (id int)"))
    scene.sql(SQL(f"create publication outbox_pub for {scope} with (publish = 'insert')"))
    scene.init()
    assert scene.relay().terminate()[0] == 0
    assert noticed(scene, "passed over") == []
