"""`init` as its users run it: what it makes, what it refuses, and what an interruption leaves."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Composed, Identifier, Literal

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.servers.postgres import PASSWORD, PostgresServer, binaries
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import eventually

ALL_VERSIONS = pytest.mark.usefixtures("postgres_version")
ROW: LiteralString = (
    "insert into outbox (aggregate_type, aggregate_id, event_type) values ('order', '1', 'placed')"
)
WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)


class Set:
    """One database with one slot, and the command on it."""

    def __init__(self, database: Database, slot: str, dsn: str | None = None, admin: str = "") -> None:
        self.database = database
        self.slot = slot
        self.dsn = dsn or database.dsn
        self.admin = admin

    def run(self, *arguments: str, command: str = "init") -> subprocess.CompletedProcess[str]:
        environment = {"CDC_OUTBOX_DSN": self.dsn}
        if self.admin:
            environment["CDC_OUTBOX_ADMIN_DSN"] = self.admin
        return run_command(command, "--slot", self.slot, *arguments, env=environment)

    def as_role(self, role: str, admin: str = "") -> Set:
        """The same, on the relay's side as another role."""
        return Set(self.database, self.slot, self.database.server.dsn(self.database.name, user=role), admin)

    def ok(self, *arguments: str, command: str = "init") -> str:
        done = self.run(*arguments, command=command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def refused(self, *arguments: str, code: int = 78, command: str = "init") -> tuple[str, str]:
        """What is wrong and what is next; each failure is those two lines, the last on stderr."""
        done = self.run(*arguments, command=command)
        assert done.returncode == code, done.stdout + done.stderr
        *_, error, remedy = done.stderr.splitlines()
        assert error.startswith("error: ")
        assert remedy.startswith("next: ")
        assert PASSWORD not in done.stdout + done.stderr
        return error.removeprefix("error: "), remedy.removeprefix("next: ")

    def steps(self, *arguments: str) -> dict[str, str]:
        document = json.loads(self.ok("--json", *arguments))
        return {step["name"]: step["status"] for step in document["steps"]}

    def execute(
        self, query: LiteralString | Composed, parameters: tuple[object, ...] = ()
    ) -> list[tuple[Any, ...]]:
        return self.database.server.execute(query, parameters, dbname=self.database.name)

    def value(self, query: LiteralString | Composed) -> Any:
        return self.execute(query)[0][0]

    def slots(self) -> list[str]:
        rows = self.execute(
            "select slot_name from pg_replication_slots where slot_name in (%s, %s) order by 1",
            (self.slot, f"{self.slot}_pending"),
        )
        return [row[0] for row in rows]

    def start_of(self, slot: str) -> str:
        ((lsn,),) = self.execute(
            "select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s", (slot,)
        )
        return str(lsn)


@pytest.fixture
def place(database: Database, slot: str) -> Set:
    return Set(database, slot)


@pytest.fixture
def plain_role(database: Database, slot: str) -> Iterator[str]:
    """A role that may log in and replicate, and owns nothing."""
    database.server.execute(
        SQL("create role {} login replication password {}").format(Identifier(slot), Literal(PASSWORD))
    )
    yield slot
    database.server.execute(SQL("drop owned by {}").format(Identifier(slot)), dbname=database.name)
    database.server.execute(SQL("drop role {}").format(Identifier(slot)))


def psql(dsn: str, script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [binaries(18) / "psql", "-X", "-v", "ON_ERROR_STOP=1", "-d", dsn],
        input=script,
        capture_output=True,
        text=True,
        check=False,
        env=clean_environment(),
    )


@contextlib.contextmanager
def open_transaction(place: Set, application: str = "") -> Iterator[psycopg.Connection]:
    with psycopg.connect(place.database.dsn, application_name=application) as connection:
        connection.execute("create table if not exists written (at timestamptz default now())")
        connection.commit()
        connection.execute("insert into written default values")
        yield connection
        connection.rollback()


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


# Rows that were there before


def test_rows_from_before_are_counted_and_stop_it(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    for _ in range(3):
        place.execute(ROW)
    error, remedy = place.refused()
    assert "public.outbox holds 3 rows" in error
    assert f"cdc-outbox init --no-backfill --slot {place.slot}" in remedy
    assert place.slots() == []
    assert place.execute("select * from cdc_outbox_witness") == []
    assert place.steps("--no-backfill")["slot"] == "created"
    assert place.execute(WITNESS)[0][0] == place.start_of(place.slot)


TABLE_A: LiteralString = (
    "create table outbox (id bigserial primary key, aggregate_type text, aggregate_id text, topic text,"
    " payload jsonb, status text, attempts int, next_run_at timestamptz, locked_by text, locked_at timestamptz,"
    " last_error text, created_at timestamptz default now(), sent_at timestamptz)"
)
TABLE_B: LiteralString = (
    "create table outbox (id bigserial primary key, event_id uuid unique default gen_random_uuid(), bus text,"
    " topic text, payload jsonb, status text, attempts int, last_error text, created_at timestamptz default now(),"
    " sent_at timestamptz)"
)
TABLE_C: LiteralString = (
    "create table outbox (id bigserial primary key, topic text, payload jsonb, sent_at timestamptz)"
)
ENUM: LiteralString = (
    "create type state as enum ('pending', 'SENT');"
    " create table outbox (id int, topic text, payload json, status state)"
)


@pytest.mark.parametrize(
    ("table", "rows", "unsent", "flags"),
    [
        (
            TABLE_A,
            "(status) values ('pending'), ('processing'), ('sent'), ('Sent'), ('failed'), (null)",
            4,
            [],
        ),
        (TABLE_A, "(status, sent_at) values ('sent', now()), ('published', now())", 0, []),
        (TABLE_B, "(bus, status) values ('kafka', 'pending'), ('kafka', 'sent'), ('nats', 'pending')", 1, []),
        (TABLE_C, "(sent_at) values (null), (now()), (null)", 2, []),
        (TABLE_C, "(topic) values ('a'), ('b'), ('c')", 2, ["--only", "topic=a", "--only", "topic=b"]),
        (ENUM, "(status) values ('pending'), ('SENT')", 1, []),
    ],
)
def test_the_tables_own_columns_say_what_is_unsent(
    place: Set, table: LiteralString, rows: LiteralString, unsent: int, flags: list[str]
) -> None:
    for statement in table.split("; "):
        place.execute(statement)
    place.execute("insert into outbox " + rows)
    if unsent:
        error, _ = place.refused(*flags)
        assert f" {unsent} row" in error
        place.execute("truncate outbox")
    place.ok(*flags)


def test_rows_behind_a_row_policy_are_not_overlooked(place: Set, plain_role: str) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(ROW)
    place.execute("alter table outbox enable row level security")
    place.execute(SQL("grant select on outbox to {}").format(Identifier(plain_role)))
    place.ok("--only", "witness", "--only", "publication", "--role", plain_role)
    error, remedy = place.as_role(plain_role).refused()
    assert "can't be counted" in error
    assert "--admin-dsn" in remedy
    assert place.slots() == []


def test_no_row_falls_between_the_table_and_the_slot(place: Set) -> None:
    """While rows come in, either all of them come from the slot, or init says that some may not."""
    place.ok("--create-table", "--only", "table")
    outcomes = []
    for _ in range(6):
        place.execute("truncate outbox")
        stop = threading.Event()

        def insert(stop: threading.Event = stop) -> None:
            with psycopg.connect(place.dsn, autocommit=True) as connection:
                while not stop.wait(0.05):
                    connection.execute(ROW)

        writer = threading.Thread(target=insert)
        writer.start()
        try:
            done = place.run()
        finally:
            stop.set()
            writer.join()
        outcomes.append(done.returncode)
        if done.returncode == 0:
            ((streamed,),) = place.execute(
                "select count(*) from pg_logical_slot_peek_binary_changes(%s, null, null,"
                " 'proto_version', '1', 'publication_names', 'outbox_pub') where get_byte(data, 0) = 73",
                (place.slot,),
            )
            assert streamed == place.value("select count(*) from outbox")
            place.ok("--yes", command="drop")
        else:
            assert done.returncode == 78
            assert place.slots() == []
    assert set(outcomes) <= {0, 78}


# Rights


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


def test_a_missing_right_prints_the_owners_sql_and_keeps_what_is_done(place: Set, plain_role: str) -> None:
    place.execute("create table outbox (id uuid, topic text, payload json)")
    relay = place.as_role(plain_role)
    done = relay.run()
    assert done.returncode == 78
    error, remedy = done.stderr.splitlines()
    assert "may not make: witness, publication" in error
    assert "--admin-dsn" in remedy
    report, _, script = done.stdout.partition("\n\n")
    assert [line.split()[:2] for line in report.splitlines()] == [
        ["table", "existed"],
        ["witness", "failed"],
        ["publication", "failed"],
    ]
    assert place.slots() == []
    assert psql(place.database.dsn, script).returncode == 0

    # Now the witness is there, but the role may not write it.
    done = relay.run()
    assert done.returncode == 78
    assert "may not make: grants" in done.stderr
    script = done.stdout.partition("\n\n")[2]
    assert psql(place.database.dsn, script).returncode == 0

    # And an empty table that the role may not read: nobody can say that it is empty.
    error, remedy = relay.refused()
    assert "can't be counted" in error
    assert place.slots() == []
    place.execute(SQL("grant select on outbox to {}").format(Identifier(plain_role)))
    assert relay.steps()["slot"] == "created"
    assert place.execute(WITNESS)[0][0] == place.start_of(place.slot)


def test_the_owners_part_goes_by_the_admin_dsn(place: Set, plain_role: str) -> None:
    relay = place.as_role(plain_role, admin=place.dsn)
    assert relay.steps("--create-table") == {
        "table": "created",
        "witness": "created",
        "publication": "created",
        "grants": "created",
        "slot": "created",
    }
    with psycopg.connect(relay.dsn) as connection:
        connection.execute("update cdc_outbox_witness set updated_at = now()")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select * from outbox")
    assert set(relay.steps().values()) == {"existed"}


def test_the_admin_dsn_has_to_lead_to_the_same_database(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    other = place.database.server.dsn("postgres")
    error, _ = Set(place.database, place.slot, other, admin=place.dsn).refused()
    assert "is not the same" in error
    assert place.slots() == []


def test_the_role_may_replicate_and_keep_its_witness_and_no_more(place: Set) -> None:
    role = place.slot
    try:
        assert place.steps("--create-table", "--role", role)["grants"] == "created"
        assert place.steps("--role", role)["grants"] == "existed"
        place.execute(SQL("alter role {} noreplication").format(Identifier(role)))
        assert place.steps("--role", role)["grants"] == "created"
        place.execute(SQL("alter role {} password {}").format(Identifier(role), Literal(PASSWORD)))
        dsn = place.database.server.dsn(place.database.name, user=role)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("delete from cdc_outbox_witness")
            connection.execute("select pg_drop_replication_slot(%s)", (role,))
            for refused in ("select * from outbox", "create table public.mine ()"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(refused)
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


def test_a_role_that_may_not_replicate_is_named(place: Set) -> None:
    role = place.slot
    place.execute(SQL("create role {} login password {}").format(Identifier(role), Literal(PASSWORD)))
    try:
        relay = place.as_role(role, admin=place.dsn)
        error, remedy = relay.refused("--create-table")
        assert role in error
        assert "may not replicate" in error
        assert "replication" in remedy
        place.execute(SQL("alter role {} replication").format(Identifier(role)))
        assert relay.steps()["slot"] == "created"
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


# What can't be an outbox

FOREIGN: LiteralString = (
    "create foreign data wrapper w; create server s foreign data wrapper w;"
    " create foreign table outbox (id int) server s"
)


def test_a_missing_table_names_the_flag(place: Set) -> None:
    error, remedy = place.refused()
    assert error == "table public.outbox does not exist"
    assert "--create-table" in remedy
    assert place.execute("select 1 from pg_publication") == []


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("create unlogged table outbox (id uuid, topic text, payload json)", "unlogged"),
        ("create view outbox as select 1 as id", "a view"),
        ("create materialized view outbox as select 1 as id", "a materialised view"),
        (FOREIGN, "a foreign table"),
    ],
)
def test_what_leaves_no_rows_in_the_log_is_refused(place: Set, statement: LiteralString, words: str) -> None:
    place.execute(statement)
    error, _ = place.refused("--create-table")
    assert words in error
    assert place.slots() == []
    assert place.execute("select 1 from pg_publication") == []


def test_the_remedy_for_an_unlogged_table_works(place: Set) -> None:
    place.execute("create unlogged table outbox (id uuid, topic text, payload json)")
    _, remedy = place.refused()
    assert psql(place.dsn, remedy).returncode == 0
    place.ok()


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


def test_a_missing_schema_is_named(place: Set) -> None:
    error, remedy = place.refused("--create-table", "--table", "shop.outbox")
    assert error == "schema shop does not exist"
    assert psql(place.dsn, remedy).returncode == 0
    place.ok("--create-table", "--table", "shop.outbox")


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


# Slots and publications that are in the way


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("select pg_create_physical_replication_slot(%s)", "a physical replication slot"),
        ("select pg_create_logical_replication_slot(%s, 'test_decoding')", "test_decoding"),
    ],
)
@pytest.mark.parametrize("suffix", ["", "_pending"])
def test_a_foreign_slot_of_that_name_is_refused(
    place: Set, statement: LiteralString, words: str, suffix: str
) -> None:
    name = place.slot + suffix
    place.execute(statement, (name,))
    try:
        error, remedy = place.refused("--create-table")
        assert words in error
        assert name in error
        assert "--slot" in remedy
        assert place.execute("select to_regclass('public.outbox')") == [(None,)]
        assert place.slots() == [name]
    finally:
        place.execute("select pg_drop_replication_slot(%s)", (name,))


