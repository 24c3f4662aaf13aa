"""F11: a publication that hides rows, from PostgreSQL's catalogue to the relay's exit code.

Nothing is skipped in silence. What is hidden while the publication lacks the table is behind the slot for ever. So the
proof is by ids and positions: every row that wasn't hidden arrives, and those that were lie in the range of WAL that
the relay names until a person accepts it. On 15 to 17 decoding itself stops where the publication didn't exist; 18
skips without a word.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

import psycopg
import pytest
from psycopg.sql import SQL

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import Kafka
from tests.servers.ledger import Consumer, Writer, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import Postgres
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE, eventually

CREATE = SQL(
    "create publication outbox_pub for table outbox with (publish = 'insert', publish_via_partition_root = true)"
)
DROP = SQL("drop publication outbox_pub")
WITNESS = SQL((CHECKOUT / "sql" / "witness.sql").read_text())
WINDOW = re.compile(r"between (\w+/\w+) and (\w+/\w+)")


@pytest.fixture
def pipeline(outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    return make_pipeline(outbox, kafka).prepare()


def window(text: str) -> tuple[LSN, LSN]:
    """The widest range of WAL that a message names."""
    found = WINDOW.findall(text)
    assert found, f"no window in {text!r}"
    return min(LSN.parse(each[0]) for each in found), max(LSN.parse(each[1]) for each in found)


def refused(pipeline: Pipeline, *flags: str) -> tuple[str, str]:
    """Start a relay that must end with 78; what is wrong and the next step."""
    relay = pipeline.start(*flags, state=None, http=False)
    assert relay.wait() == 78, relay.text()
    last = relay.records[-1]
    return str(last["error"]), str(last["next"])


def run_remedy(pipeline: Pipeline, remedy: str) -> None:
    """Run the commands that a remedy prints, up to those that look at the topics."""
    commands = re.findall(r"cdc-outbox (?:drop|init)[^,;&]*", remedy)
    assert commands, remedy
    for command in commands:
        arguments = shlex.split(command)[1:]
        done = run_command(*arguments, env={"CDC_OUTBOX_DSN": pipeline.dsn})
        assert done.returncode == 0, done.stderr


def held_reason(relay: RelayProcess, words: str) -> str:
    """Wait until the relay is held for a reason with these words in it; the reason."""

    def reason() -> str:
        _, body = relay.get("/readyz")
        return body if "held" in body and words in body else ""

    return eventually(reason, PATIENCE, lambda: f"held for {words!r}:\n{relay.text()}")


def write(pipeline: Pipeline, writer: Writer, rows: int) -> tuple[list[str], LSN, LSN]:
    """Commit rows; their ids, and where the WAL ended before and after."""
    before = pipeline.end_of_wal()
    return writer.write(rows), before, pipeline.end_of_wal()


def all_but(hidden: list[str], writer: Writer, consumer: Consumer) -> None:
    """Every row arrived, but for those that the publication hid."""
    seen = {event_id: entry for event_id, entry in writer.committed.items() if event_id not in hidden}
    records = consumer.wait_ids(seen, PATIENCE)
    assert not {record.id for record in records} & set(hidden)
    verify(seen, records)


LACKING = (
    [SQL("alter publication outbox_pub drop table outbox")],
    [SQL("alter publication outbox_pub add table outbox")],
    "lacks table",
)
HIDING = {
    "without inserts": (
        [SQL("alter publication outbox_pub set (publish = 'update')")],
        [SQL("alter publication outbox_pub set (publish = 'insert')")],
        "does not publish inserts",
    ),
    "row filter": (
        [SQL("alter publication outbox_pub set table outbox where (event_version > 7)")],
        [SQL("alter publication outbox_pub set table outbox")],
        "row filter",
    ),
    "unlogged": (
        [SQL("alter table outbox set unlogged")],
        [SQL("alter table outbox set logged")],
        "unlogged",
    ),
}


def test_F11_a_table_dropped_from_it(postgres_version: Postgres, pipeline: Pipeline) -> None:  # noqa: N802
    held_until_accepted(pipeline, *LACKING)


@pytest.mark.parametrize("how", HIDING)
def test_F11_other_ways_to_hide(how: str, pipeline: Pipeline) -> None:  # noqa: N802 - the failure's own name
    if how == "unlogged":  # one that is published by name can't be made so
        pipeline.sql(SQL("create publication outbox_pub for all tables with (publish = 'insert')"))
    held_until_accepted(pipeline, *HIDING[how])


def held_until_accepted(pipeline: Pipeline, hide: list[SQL], mend: list[SQL], words: str) -> None:
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.sql(*hide)
    hidden, before, after = write(pipeline, writer, 10)
    held_reason(relay, words)
    assert [incident["kind"] for incident in pipeline.witness()["incidents"]][:1] != []
    more, _, after = write(pipeline, writer, 10)
    hidden += more
    confirmed = pipeline.slot_value("confirmed_flush_lsn")
    pipeline.sql(*mend)
    reason = held_reason(relay, "made again")
    first, last = window(reason)
    assert first <= before
    assert after <= last
    later, _, _ = write(pipeline, writer, 10)
    assert relay.terminate()[0] == 0
    # Another process: the witness row knows.
    error, remedy = refused(pipeline)
    assert window(error)[0] <= before
    assert after <= window(error)[1]
    assert words in error
    assert pipeline.slot_value("confirmed_flush_lsn") == confirmed
    assert not {record.id for record in consumer.records} & {*hidden, *later}
    assert f"cdc-outbox start --slot {pipeline.slot} --accept-gap" in remedy
    accepted = pipeline.start("--accept-gap")
    all_but(hidden, writer, consumer)
    assert pipeline.witness()["incidents"] == []
    assert accepted.terminate()[0] == 0
    assert pipeline.start().terminate()[0] == 0


def test_F11_a_dropped_publication(postgres_version: Postgres, pipeline: Pipeline) -> None:  # noqa: N802
    """18 skips what was written without it in silence; decoding on 15 to 17 never gets beyond that."""
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.sql(DROP)
    hidden, before, after = write(pipeline, writer, 10)
    held_reason(relay, "does not exist")
    pipeline.sql(CREATE)
    first, last = window(held_reason(relay, "made again"))
    assert first <= before
    assert after <= last
    assert relay.terminate()[0] == 0
    _, remedy = refused(pipeline)
    assert "--accept-gap" in remedy
    if postgres_version.major >= 18:
        pipeline.start("--accept-gap")
    else:
        error, remedy = refused(pipeline, "--accept-gap")
        assert "42704" in error
        run_remedy(pipeline, remedy)
        pipeline.start()
    writer.write(20)
    all_but(hidden, writer, consumer)


def test_F11_the_remedy_for_a_dropped_publication_loses_only_the_time_without_it(  # noqa: N802
    postgres_version: Postgres, pipeline: Pipeline
) -> None:
    """Up to 17 decoding ends there, but not before all that came earlier is delivered."""
    pipeline.init()
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(20)
    pipeline.sql(DROP)
    hidden = writer.write(10)
    _, remedy = refused(pipeline)
    create, _, rest = remedy.partition(" then ")
    pipeline.sql(SQL(create))
    program, command, option, slot, *flags = shlex.split(rest.partition(",")[0])
    assert (program, command, option, slot) == ("cdc-outbox", "start", "--slot", pipeline.slot)
    if postgres_version.major >= 18:
        writer.write(20)
        pipeline.start(*flags)
    else:
        error, remedy = refused(pipeline, *flags)
        assert "42704" in error
        assert f"cdc-outbox drop --yes --slot {pipeline.slot} " in remedy
    all_but(hidden, writer, consumer)


def test_F11_made_again_between_two_checks(postgres_version: Postgres, pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    before = pipeline.end_of_wal()
    with psycopg.connect(pipeline.dsn) as connection:
        connection.execute(DROP)
        connection.execute(CREATE)
    writer.write(20)
    first, last = window(held_reason(relay, "made again"))
    assert first <= before < last
    relay.kill()
    error, _ = refused(pipeline)
    assert window(error) == (first, last)
    pipeline.start("--accept-gap")
    all_but([], writer, consumer)


def test_F11_made_again_while_the_relay_is_down(postgres_version: Postgres, pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    assert relay.terminate()[0] == 0
    before = pipeline.end_of_wal()
    with psycopg.connect(pipeline.dsn) as connection:
        connection.execute(DROP)
        connection.execute(CREATE)
    for _ in range(2):  # as often as it is tried
        error, _ = refused(pipeline)
        first, last = window(error)
        assert first <= before < last
    writer.write(20)
    pipeline.start("--accept-gap")
    all_but([], writer, consumer)


def test_F11_accepted_in_the_witness_row_while_it_runs(pipeline: Pipeline) -> None:  # noqa: N802
    """As another command does it: the relay that is held goes on by itself, and doesn't write it back."""
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    with psycopg.connect(pipeline.dsn) as connection:
        connection.execute(DROP)
        connection.execute(CREATE)
    held_reason(relay, "made again")
    writer.write(20)
    pipeline.sql(SQL("update cdc_outbox_witness set incidents = '[]'"))
    relay.wait_state("streaming")
    all_but([], writer, consumer)
    pipeline.wait_confirmed()
    assert pipeline.witness()["incidents"] == []


