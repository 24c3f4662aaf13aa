"""What `init` finds before it makes anything, and what it gives to somebody who may do more."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from psycopg.sql import SQL, Identifier

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.initial import Set, place, psql
from tests.servers.postgres import PostgresServer
from tests.servers.relay import run_command

__all__ = ["place"]


def made(place: Set) -> tuple[object, ...]:
    return place.execute(
        "select to_regclass('public.outbox'), to_regclass('public.cdc_outbox_witness'),"
        " (select count(*) from pg_publication), (select count(*) from pg_replication_slots)"
    )[0]


def test_everything_that_is_in_the_way_is_told_at_once(
    make_postgres: Callable[..., PostgresServer], slot: str
) -> None:
    place = Set(Database(make_postgres(settings={"wal_level": "replica"}), "postgres"), slot)
    place.execute("create table keyless (id uuid, topic text, payload json)")
    place.execute("create view seen as select 1 as id")
    tables = [f"--table={name}" for name in ("missing", "nowhere.events", "seen", "keyless")]
    error, remedy = place.refused(*tables)
    assert error.startswith("5 things are in the way: (1) wal_level is replica")
    for expected in (
        "(2) table public.missing does not exist",
        "(3) table nowhere.events does not exist",
        "(4) public.seen is a view",
        "(5) ",
    ):
        assert expected in error
    assert "public.keyless" in error
    assert "(1) alter system set wal_level = logical" in remedy
    assert "--key" in remedy.partition("(5) ")[2]
    assert made(place) == (None, None, 0, 0)


def test_a_missing_right_is_told_with_the_rest(place: Set, plain_role: str) -> None:
    error, remedy = place.as_role(plain_role).refused()
    assert "(1) table public.outbox does not exist" in error
    assert "(2) the role" in error
    assert "may not make: table, witness, publication" in error
    assert f"cdc-outbox init --print-sql --slot {place.slot}" in remedy
    assert made(place)[:3] == (None, None, 0)


def test_a_table_that_start_will_refuse_is_told_and_the_slot_is_made(place: Set) -> None:
    place.execute("create table outbox (id uuid, topic text, payload json)")
    done = place.run()
    assert done.returncode == 0
    said, remedy = done.stderr.splitlines()
    assert said.startswith("start with these settings will refuse: ")
    assert "--key" in remedy
    assert place.run("--key", "none").stderr == ""


@ALL_VERSIONS
def test_the_owners_command_works_as_it_is_printed_and_twice(place: Set, plain_role: str) -> None:
    """A table that the role may read but doesn't own."""
    place.execute("create table outbox (id uuid, aggregate_id text, topic text, payload json)")
    place.execute(SQL("grant select on outbox to {}").format(Identifier(plain_role)))
    relay = place.as_role(plain_role)
    for expected in ("witness, publication", "grants"):
        error, remedy = relay.refused()
        assert f"may not make: {expected}" in error
        found = re.search(r': (cdc-outbox init --print-sql .*?) \| psql "\$SUPERUSER_DSN"$', remedy)
        assert found is not None, remedy
        script = run_command(*shlex.split(found[1])[1:]).stdout
        for _ in range(2):
            done = psql(place.dsn, script)
            assert done.returncode == 0, done.stderr
    assert relay.steps()["slot"] == "created"


@ALL_VERSIONS
def test_a_publication_that_is_there_is_left_alone_by_the_printed_sql(place: Set) -> None:
    place.execute('create table "Out $$ box" (id uuid, aggregate_id text, topic text, payload json)')
    flags = ("--table", '"Out $$ box"', "--publication", "pub $$ '%I", "--only", "publication")
    script = place.ok(*flags, "--print-sql")
    assert psql(place.dsn, script).returncode == 0
    before = place.execute("select oid, xmin::text, pubname from pg_publication")
    assert before[0][2] == "pub $$ '%I"
    assert psql(place.dsn, script).returncode == 0
    assert place.execute("select oid, xmin::text, pubname from pg_publication") == before
    assert place.execute("select tablename from pg_publication_tables") == [("Out $$ box",)]


def test_a_table_to_be_made_lacks_a_column_that_is_named(place: Set) -> None:
    error, remedy = place.refused("--create-table", "--column", "payload=body")
    assert (
        error == "the table that --create-table makes has no column body, which the payload would come from"
    )
    assert remedy.startswith("leave out --column payload=body, for it has id, aggregate_type, aggregate_id, ")
    assert made(place) == (None, None, 0, 0)
    place.ok("--create-table", "--column", "payload=payload")


def test_a_table_of_ones_own_is_no_default_table_in_the_printed_sql(place: Set) -> None:
    assert "create table if not exists public.outbox" in place.ok("--print-sql").replace('"', "")
    own = ("--table", "shop.events", "--print-sql")
    assert "gen_random_uuid()" not in place.ok(*own)
    assert "create table if not exists shop.events" in place.ok("--create-table", *own).replace('"', "")


def test_a_command_of_a_remedy_names_table_and_slot(place: Set) -> None:
    _, remedy = place.refused("--table", "nope.nope")
    assert remedy.startswith(f"cdc-outbox init --slot {place.slot} --table nope.nope --create-table, or ")


def test_steps_and_filters_are_told_apart(place: Set) -> None:
    error, _ = place.refused("--only", "tabel", code=2)
    assert (
        "'tabel' is neither a step of init (table, witness, publication, slot) nor a filter of rows" in error
    )
    text = " ".join(run_command("init", "--help").stdout.split())
    assert "--only STEP|COLUMN=VALUE" in text
    assert "STEP: do this step alone (table, witness, publication, slot)." in text
