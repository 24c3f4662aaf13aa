"""`init` as its users run it: what it makes, and what it says of that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS
from tests.integration.initial import ROW, Set, place, psql
from tests.servers.relay import run_command

__all__ = ["place"]

WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)


@ALL_VERSIONS
def test_everything_is_made_in_order_and_twice_is_once(place: Set) -> None:
    first = json.loads(place.ok("--create-table", "--json"))
    assert first["schema_version"] == 1
    assert [(step["name"], step["status"]) for step in first["steps"]] == [
        ("table", "created"),
        ("witness", "created"),
        ("publication", "created"),
        ("slot", "created"),
    ]
    assert all(step["sql"] for step in first["steps"])
    assert first["slot"] == {"name": place.slot, "lsn": place.start_of(place.slot)}
    assert place.slots() == [place.slot]

    ((position, system, timeline, identity),) = place.execute(WITNESS)
    assert position == first["slot"]["lsn"]
    assert system == str(place.value("select system_identifier from pg_control_system()") % 2**64)
    assert timeline == 1
    assert json.loads(identity)["tables"].keys() == {"public.outbox"}

    place.execute(ROW)
    second = json.loads(place.ok("--create-table", "--json"))
    assert {step["status"] for step in second["steps"]} == {"existed"}
    assert second["slot"] == first["slot"]
    place.ok("--no-backfill")
    assert place.start_of(place.slot) == first["slot"]["lsn"]


def test_the_default_table_is_that_of_the_contract(place: Set) -> None:
    place.ok("--create-table")
    columns = place.execute(
        "select column_name, data_type, is_nullable, column_default from information_schema.columns"
        " where table_schema = 'public' and table_name = 'outbox' order by ordinal_position"
    )
    assert columns == [
        ("id", "uuid", "NO", "gen_random_uuid()"),
        ("aggregate_type", "text", "NO", None),
        ("aggregate_id", "text", "NO", None),
        ("event_type", "text", "NO", None),
        ("event_version", "integer", "YES", None),
        ("payload", "jsonb", "YES", None),
        ("headers", "jsonb", "YES", None),
        ("created_at", "timestamp with time zone", "NO", "now()"),
    ]


def test_the_publication_has_inserts_only_of_this_table_only(place: Set) -> None:
    place.ok("--create-table")
    assert place.execute(
        "select pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot, puballtables from pg_publication"
    ) == [(True, False, False, False, True, False)]
    assert place.execute("select schemaname, tablename from pg_publication_tables") == [("public", "outbox")]


@ALL_VERSIONS
def test_failover_is_for_17_and_later_unless_unwanted(place: Set) -> None:
    failover = SQL(
        "select coalesce((to_jsonb(s) ->> 'failover')::boolean, false) from pg_replication_slots s"
        " where slot_name = {}"
    ).format(Literal(place.slot))
    place.ok("--create-table")
    assert place.value(failover) is (place.database.major >= 17)
    place.ok("--yes", command="drop")
    place.ok("--no-failover")
    assert place.value(failover) is False


def test_a_text_report_names_each_step(place: Set) -> None:
    lines = place.ok("--create-table").splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["table", "created", "public.outbox"],
        ["witness", "created", "public.cdc_outbox_witness"],
        ["publication", "created", "outbox_pub"],
        ["slot", "created", place.slot],
    ]
    assert place.start_of(place.slot) in lines[4]


@ALL_VERSIONS
def test_printed_sql_runs_as_it_is_and_does_what_init_does(place: Set) -> None:
    nowhere = Set(place.database, place.slot, "postgresql://nobody@127.0.0.1:1/nothing")
    role = f"{place.slot} $$ \" '"
    script = nowhere.ok("--print-sql", "--role", role)
    assert place.slots() == []
    try:
        done = psql(place.dsn, script)
        assert done.returncode == 0, done.stderr
        assert "WARNING" not in done.stderr
        assert set(place.steps("--role", role).values()) == {"existed"}
        assert place.execute(
            "select rolcanlogin, rolreplication, rolsuper, rolcreatedb, rolbypassrls from pg_roles where rolname = %s",
            (role,),
        ) == [(True, True, False, False, False)]
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


@ALL_VERSIONS
def test_printed_sql_of_a_table_that_there_is_not_makes_no_slot(place: Set) -> None:
    """Also where the client goes on after an error, as psql does by itself."""
    script = place.ok("--print-sql", "--table", "OutboxEvents")
    done = psql(place.dsn, "\\set ON_ERROR_STOP off\n" + script)
    assert 'relation "public.outboxevents" does not exist' in done.stderr
    assert "no slot is made without its publication, and there is no publication outbox_pub" in done.stderr
    assert place.slots() == []


@pytest.mark.parametrize("only", ["table", "witness", "publication", "slot"])
def test_one_step_alone(place: Set, only: str) -> None:
    before = {"publication": "table", "slot": "table publication"}.get(only, "").split()
    for step in before:
        place.ok("--only", step)
    assert place.steps("--only", only) == {only: "created"}
    assert place.steps("--only", only) == {only: "existed"}
    script = place.ok("--only", only, "--print-sql")
    statements = {"create table", "create publication", "pg_create_logical_replication_slot"}
    assert sum(statement in script for statement in statements) == 1


def test_a_quoted_name_and_several_tables(place: Set) -> None:
    place.execute('create schema "Shop"')
    tables = ("--table", '"Shop"."Out box"', "--table", "public.events")
    place.ok("--create-table", *tables)
    assert place.execute("select schemaname, tablename from pg_publication_tables order by 1") == [
        ("Shop", "Out box"),
        ("public", "events"),
    ]
    assert set(json.loads(place.execute(WITNESS)[0][3])["tables"]) == {'"Shop"."Out box"', "public.events"}
    assert set(place.steps(*tables).values()) == {"existed"}


@ALL_VERSIONS
def test_a_partitioned_outbox_appears_under_its_own_name(place: Set) -> None:
    place.execute(
        "create table outbox (id uuid, aggregate_id text, topic text, payload json, created_at timestamptz)"
        " partition by range (created_at)"
    )
    place.execute("create table outbox_now partition of outbox default")
    place.ok()
    assert place.execute("select tablename from pg_publication_tables") == [("outbox",)]
    place.execute("insert into outbox values (gen_random_uuid(), 'a', 'orders', '{}', now())")
    relations = place.execute(
        "select data from pg_logical_slot_peek_binary_changes(%s, null, null, 'proto_version', '1',"
        " 'publication_names', 'outbox_pub') where get_byte(data, 0) = 82",
        (place.slot,),
    )
    assert any(b"public\0outbox\0" in bytes(row[0]) for row in relations)


def test_help_begins_with_examples_and_says_what_steps_there_are() -> None:
    done = run_command("init", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Examples:\n  cdc-outbox init")
    assert done.stdout.count("--only") == 1
    assert done.stderr == ""


def test_a_report_as_json_comes_with_a_failure_too(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    done = place.run("--json")
    assert done.returncode == 78
    document = json.loads(done.stdout)
    assert [step["status"] for step in document["steps"]] == ["existed", "created", "created"]
    assert document["slot"] == {"name": place.slot, "lsn": None}
    assert done.stderr.startswith("error: ")


def test_the_sql_files_are_where_the_reader_looks() -> None:
    names = {path.name for path in (Path(__file__).parents[2] / "sql").glob("*.sql")}
    assert {
        "outbox.sql",
        "witness.sql",
        "role.sql",
        "publication.sql",
        "slot.sql",
        "slot_queries.sql",
    } <= names


@ALL_VERSIONS
def test_the_slot_queries_run(place: Set) -> None:
    place.ok("--create-table")
    queries = (Path(__file__).parents[2] / "sql" / "slot_queries.sql").read_text()
    done = psql(place.dsn, queries)
    assert done.returncode == 0, done.stderr
    assert place.slot in done.stdout
    assert "outbox_pub" in done.stdout
