"""What `init` refuses, with a remedy that works."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

import pytest

from tests.integration.conftest import Database
from tests.integration.initial import ROW, Set, place, psql
from tests.servers.postgres import PostgresServer

__all__ = ["place"]

WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)
FOREIGN: LiteralString = (
    "create foreign data wrapper w; create server s foreign data wrapper w;"
    " create foreign table outbox (id int) server s"
)


def on_own(server: PostgresServer, slot: str) -> Set:
    return Set(Database(server, "postgres"), slot)


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
    for command, *flags in (
        ("find", "1"),
        ("cleanup", "--older-than", "7d"),
        ("backfill", "--yes"),
        ("replay", "--yes", "--id", "1"),
        ("peek",),
        ("peek", "--follow", "--compare", "1s"),
    ):
        error, _ = place.refused(*flags, command=command)
        assert words in error
    assert place.slots() == []
    assert place.execute("select 1 from pg_publication") == []


def test_the_remedy_for_an_unlogged_table_works(place: Set) -> None:
    place.execute("create unlogged table outbox (id uuid, topic text, payload json)")
    _, remedy = place.refused()
    assert psql(place.dsn, remedy).returncode == 0
    place.ok()


def test_a_missing_schema_is_named(place: Set) -> None:
    error, remedy = place.refused("--create-table", "--table", "shop.outbox")
    assert error == "schema shop does not exist"
    assert psql(place.dsn, remedy).returncode == 0
    place.ok("--create-table", "--table", "shop.outbox")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("select pg_create_physical_replication_slot(%s)", "a physical replication slot"),
        ("select pg_create_logical_replication_slot(%s, 'test_decoding')", "test_decoding"),
        ("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", "two_phase = true"),
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


@pytest.mark.parametrize(
    ("command", "flags"), [("init", []), ("start", ["--log-format", "text"]), ("drop", ["--yes"])]
)
def test_a_name_that_another_slot_may_be_made_under_is_refused(
    place: Set, command: str, flags: list[str]
) -> None:
    """Nobody's slot is taken for one that is half made."""
    place.ok("--create-table")
    pending = Set(place.database, f"{place.slot}_pending")
    error, remedy = pending.refused(*flags, command=command)
    assert f'"{pending.slot}" is how the slot "{place.slot}" is called' in error
    assert "--slot" in remedy
    assert place.slots() == [place.slot]


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
    assert f"cdc-outbox drop --yes --slot {place.slot}" in remedy
    assert place.slots() == []
    place.ok("--yes", command="drop")
    error, _ = place.refused()
    assert "holds 1 row " in error
    place.ok("--no-backfill")


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


def test_nothing_is_created_on_a_standby_and_who_waits_for_a_server_waits_for_its_promotion(
    own_postgres: PostgresServer, slot: str
) -> None:
    standby = own_postgres.standby()
    try:
        place = on_own(standby, slot)
        for command, arguments in (
            ("init", ["--create-table"]),
            ("backfill", ["--yes"]),
            ("start", ["--init", "--create-table", "--fail-fast", "--log-format", "text"]),
        ):
            error, remedy = place.refused(*arguments, command=command, code=1)
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