def test_a_slot_of_another_database_is_refused(place: Set) -> None:
    place.database.server.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (place.slot,))
    try:
        error, _ = place.refused("--create-table")
        assert '"postgres"' in error
    finally:
        place.database.server.execute("select pg_drop_replication_slot(%s)", (place.slot,))


def test_a_publication_behind_its_slot_is_refused_and_the_remedy_works(place: Set) -> None:
    place.ok("--create-table")
    place.execute("drop publication outbox_pub")
    error, remedy = place.refused()
    assert "outbox_pub does not exist" in error
    create, _, rest = remedy.partition(" then ")
    assert rest.startswith(f"cdc-outbox start --slot {place.slot} --accept-gap, which ")
    assert psql(place.dsn, create).returncode == 0
    place.ok()


@pytest.mark.parametrize(
    "statement",
    [
        "create publication outbox_pub",
        "create publication outbox_pub for table outbox with (publish = 'update')",
        "create publication outbox_pub for table outbox where (event_type = 'placed')",
    ],
)
def test_a_publication_that_hides_rows_is_refused_and_the_remedy_works(
    place: Set, statement: LiteralString
) -> None:
    place.ok("--create-table", "--only", "table")
    place.execute(statement)
    error, remedy = place.refused()
    assert "outbox_pub" in error
    assert place.slots() == []
    assert psql(place.dsn, remedy).returncode == 0
    place.ok()


