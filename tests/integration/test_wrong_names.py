"""A start that names a table or publication which was never the slot's: wrong settings, and nothing is remembered."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from psycopg.sql import SQL

from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.pipeline import Pipeline
from tests.servers.relay import run_command


@pytest.fixture
def pipeline(outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """A slot with a witness row, and beside it a table and a publication that it never had to do with."""
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    pipeline.sql(
        SQL("create table orders (like outbox including all)"),
        SQL("create publication other_pub for table outbox with (publish = 'insert')"),
        SQL("create publication orders_pub for table orders with (publish = 'insert')"),
    )
    return pipeline


WRONG = {
    "no such table": ("--table", "public.outboxs"),
    "wrong schema": ("--table", "shop.outbox"),
    "one of two tables": ("--table", "public.outbox", "--table", "public.outboxs"),
    "a table of others": ("--table", "public.orders"),
    "a table of others beside": ("--table", "public.orders", "--table", "public.outbox"),
    "no such publication": ("--publication", "outbox_pubs"),
    "another publication": ("--publication", "other_pub"),
    "another publication of other tables": ("--publication", "orders_pub"),
}


def memory(pipeline: Pipeline) -> Mapping[str, Any]:
    """What the witness remembers of the publication."""
    return {name: pipeline.witness()[name] for name in ("publication", "incidents")}


def refused(pipeline: Pipeline, *flags: str) -> tuple[str, str]:
    relay = pipeline.start(*flags, state=None, http=False)
    assert relay.wait() == 78, relay.text()
    assert "threshold crossed" not in relay.text(), "the watch knows nothing of what was mistyped"
    return str(relay.records[-1]["error"]), str(relay.records[-1]["next"])


def first_command(remedy: str) -> list[str]:
    """The flags of the remedy's first command, a `start` of the slot, up to those that each relay here has."""
    words = shlex.split(remedy[remedy.index("cdc-outbox start") :].partition(";")[0])
    assert words[:3] == ["cdc-outbox", "start", "--slot"]
    return words[4 : words.index("--bootstrap-servers")]


def test_nothing_is_remembered_of_what_was_never_the_slots(pipeline: Pipeline) -> None:
    before = pipeline.witness()
    for flags in WRONG.values():
        error, remedy = refused(pipeline, *flags)
        assert pipeline.witness() == before, (flags, error)
        assert f"cdc-outbox start --slot {pipeline.slot}" in remedy, flags
    writer, consumer = pipeline.writer(), pipeline.consumer()
    pipeline.start()
    consumer.wait_ids(writer.write(5))


@pytest.mark.parametrize(
    "wrong", ["no such table", "one of two tables", "no such publication", "another publication"]
)
def test_the_first_remedy_works(wrong: str, pipeline: Pipeline) -> None:
    error, remedy = refused(pipeline, *WRONG[wrong])
    assert "outbox" in error
    relay = pipeline.start(*first_command(remedy))
    assert relay.terminate()[0] == 0
    assert memory(pipeline)["incidents"] == []


def test_another_publication_is_taken_where_a_person_says_so(pipeline: Pipeline) -> None:
    _, remedy = refused(pipeline, "--publication", "other_pub")
    assert "--accept-gap" in remedy
    assert pipeline.start("--publication", "other_pub", "--accept-gap").terminate()[0] == 0
    assert pipeline.start("--publication", "other_pub").terminate()[0] == 0
    refused(pipeline, "--publication", "orders_pub", "--accept-gap")
    refused(pipeline)


def test_who_does_not_hold_the_slot_writes_nothing(pipeline: Pipeline) -> None:
    """Not even of what the slot had to do with: the relay that streams sees that by itself."""
    writer, consumer = pipeline.writer(), pipeline.consumer()
    relay = pipeline.start()
    consumer.wait_ids(writer.write(5))
    before = memory(pipeline)
    for flags in (*WRONG.values(), ("--publication", "other_pub", "--accept-gap")):
        error, remedy = refused(pipeline, *flags)
        assert memory(pipeline) == before, (flags, error)
    assert remedy.startswith("stop the relay that streams from the slot")
    assert relay.state() == "streaming"
    consumer.wait_ids(writer.write(5))
    assert relay.terminate()[0] == 0
    assert pipeline.start().terminate()[0] == 0


def test_a_standby_writes_when_the_slot_is_its_own(pipeline: Pipeline) -> None:
    writer, consumer = pipeline.writer(), pipeline.consumer()
    first = pipeline.start()
    second = pipeline.start(state="standby")
    pipeline.sql(SQL("delete from cdc_outbox_witness"))
    assert first.terminate()[0] == 0
    second.wait_state("streaming")
    consumer.wait_ids(writer.write(5))
    assert memory(pipeline)["incidents"] == []


@pytest.mark.parametrize("beside", [(), ("--table", "public.outboxs", "--table", "public.outbox")])
def test_what_is_the_slots_is_remembered(beside: tuple[str, ...], pipeline: Pipeline) -> None:
    """Also beside a name that is wrong; and also where the publication goes by another name for a while."""
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'update')"))
    refused(pipeline, *beside)
    assert [each["kind"] for each in memory(pipeline)["incidents"]] == ["hidden"]
    pipeline.sql(SQL("alter publication outbox_pub set (publish = 'insert')"))
    error, _ = refused(pipeline)
    assert "made again" in error


def test_a_publication_that_was_renamed_for_a_while_is_remembered(pipeline: Pipeline) -> None:
    pipeline.sql(SQL("alter publication outbox_pub rename to renamed"))
    refused(pipeline)
    pipeline.sql(SQL("alter publication renamed rename to outbox_pub"))
    error, _ = refused(pipeline)
    assert "made again" in error


def test_a_table_that_can_not_be_mapped_is_not_the_slots(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """It is refused when the publication has passed; one that isn't is fed from then on."""
    pipeline = make_pipeline(outbox, kafka).prepare()
    pipeline.sql(
        SQL("create table users (name text)"),
        SQL("create table orders (like outbox including all)"),
        SQL("create publication outbox_pub for all tables with (publish = 'insert')"),
    )
    before = pipeline.init().witness()
    refused(pipeline, "--table", "public.outbox", "--table", "public.users")
    assert pipeline.witness() == before
    assert pipeline.start().terminate()[0] == 0
    both = pipeline.start("--table", "public.outbox", "--table", "public.orders")
    assert both.terminate()[0] == 0
    assert "public.orders" in memory(pipeline)["publication"]
    assert [each["kind"] for each in memory(pipeline)["incidents"]] == ["altered"]


def test_without_a_memory_publications_of_these_tables_are_named(pipeline: Pipeline) -> None:
    pipeline.sql(SQL("drop table cdc_outbox_witness"))
    error, remedy = refused(pipeline, "--publication", "outbox_pubs")
    assert (
        error
        == "publication outbox_pubs does not exist; with these tables this database has: other_pub, outbox_pub"
    )
    assert remedy.startswith(f"cdc-outbox start --slot {pipeline.slot} --publication outbox_pub --bootstrap-")
    assert "accept-gap" not in remedy
    refused(pipeline, "--publication", "orders_pubs", "--table", "orders")


def test_a_backfill_of_a_table_that_is_not_there_names_it(pipeline: Pipeline) -> None:
    flags = ("--slot", pipeline.slot, "--table", "public.outboxs")
    done = run_command(
        "backfill",
        "--yes",
        *flags,
        env={"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap},
    )
    assert done.returncode == 78
    assert "table public.outboxs does not exist" in done.stderr
    assert "cdc-outbox start" not in done.stderr