def test_F11_hidden_then_killed_then_mended_by_an_alter(pipeline: Pipeline) -> None:  # noqa: N802
    """Only the xmin is another one afterwards, which alone bars nobody."""
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'update')"))
    hidden, before, after = write(pipeline, writer, 10)
    held_reason(relay, "does not publish inserts")
    relay.kill()
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'insert')"))
    error, _ = refused(pipeline)
    first, last = window(error)
    assert first <= before
    assert after <= last
    pipeline.start("--accept-gap")
    writer.write(10)
    all_but(hidden, writer, consumer)


def test_F11_a_problem_that_a_start_has_named_is_not_forgotten_when_it_is_mended(pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    assert relay.terminate()[0] == 0
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'update')"))
    hidden, before, after = write(pipeline, writer, 10)
    _, remedy = refused(pipeline)
    pipeline.sql(SQL(remedy))
    error, _ = refused(pipeline)
    first, last = window(error)
    assert first <= before
    assert after <= last
    pipeline.start("--accept-gap")
    writer.write(10)
    all_but(hidden, writer, consumer)


def test_F11_merely_altered_is_reported_and_goes_on(pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'insert')"))
    relay.wait_for(lambda record: "altered" in str(record.get("what")), PATIENCE, message="the incident")
    assert relay.state() == "streaming"
    eventually(lambda: pipeline.witness()["incidents"], PATIENCE, "noted")  # which comes after the line
    assert [incident["kind"] for incident in pipeline.witness()["incidents"]] == ["altered"]
    writer.write(20)
    all_but([], writer, consumer)
    assert relay.terminate()[0] == 0
    # It bars no start either, and health can still see it.
    pipeline.start()
    assert [incident["kind"] for incident in pipeline.witness()["incidents"]] == ["altered"]