def test_a_witness_row_without_a_slot_is_a_gap_and_the_remedy_works(place: Set) -> None:
    place.ok("--create-table")
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    position = place.execute(WITNESS)[0][0]
    place.execute(ROW)
    error, remedy = place.refused()
    assert position in error
    assert "recover" in remedy
    assert f"cdc-outbox drop --slot {place.slot}" in remedy
    assert place.slots() == []
    place.ok("--yes", command="drop")
    error, _ = place.refused()
    assert "holds 1 row " in error
    place.ok("--no-backfill")


# Interruptions


@ALL_VERSIONS
def test_a_pending_slot_alone_is_made_anew(place: Set) -> None:
    place.ok("--create-table", "--only", "table", "--only", "witness", "--only", "publication")
    pending = f"{place.slot}_pending"
    place.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pending,))
    before = place.start_of(pending)
    place.execute(ROW)
    error, _ = place.refused()
    assert "holds 1 row " in error
    assert place.slots() == []
    place.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (pending,))
    place.ok("--no-backfill")
    assert place.slots() == [place.slot]
    assert LSN.parse(place.start_of(place.slot)) > LSN.parse(before)


@ALL_VERSIONS
@pytest.mark.parametrize("named", [False, True])
def test_what_was_counted_is_finished_without_counting_again(place: Set, named: bool) -> None:
    """Rows that came since are behind the slot, so they neither stop it nor get lost."""
    place.ok("--create-table")
    start = place.start_of(place.slot)
    pending = f"{place.slot}_pending"
    place.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (place.slot, pending))
    if not named:
        place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.execute(ROW)
    assert place.steps()["slot"] == ("existed" if named else "created")
    assert place.slots() == [place.slot]
    assert place.start_of(place.slot) == start


