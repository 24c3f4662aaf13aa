"""Old rows go once they are acknowledged, and no other row does: by hand, and by the relay itself."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import psycopg
from psycopg.sql import SQL

from tests.integration.cleaned import PENDING, PROVE, Place, init_counts, place, seen
from tests.integration.conftest import Database
from tests.integration.scraped import value
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.process import Process
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually

__all__ = ["place"]


def test_old_and_acknowledged_rows_go_and_no_others(postgres_version: Postgres, place: Place) -> None:
    create_outbox(place.database.dsn)
    place.init()
    place.insert("old", 2500, "8 days")
    place.insert("new", 3, "1 day")
    place.sql(PROVE)
    assert place.clean(age="999999999999d")["removed"] == 0
    place.insert("late", 7, "9 days")
    with psycopg.connect(place.database.dsn) as other:
        other.execute("select from outbox where event_type = 'old' limit 1 for update")
        said = place.clean("--batch", "300", code=1)
    assert said["removed"] == 2499, "a row that somebody has locked is passed over"
    assert said["by"] == "created_at"
    assert said["unacknowledged"] == 7
    assert len(said["oldest_unacknowledged"]) == 5
    assert said["error"].startswith(
        "7 rows of public.outbox that are older than 7d are not acknowledged, and stay: "
    )
    assert said["oldest_unacknowledged"][0]["id"] in said["error"]
    assert f"no relay streams from the slot {place.slot}" in said["error"]
    assert said["next"] == f"cdc-outbox start --slot {place.slot}"
    assert place.rows() == {"old": 1, "new": 3, "late": 7}
    place.sql(PROVE)
    assert place.clean()["removed"] == 8
    assert place.rows() == {"new": 3}


def test_each_slot_has_to_be_past_a_row(place: Place) -> None:
    create_outbox(place.database.dsn)
    place.init()
    place.insert("old", 5, "8 days")
    assert place.clean(age="0s", code=1)["unacknowledged"] == 5, "nothing is proven yet"
    place.sql(PROVE)
    assert place.clean("--dry-run")["found"] == 5
    other = Place(place.database, f"{place.slot}_b").init("--no-backfill")
    place.sql(PROVE)
    place.sql("update outbox set event_type = 'old'")
    place.sql(PROVE + f" where slot = '{place.slot}'")
    said = place.clean(code=1)
    assert (said["removed"], said["unacknowledged"]) == (0, 5)
    assert f"no relay streams from the slot {other.slot}" in said["error"]
    assert said["next"] == f"cdc-outbox start --slot {other.slot}"
    place.sql(PROVE)
    assert place.clean()["removed"] == 5


HELD = """
create function held() returns trigger language plpgsql as $$
begin perform pg_advisory_xact_lock(1); return old; end $$
"""
"""A DELETE that waits for whoever has the advisory lock 1."""


def test_no_row_goes_that_a_slot_made_meanwhile_wants(postgres_version: Postgres, place: Place) -> None:
    """A batch that has begun ends before the rows are counted, and the next one finds the pending slot."""
    create_outbox(place.database.dsn)
    place.init()
    place.insert("old", 100, "8 days")
    place.sql(PROVE, HELD, "create trigger held before delete on outbox for each row execute function held()")
    other = f"{place.slot}_b"
    with psycopg.connect(place.database.dsn, autocommit=True) as holder:
        holder.execute("select pg_advisory_lock(1)")
        cleaning = Process(
            [sys.executable, "-m", "cdc_outbox", "cleanup", "--slot", place.slot, "--older-than", "7d", "--json",
             "--batch", "10"],
            env=clean_environment(place.environment),
            pipes=True,
        )  # fmt: skip
        seen(place, "select 1 from pg_locks where locktype = 'advisory' and not granted")
        counting = init_counts(place, other)
        seen(place, PENDING, f"{other}_pending")
    stdout, stderr = cleaning.popen.communicate(timeout=60)
    refusal = counting.popen.communicate(timeout=60)[1].decode()
    assert f"public.outbox holds {place.rows()['old']} rows from before the slot" in refusal
    (said,) = json.loads(stdout)["tables"]
    assert (said["removed"], said["unacknowledged"], place.rows()) == (10, 90, {"old": 90})
    assert f"rows from before the slot {other}_pending have yet to be published" in stderr.decode()
    assert f"next: cdc-outbox backfill --slot {other}" in stderr.decode()
    done = run_command("drop", "--yes", "--slot", other, env=place.environment)
    assert done.returncode == 0, done.stderr
    assert place.clean()["removed"] == 90


def test_a_table_that_inherits_is_another_table(place: Place) -> None:
    """Its rows lie at the same places as those of the outbox."""
    create_outbox(place.database.dsn)
    place.init().sql("create table archive () inherits (outbox)")
    place.insert("old", 20, "8 days")
    place.insert("kept", 20, "8 days", table="archive")
    place.sql(PROVE)
    assert place.clean()["removed"] == 20
    assert place.rows() == {"kept": 20}


def test_a_table_without_a_time_is_emptied_only_as_a_whole(place: Place) -> None:
    place.sql("create table outbox (id bigserial primary key, topic text, aggregate_id text, payload jsonb)")
    place.init()
    place.sql("insert into outbox (topic) values ('a'), ('b')", PROVE)
    error, remedy = place.refused("--older-than", "7d")
    assert "no column that says how old a row is" in error
    assert remedy.startswith("name it with --column created_at=NAME; or ")
    assert "cdc-outbox cleanup" in remedy
    assert place.clean(age="0s")["removed"] == 2
    place.sql("alter table outbox add sent_at timestamptz")
    place.sql(
        "insert into outbox (topic, sent_at) values ('old', now() - interval '8 days'), ('unsent', null)",
        PROVE,
    )
    assert place.clean()["removed"] == 1
    place.sql("alter table outbox drop sent_at, add added bigint", "delete from outbox")
    for ago in ("8 days", "6 days"):
        place.sql(
            f"insert into outbox (topic, added) select 'a', extract(epoch from now() - interval '{ago}') * n"
            " from (values (1), (1000)) as unit (n)"
        )
    place.sql(PROVE)
    said = place.clean()
    assert (said["by"], said["removed"]) == ("added", 2), "seconds and milliseconds since 1970"
    error, _ = place.refused(code=2)
    assert "isn't said" in error
    error, _ = place.refused("--older-than", "7", code=2)
    assert "a number and a unit" in error


def test_rows_of_another_bus_are_not_ours_to_remove(place: Place) -> None:
    create_outbox(place.database.dsn)
    place.sql("alter table outbox add bus text, add status text default 'pending'")
    place.init()
    place.insert("old", 6, "8 days")
    place.sql(
        "update outbox set bus = (array['kafka', 'kafka', 'nats', 'nats', null, null])[aggregate_id::int],"
        " status = (array['pending', 'sent'])[1 + aggregate_id::int % 2]",
        PROVE,
    )
    said = place.clean()
    assert (said["removed"], said["left_out"]) == (4, 2), "ours, and those that others have sent"
    assert "2 that the settings leave out stay (--left-out)" in place.run("--older-than", "7d").stdout
    assert place.clean("--left-out")["removed"] == 2


def test_what_stands_in_the_way_is_named(place: Place, slot: str) -> None:
    create_outbox(place.database.dsn)
    place.init("--role", slot)
    place.insert("old", 1, "8 days")
    place.sql(PROVE, f"alter role {slot} password '{PASSWORD}'")
    plain = {"CDC_OUTBOX_DSN": place.database.server.dsn(place.database.name, user=slot)}
    error, remedy = place.refused("--older-than", "7d", env=plain)
    assert f"the role {slot} may not remove rows of public.outbox" in error
    granted = remedy.removeprefix("as its owner: ").partition(";")[0]
    place.sql(granted)
    assert place.run("--older-than", "7d", env=plain).returncode == 0
    assert place.rows() == {}
    place.sql(granted.replace("grant", "revoke", 1).replace(" to ", " from "))
    place.init("--role", slot, "--cleanup-older-than", "7d")
    place.insert("old", 1, "8 days")
    place.sql(PROVE)
    assert place.run("--older-than", "7d", env=plain).returncode == 0
    assert place.rows() == {}
    place.sql("alter table outbox enable row level security")
    error, _ = place.refused("--older-than", "7d", env=plain)
    assert "row-level security" in error, "rows that it doesn't see might be those that have to stay"
    place.sql("alter table outbox disable row level security")
    done = run_command(
        *("init", "--slot", slot, "--role", slot, "--cleanup-older-than", "7d", "--json"),
        env=place.environment,
    )
    assert {"existed"} == {step["status"] for step in json.loads(done.stdout)["steps"]}
    place.sql(f"drop owned by {slot}", f"drop role {slot}")

    error, _ = place.refused("--older-than", "7d", "--partitions", "drop")
    assert "is not partitioned" in error
    place.insert("old", 1, "8 days")
    place.sql(
        PROVE,
        "alter table outbox drop constraint outbox_pkey",
        "create publication deletes for table outbox",
    )
    error, remedy = place.refused("--older-than", "7d")
    assert "publishes its deletes" in error
    place.sql("alter publication deletes set (publish = 'insert')")
    assert place.clean()["removed"] == 1


def test_nothing_is_lost_however_it_is_killed(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Rows go as soon as they are acknowledged, under load, with cleanup and relay killed again and again."""
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    pipeline.start()
    writer = pipeline.writer(rate=400, rows_per_transaction=2, rollback_share=0.1).start()
    consumer = pipeline.consumer()
    command = [
        sys.executable,
        "-m",
        "cdc_outbox",
        "cleanup",
        "--slot",
        pipeline.slot,
        "--older-than",
        "0s",
        "--batch",
        "20",
    ]
    for turn in range(4):
        cleaning = Process(command, env=clean_environment({"CDC_OUTBOX_DSN": pipeline.dsn}))
        writer.wait_written(400)
        cleaning.kill()
        if turn % 2:
            pipeline.relay.kill()
            pipeline.start()
    left = pipeline.value("select count(*) from outbox")
    verdict = pipeline.books(writer, consumer)
    assert left < verdict.committed

    def emptied() -> bool:
        done = run_command(
            "cleanup", "--slot", pipeline.slot, "--older-than", "0s", env={"CDC_OUTBOX_DSN": pipeline.dsn}
        )
        return done.returncode == 0 and pipeline.value("select count(*) from outbox") == 0

    eventually(emptied, PATIENCE, "the last rows are proven and go")
    print(f"{verdict}; {left} rows were left by cleanups that were killed")


