"""What rows hold is anybody's, and steers the terminal of nobody who runs a command."""

from __future__ import annotations

import pytest

from tests.integration.conftest import Database
from tests.integration.passage import Passage
from tests.servers.kafka import Kafka
from tests.servers.relay import run_command

EVIL = "evil\x1b[2J\x07"
SPELLED = r"evil\x1b[2J\x07"


@pytest.fixture
def passage(database: Database, kafka: Kafka, slot: str, topics: str) -> Passage:
    """A row that was delivered, and one whose message is in the topic while the row is gone."""
    passage = Passage(database, kafka, slot, topics)
    passage.sql(
        "create table outbox (id text primary key, topic text, aggregate_id text, payload text,"
        " created_at timestamptz default now())"
    )
    passage.init()
    topic = passage.topic("orders")
    insert = "insert into outbox (id, topic, aggregate_id, payload) values (%s, %s, %s, '')"
    for id_ in (EVIL, EVIL + "gone"):
        passage.sql(insert, id_, topic, EVIL)
    passage.run()
    passage.sql("delete from outbox where id = %s", EVIL + "gone")
    return passage


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("find", EVIL), 0),
        (("find", EVIL + "unknown"), 1),
        (("audit", "--settled"), 1),
        (("replay", "--dry-run", "--aggregate", EVIL), 0),
        (("replay", "--dry-run", "--id", EVIL + "absent"), 1),
    ],
)
def test_no_command_hands_it_on(passage: Passage, command: tuple[str, ...], code: int) -> None:
    done = run_command(
        *(*command, "--slot", passage.slot, "--bootstrap-servers", passage.kafka.bootstrap),
        env=passage.environment,
    )
    assert done.returncode == code, done.stdout + done.stderr
    said = done.stdout + done.stderr
    assert SPELLED in said
    assert not {letter for letter in said if letter != "\n" and not letter.isprintable()}


def test_nor_does_doctor_for_a_row_that_cannot_be_published(passage: Passage) -> None:
    passage.sql("insert into outbox values (%s, 'not a topic!', 'k', '')", EVIL + "poison")
    done = run_command(
        *("doctor", "--slot", passage.slot, "--bootstrap-servers", passage.kafka.bootstrap),
        env=passage.environment,
    )
    assert SPELLED in done.stdout
    assert "\x1b" not in done.stdout