def test_a_counted_pending_slot_whose_publication_was_made_again_counts_again(place: Set) -> None:
    place.ok("--create-table")
    pending = f"{place.slot}_pending"
    place.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (place.slot, pending))
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.execute("drop publication outbox_pub")
    place.execute(ROW)
    error, _ = place.refused()
    assert "holds 1 row " in error
    assert place.slots() == []
    assert place.execute("select * from cdc_outbox_witness") == []
    place.ok("--no-backfill")


@ALL_VERSIONS
def test_an_open_transaction_is_named_and_nothing_is_left(place: Set) -> None:
    with open_transaction(place, "checkout") as other:
        error, remedy = place.refused("--create-table", "--wait", "1s", code=1)
        assert f"pid {other.info.backend_pid} (user postgres, database {place.database.name}" in error
        assert "application checkout, open for" in error
        assert "query: insert into written" in error
        assert f"pg_terminate_backend({other.info.backend_pid})" in remedy
        assert place.slots() == []
    assert set(place.steps().values()) == {"existed", "created"}


def test_killed_while_it_waits_it_leaves_nothing(place: Set) -> None:
    with open_transaction(place):
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--slot", place.slot],
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for open transactions: pid ")
        assert place.slots() == [f"{place.slot}_pending"]
        process.kill()
        process.communicate()
        eventually(lambda: place.slots() == [], 10, "the half-made slot is gone")
    place.ok()


