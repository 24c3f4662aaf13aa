"""Old rows go once they are acknowledged, and no other row does: by hand, by partition, and by the relay itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import Database
from tests.integration.scraped import value
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.process import Process
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually

PROVE = """
update cdc_outbox_witness
   set snapshot = pg_current_snapshot(), position = pg_current_wal_insert_lsn(), updated_at = clock_timestamp()
"""
"""What a relay does once it has delivered everything."""

ROWS = """
insert into {table} (aggregate_type, aggregate_id, event_type, created_at)
select 'order', n::text, {name}, now() - {age}::interval from generate_series(1, {count}) as n
"""


class Place:
    """A database with an outbox, its slot, and the command on it."""

    def __init__(self, database: Database, slot: str) -> None:
        self.database = database
        self.slot = slot
        self.environment = {"CDC_OUTBOX_DSN": database.dsn}

    def init(self, *flags: str) -> Place:
        done = run_command("init", "--slot", self.slot, *flags, env=self.environment)
        assert done.returncode == 0, done.stderr
        return self

    def sql(self, *statements: str) -> None:
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(SQL(statement))

    def insert(self, name: str, count: int, age: str, table: str = "outbox") -> None:
        """Rows of that age, told by their event type."""
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            connection.execute(
                SQL(ROWS).format(
                    table=Identifier(table), name=Literal(name), age=Literal(age), count=Literal(count)
                )
            )

    def rows(self, table: str = "outbox") -> dict[str, int]:
        """How many rows there are of each name."""
        query = SQL("select event_type, count(*)::int from {} group by 1").format(Identifier(table))
        return dict(self.database.server.execute(query, dbname=self.database.name))

    def run(self, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return run_command(
            "cleanup", "--slot", self.slot, *arguments, env={**self.environment, **(env or {})}
        )

    def clean(self, *arguments: str, code: int = 0, age: str = "7d") -> dict[str, Any]:
        """What it says of the one table; its errors are `error` and `next`."""
        done = self.run("--older-than", age, "--json", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        (table,) = json.loads(done.stdout)["tables"]
        words = dict(line.split(": ", 1) for line in done.stderr.splitlines() if line)
        return {**table, **words}

    def refused(self, *arguments: str, code: int = 78, env: dict[str, str] | None = None) -> tuple[str, str]:
        done = self.run(*arguments, env=env)
        assert done.returncode == code, done.stdout + done.stderr
        *_, error, remedy = done.stderr.splitlines()
        return error.removeprefix("error: "), remedy.removeprefix("next: ")


@pytest.fixture
def place(database: Database, slot: str) -> Place:
    return Place(database, slot)


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


def init_counts(place: Place, slot: str) -> Process:
    """An `init` for another slot, under way."""
    return Process(
        [sys.executable, "-m", "cdc_outbox", "init", "--slot", slot, "--publication", f"{slot}_pub"],
        env=clean_environment(place.environment),
        pipes=True,
    )


def seen(place: Place, query: LiteralString, *parameters: str) -> None:
    """Wait until a query finds something."""
    server, name = place.database.server, place.database.name
    eventually(lambda: server.execute(query, parameters, dbname=name), 30, query)


PENDING: LiteralString = "select 1 from pg_replication_slots where slot_name = %s"


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


PARTITIONED = """
create table outbox (id uuid default gen_random_uuid(), aggregate_type text, aggregate_id text, event_type text,
                     payload jsonb, created_at timestamptz default now()) partition by range (created_at);
