"""Partitions go as a whole once all their rows are old and acknowledged, and come back where one isn't."""

from __future__ import annotations

import json
import sys
from typing import LiteralString

import psycopg
import pytest

from tests.integration.cleaned import PENDING, PROVE, Place, init_counts, place, seen
from tests.servers.postgres import Postgres
from tests.servers.process import Process
from tests.servers.relay import clean_environment
from tests.servers.wait import PATIENCE, eventually

__all__ = ["place"]

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
    eventually(lambda: server.execute(drops, (database,)), PATIENCE, "the partition is dropped")
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
            PATIENCE,
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