def test_F11_without_the_witness_table_the_process_remembers(pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    pipeline.sql(SQL("drop table cdc_outbox_witness"))
    relay, writer, consumer = pipeline.start(), pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(20))
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'update')"))
    write(pipeline, writer, 10)
    held_reason(relay, "does not publish inserts")
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'insert')"))
    held_reason(relay, "made again")
    assert sum("does not exist: a slot" in str(record.get("what")) for record in relay.records) == 1


def test_F11_a_publication_made_after_its_slot(postgres_version: Postgres, pipeline: Pipeline) -> None:  # noqa: N802
    writer, consumer = pipeline.writer(), pipeline.consumer()
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot,))
        hidden = writer.write(10)
        connection.execute(CREATE)
    for _ in range(2):
        error, _ = refused(pipeline)
        assert "made or altered after the slot" in error
    if postgres_version.major >= 18:
        pipeline.start("--accept-gap")
    else:
        error, remedy = refused(pipeline, "--accept-gap")
        assert "42704" in error
        run_remedy(pipeline, remedy)
        pipeline.start()
    writer.write(20)
    all_but(hidden, writer, consumer)


def test_F11_where_other_slots_hide_which_came_first_it_is_said(pipeline: Pipeline) -> None:  # noqa: N802
    """A slot is made with the oldest catalog_xmin of all: the publication may be younger, and mostly isn't."""
    other = f"{pipeline.slot}_other"
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (other,))
        connection.execute(CREATE)
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot,))
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(10)
    relay = pipeline.start()
    all_but([], writer, consumer)
    assert sum("may have been made or altered" in str(record.get("what")) for record in relay.records) == 1
    assert relay.terminate()[0] == 0
    # Once it has a witness row there is nothing to be said.
    pipeline.sql(WITNESS)
    assert pipeline.start().terminate()[0] == 0
    relay = pipeline.start()
    assert not any("may have been" in str(record.get("what")) for record in relay.records)


def test_a_publication_made_by_hand_before_its_slot_is_taken_as_it_is(
    postgres_version: Postgres, pipeline: Pipeline
) -> None:
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute(CREATE)
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pipeline.slot,))
    writer, consumer = pipeline.writer(), pipeline.consumer()
    writer.write(10)
    pipeline.start()
    all_but([], writer, consumer)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (DROP, "does not exist"),
        (SQL("alter publication outbox_pub drop table outbox"), "lacks table"),
        (SQL("drop table outbox"), "table public.outbox does not exist"),
    ],
)
def test_F11_wrong_at_the_start(statement: SQL, words: str, pipeline: Pipeline) -> None:  # noqa: N802
    pipeline.init()
    pipeline.sql(statement)
    error, _ = refused(pipeline)
    assert words in error