create table ancient partition of outbox for values from (minvalue) to (NOW - interval '20 days');
create table old partition of outbox for values from (NOW - interval '20 days') to (NOW - interval '10 days');
create table mixed partition of outbox for values from (NOW - interval '10 days') to (NOW + interval '1 day')
"""


def partitioned(place: Place, *more: str) -> None:
    # Each bound is worked out by a statement of its own, and they have to meet.
    moment = place.database.server.value("select date_trunc('minute', now())::text")
    place.sql(*PARTITIONED.replace("NOW", f"timestamptz '{moment}'").split(";"), *more)
    place.init()
    for name, age in (("ancient", "30 days"), ("old", "15 days"), ("recent", "9 days"), ("new", "1 hour")):
        place.insert(name, 10, age)


def test_partitions_that_are_wholly_acknowledged_go(place: Place) -> None:
    partitioned(place)
    wholly_acknowledged_ones_go(place)


def test_so_they_do_beside_a_default_partition(place: Place) -> None:
    """PostgreSQL refuses to detach partitions concurrently then."""
    partitioned(place, "create table rest partition of outbox default")
    wholly_acknowledged_ones_go(place)


def wholly_acknowledged_ones_go(place: Place) -> None:
    place.sql(PROVE)
    place.insert("late", 1, "25 days")
    assert place.clean("--partitions", "drop", "--dry-run", code=1)["partitions"] == ["public.old"]
    said = place.clean("--partitions", "drop", code=1)
    assert said["partitions"] == ["public.old"]
    assert said["removed"] == 10
    assert said["unacknowledged"] == 1
    assert place.rows() == {"ancient": 10, "recent": 10, "new": 10, "late": 1}
    place.sql(PROVE)
    assert place.clean("--partitions", "detach")["partitions"] == ["public.ancient"]
    assert place.rows() == {"recent": 10, "new": 10}
    assert place.rows("ancient") == {"ancient": 10, "late": 1}
    assert place.clean()["removed"] == 10, "rows of partitions that are not wholly old go one by one"


def test_bounds_of_other_tables_are_no_times(place: Place) -> None:
    partitioned(
        place,
        "create table numbered (n bigint) partition by range (n)",
        "create table numbers partition of numbered for values from ('-9') to ('9')",
        f"alter database {place.database.name} set enable_nestloop = off",
    )
    place.sql(PROVE)
    assert place.clean("--partitions", "drop")["partitions"] == ["public.ancient", "public.old"]


def test_a_partition_that_is_taken_out_and_not_dropped_is_named(place: Place) -> None:
    partitioned(place)
    place.sql(
        PROVE,
        "create function refuse() returns event_trigger language plpgsql as $$"
        " begin raise exception 'nothing is dropped here'; end $$",
        "create event trigger refuse on sql_drop when tag in ('DROP TABLE') execute function refuse()",
    )
    error, remedy = place.refused("--older-than", "7d", "--partitions", "drop", code=1)
    assert "public.ancient was taken out of public.outbox" in error
    assert "nothing is dropped here" in error
    statement = remedy.removeprefix("put it back, then start again: ")
    assert "ancient" not in place.rows()
    place.sql(statement, "drop event trigger refuse")
    assert place.rows()["ancient"] == 10
    assert place.clean("--partitions", "drop")["partitions"] == ["public.ancient", "public.old"]


@pytest.mark.parametrize("late", [False, True], ids=["goes", "is put back"])
def test_a_partition_that_a_killed_run_has_taken_out_is_found_by_the_next(
    postgres_version: Postgres, place: Place, late: bool
) -> None:
    """It goes then, or is put back where a row of it isn't acknowledged; its own comment is as it was."""
    partitioned(place)
    place.sql(
        PROVE,
        "comment on table ancient is 'ours: it''s old'",
        "create table forged (like outbox)",
        "comment on table forged is 'cdc-outbox cleanup has taken it out of public.outbox FOR VALUES FROM (''x'')"
        " TO (''2000-01-01''); drop table mixed; -- to look at it once more'",
        "create function stay() returns event_trigger language plpgsql as $$ begin perform pg_sleep(60); end $$",
        "create event trigger stay on sql_drop when tag in ('DROP TABLE') execute function stay()",
    )
    command = ["cleanup", "--slot", place.slot, "--older-than", "7d", "--partitions", "drop"]
    cleaning = Process(
        [sys.executable, "-m", "cdc_outbox", *command], env=clean_environment(place.environment)
    )
    server, database = place.database.server, place.database.name
    drops: LiteralString = "select pid from pg_stat_activity where datname = %s and wait_event = 'PgSleep'"
    eventually(lambda: server.execute(drops, (database,)), 30, "the partition is dropped")
    cleaning.kill()
    ((pid,),) = server.execute(drops, (database,))
    server.execute("select pg_terminate_backend(%s, 5000)", (pid,))
    place.sql("drop event trigger stay")
    assert "ancient" not in place.rows()
    assert place.rows("ancient") == {"ancient": 10}
    if late:
        place.sql("update ancient set payload = payload where ctid = '(0,1)'")
    dry = place.clean("--partitions", "drop", "--dry-run", code=int(late))
    assert dry["partitions"] == (["public.old"] if late else ["public.ancient", "public.old"])
    done = place.run("--older-than", "7d", "--partitions", "drop", "--json")
    assert done.returncode == int(late), done.stderr
    assert "a cleanup was broken off, and its partition is out of the table" in done.stderr
    assert "forged" not in done.stderr
    assert json.loads(done.stdout)["tables"][0]["partitions"] == dry["partitions"]
    assert place.rows() == ({"ancient": 10} if late else {}) | {"recent": 10, "new": 10}
    if late:
        comment = "select obj_description('public.ancient'::regclass)"
        assert server.execute(comment, dbname=database) == [("ours: it's old",)]