def test_the_relay_cleans_up_by_itself(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka).prepare().init()
    relay = pipeline.start("--cleanup-older-than", "1s")
    writer, consumer = pipeline.writer(), pipeline.consumer()
    consumer.wait_ids(writer.write(50))
    eventually(lambda: pipeline.value("select count(*) from outbox") == 0, PATIENCE, "the rows are gone")
    eventually(
        lambda: "cdc_outbox_rows_cleaned_total 50.0" in relay.get("/metrics")[1], PATIENCE, "all counted"
    )
    # What goes wrong is counted and told once, and the stream goes on.
    since = len(relay.records)
    pipeline.sql(SQL("alter table outbox rename created_at to at"))
    eventually(
        lambda: (value(relay, "cleanup_failures", reason="setup") or 0) >= 2, PATIENCE, "failures counted"
    )
    told = relay.wait_for(
        lambda record: record["event"] == "cleanup" and "how old" in record["error"], PATIENCE, since=since
    )
    assert [record.get("error") for record in relay.records[since:]].count(told["error"]) == 1
    with psycopg.connect(pipeline.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', 'x')",
            (pipeline.aggregate_type,),
        )
    eventually(lambda: len(pipeline.read()) == 51, PATIENCE, "the stream goes on")
    assert relay.state() == "streaming"


def test_the_right_to_know_what_was_delivered_is_named(place: Place, slot: str) -> None:
    """An owner of the table needs no right to replicate for it."""
    create_outbox(place.database.dsn)
    place.init()
    place.insert("old", 1, "8 days")
    place.sql(PROVE, f"create role {slot} login password '{PASSWORD}'", f"alter table outbox owner to {slot}")
    try:
        plain = {"CDC_OUTBOX_DSN": place.database.server.dsn(place.database.name, user=slot)}
        error, remedy = place.refused("--older-than", "7d", env=plain)
        assert (
            f"the role {slot} may not read public.cdc_outbox_witness, which says what was delivered" in error
        )
        place.sql(remedy.removeprefix("as its owner: ").partition(";")[0])
        assert place.run("--older-than", "7d", env=plain).returncode == 0
    finally:
        place.sql(f"drop owned by {slot}", f"drop role {slot}")