@ALL_VERSIONS
def test_killed_anywhere_the_next_one_finishes_it(place: Set) -> None:
    """The kills are spread over the time that one run takes, from its start to its end."""
    command = [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--slot", place.slot]
    begun = time.monotonic()
    place.ok("--create-table")
    whole = time.monotonic() - begun
    for part in range(1, 9):
        place.ok("--yes", command="drop")
        process = subprocess.Popen(
            command,
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(whole * (0.3 + 0.08 * part))
        process.kill()
        process.wait()
        place.ok("--create-table")
        assert place.slots() == [place.slot]
        assert place.execute(WITNESS)[0][0] == place.start_of(place.slot)


@ALL_VERSIONS
def test_several_at_once_make_one_set(place: Set) -> None:
    command = [sys.executable, "-m", "cdc_outbox", "init", "--create-table", "--json", "--slot", place.slot]
    processes = [
        subprocess.Popen(
            command,
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0, 0], answers
    documents = [json.loads(out) for out, _ in answers]
    slot = [next(step["status"] for step in each["steps"] if step["name"] == "slot") for each in documents]
    assert sorted(slot) == ["created", "existed", "existed", "existed"]
    assert len({each["slot"]["lsn"] for each in documents}) == 1
    assert place.slots() == [place.slot]


# The server


def on_own(server: PostgresServer, slot: str) -> Set:
    return Set(Database(server, "postgres"), slot)


def test_a_server_that_does_not_decode_is_named(
    make_postgres: Callable[..., PostgresServer], slot: str
) -> None:
    place = on_own(make_postgres(settings={"wal_level": "replica"}), slot)
    error, remedy = place.refused("--create-table")
    assert "wal_level is replica" in error
    assert "alter system set wal_level = logical" in remedy


def test_no_room_for_a_slot_is_named(make_postgres: Callable[..., PostgresServer], slot: str) -> None:
    place = on_own(make_postgres(settings={"max_replication_slots": "1"}), slot)
    error, remedy = place.refused("--create-table")
    assert "no room" in error
    assert "max_replication_slots" in remedy
    server = place.database.server
    assert isinstance(server, PostgresServer)
    server.configure({"max_replication_slots": "2"})
    server.restart()
    place.ok()
    assert place.slots() == [place.slot]


def test_nothing_is_created_on_a_standby(own_postgres: PostgresServer, slot: str) -> None:
    standby = own_postgres.standby()
    try:
        error, remedy = on_own(standby, slot).refused("--create-table")
        assert "is a standby" in error
        assert "--dsn" in remedy
    finally:
        standby.close()


def test_an_unreachable_server_is_a_failure_that_may_pass(place: Set) -> None:
    place.dsn = "postgresql://nobody@127.0.0.1:1/nothing"
    place.refused(code=1)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nonsense"],
        ["--role", ""],
        ["--wait", "soon"],
        ["--print-sql", "--json"],
        ["--slot", "Not A Slot"],
    ],
)
def test_wrong_usage_is_two(place: Set, arguments: list[str]) -> None:
    place.refused(*arguments, code=2)


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