def dropping(place: Place) -> Process:
    """A cleanup that drops partitions, under way."""
    command = ["cleanup", "--slot", place.slot, "--older-than", "7d", "--json", "--partitions", "drop"]
    return Process(
        [sys.executable, "-m", "cdc_outbox", *command], env=clean_environment(place.environment), pipes=True
    )


def test_a_row_that_comes_while_its_partition_is_taken_out_brings_it_back(
    postgres_version: Postgres, place: Place
) -> None:
    """It is committed after the count, before the last look, by a transaction that holds the detachment up."""
    partitioned(place)
    place.sql(PROVE)
    with psycopg.connect(place.database.dsn) as late:
        late.execute(
            "insert into outbox (event_type, created_at) values ('late', now() - interval '15 days')"
        )
        cleaning = dropping(place)
        eventually(
            lambda: (
                place.database.server.value(
                    "select count(*) > 0 from pg_locks where not granted and database ="
                    " (select oid from pg_database where datname = %s)",
                    (place.database.name,),
                )
                or place.database.server.value(
                    "select exists (select from pg_stat_activity where datname = %s and wait_event_type = 'Lock')",
                    (place.database.name,),
                )
            ),
            30,
            "the detachment waits",
        )
        late.commit()
    stdout, stderr = cleaning.popen.communicate(timeout=60)
    assert cleaning.popen.returncode == 1, stderr
    (said,) = json.loads(stdout)["tables"]
    assert said["partitions"] == ["public.ancient"]
    assert said["unacknowledged"] == 1
    assert place.rows() == {"old": 10, "late": 1, "recent": 10, "new": 10}


def test_no_partition_goes_that_a_slot_made_meanwhile_wants(postgres_version: Postgres, place: Place) -> None:
    partitioned(place)
    place.sql(PROVE)
    other = f"{place.slot}_b"
    # To be made a publication of takes a lock that the detachment has.
    Place(place.database, other).init("--publication", f"{other}_pub", "--only", "publication")
    with psycopg.connect(place.database.dsn) as reader:
        reader.execute("select from outbox")  # the detachment waits for it, and no slot does
        cleaning = dropping(place)
        seen(
            place,
            "select 1 from pg_stat_activity where query like 'alter table%%detach%%' and wait_event_type = 'Lock'"
            " and datname = %s",
            place.database.name,
        )
        counting = init_counts(place, other)
        seen(place, PENDING, f"{other}_pending")
    stdout, stderr = cleaning.popen.communicate(timeout=60)
    refusal = counting.popen.communicate(timeout=60)[1].decode()
    (said,) = json.loads(stdout)["tables"]
    assert said["partitions"] == ["public.ancient"]
    assert place.rows() == {"old": 10, "recent": 10, "new": 10}
    assert "public.outbox holds 30 rows from before the slot" in refusal
    assert f"rows from before the slot {other}_pending have yet to be published" in stderr.decode()


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


def test_old_rows_of_the_inbox_go(place: Place) -> None:
    def inbox(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
        done = run_command("inbox", *arguments, env={**place.environment, **(env or {})})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "there is no table public.cdc_outbox_inbox" in inbox("cleanup", "--older-than", "30d", code=78)
    inbox("create")
    place.sql(
        "insert into cdc_outbox_inbox select 'billing', n::text, now() - '31 days'::interval"
        " from generate_series(1, 2500) n",
        "insert into cdc_outbox_inbox select 'billing', 'new', now() - '29 days'::interval",
    )
    assert "2500 rows would go" in inbox("cleanup", "--older-than", "30d", "--dry-run")
    assert "0 rows would go" in inbox("cleanup", "--older-than", "999999999999d", "--dry-run")
    assert json.loads(inbox("cleanup", "--older-than", "30d", "--json"))["removed"] == 2500
    left = place.database.server.execute("select event_id from cdc_outbox_inbox", dbname=place.database.name)
    assert left == [("new",)]

    role = f"billing_{place.slot}"
    place.sql(f"create role {role} login password '{PASSWORD}'")
    try:
        # The consumer's database is the one that --dsn names; the outbox's owner has no part in it.
        outbox = {"CDC_OUTBOX_ADMIN_DSN": "postgresql://nobody@127.0.0.1:1/none"}
        mine = place.database.server.dsn(place.database.name, user=role, password=PASSWORD)
        cleanup = ("cleanup", "--older-than", "1d", "--dsn", mine)
        said = inbox(*cleanup, code=78, env=outbox)
        assert f"error: the role {role} may not remove rows of public.cdc_outbox_inbox" in said
        place.sql(said.partition("next: as its owner: ")[2].partition(";")[0])
        assert "1 rows removed" in inbox(*cleanup, env=outbox)
    finally:
        place.sql(f"drop owned by {role}", f"drop role {role}")


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
