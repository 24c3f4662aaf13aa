"""`drop` as its users run it: it asks, it refuses what is in use or foreign, and it can be repeated."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.initial import Set, psql
from tests.servers.postgres import PASSWORD
from tests.servers.relay import clean_environment, run_command
from tests.servers.wait import PATIENCE, eventually

LEFT: LiteralString = (
    "select (select count(*) from pg_publication), (select count(*) from cdc_outbox_witness),"
    " (select count(*) from pg_replication_slots where slot_name like {} || '%')"
)
KEPT = (
    "kept table public.cdc_outbox_witness, for other slots; when there are none:"
    " drop table public.cdc_outbox_witness;"
)


@pytest.fixture
def place(database: Database, slot: str) -> Set:
    return Set(database, slot)


def left(place: Set) -> tuple[int, int, int]:
    """How many publications, witness rows and slots there are."""
    publications, rows, slots = place.execute(SQL(LEFT).format(Literal(place.slot)))[0]
    return publications, rows, slots


@ALL_VERSIONS
def test_all_of_it_goes_and_twice_is_once(place: Set) -> None:
    place.ok("--create-table")
    assert left(place) == (1, 1, 1)
    said = place.ok("--yes", command="drop")
    assert said.splitlines() == [
        f'removed slot "{place.slot}"',
        f'removed witness row "{place.slot}"',
        "removed publication outbox_pub",
        KEPT,
    ]
    assert left(place) == (0, 0, 0)
    assert "nothing to remove" in place.ok("--yes", command="drop")
    assert place.value("select count(*) from outbox") == 0


@ALL_VERSIONS
def test_a_superuser_alone_hears_of_the_relays_role_too(place: Set) -> None:
    role = place.slot
    place.ok("--create-table", "--role", role)
    said = place.ok("--yes", command="drop").splitlines()[-1]
    kept, _, statements = said.partition("; when there are none: ")
    assert kept == f"kept table public.cdc_outbox_witness and role {role}, for other slots"
    place.ok("--role", role)
    place.execute("create schema theirs")
    place.execute(SQL("alter schema theirs owner to {}").format(Identifier(role)))
    assert place.ok("--yes", command="drop").splitlines()[-1] == KEPT, "what it owns would be dropped with it"
    place.execute("drop schema theirs")
    assert psql(place.dsn, statements).returncode == 0
    assert place.execute("select from pg_roles where rolname = %s", (role,)) == []


def test_nothing_there_at_all_is_fine(place: Set) -> None:
    assert "nothing to remove" in place.ok("--yes", command="drop")


@ALL_VERSIONS
@pytest.mark.parametrize("named", [True, False])
def test_a_pending_slot_goes_too(place: Set, named: bool) -> None:
    place.ok("--create-table")
    pending = f"{place.slot}_pending"
    place.execute("select pg_copy_logical_replication_slot(%s, %s, false)", (place.slot, pending))
    if not named:
        place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    place.ok("--yes", command="drop")
    assert left(place) == (0, 0, 0)


def test_an_interrupted_drop_is_finished_by_the_next(place: Set) -> None:
    place.ok("--create-table")
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    said = place.ok("--yes", command="drop")
    assert f'witness row "{place.slot}"' in said
    assert left(place) == (0, 0, 0)


def test_without_a_terminal_it_asks_for_yes(place: Set) -> None:
    place.ok("--create-table")
    _, remedy = place.refused(command="drop", code=2)
    assert remedy == f"cdc-outbox drop --yes --slot {place.slot}"
    assert left(place) == (1, 1, 1)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1), ("", 1)])
def test_on_a_terminal_it_asks(place: Set, answer: str, code: int) -> None:
    place.ok("--create-table")
    master, slave = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc_outbox", "drop", "--slot", place.slot],
            env=clean_environment({"CDC_OUTBOX_DSN": place.dsn}),
            stdin=slave,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        os.write(master, f"{answer}\n".encode())
        _, question = process.communicate(timeout=30)
    finally:
        os.close(master)
        os.close(slave)
    assert process.returncode == code
    assert f'Remove the slot "{place.slot}", with ' in question
    assert 'the publication "outbox_pub"? [y/N]' in question
    assert left(place) == ((0, 0, 0) if answer == "y" else (1, 1, 1))


@ALL_VERSIONS
def test_a_slot_in_use_names_the_process_and_nothing_goes(place: Set) -> None:
    place.ok("--create-table")
    stream = psycopg.connect(f"{place.dsn}?replication=database", autocommit=True)
    try:
        stream.pgconn.send_query(
            f"START_REPLICATION SLOT {place.slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'outbox_pub')".encode()
        )
        active = SQL("select active_pid from pg_replication_slots where slot_name = {}").format(
            Literal(place.slot)
        )
        pid = eventually(lambda: place.value(active), PATIENCE, "the slot is in use")
        error, remedy = place.refused("--yes", command="drop", code=1)
        assert error == f'the slot "{place.slot}" is in use by pid {pid}'
        assert "stop the process" in remedy
        assert left(place) == (1, 1, 1)
    finally:
        stream.pgconn.finish()
    eventually(lambda: place.value(active) is None, PATIENCE, "the slot is free")
    place.ok("--yes", command="drop")


@pytest.mark.parametrize(
    "statement",
    [
        "select pg_create_physical_replication_slot(%s)",
        "select pg_create_logical_replication_slot(%s, 'test_decoding')",
    ],
)
def test_a_foreign_slot_stays(place: Set, statement: LiteralString) -> None:
    place.execute("create publication outbox_pub")
    place.execute(statement, (place.slot,))
    try:
        error, _ = place.refused("--yes", command="drop")
        assert place.slot in error
        assert place.slots() == [place.slot]
        assert place.value("select count(*) from pg_publication") == 1
    finally:
        place.execute("select pg_drop_replication_slot(%s)", (place.slot,))


def test_a_slot_that_no_relay_may_read_is_removed(place: Set) -> None:
    place.execute("create publication outbox_pub")
    place.execute("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", (place.slot,))
    error, remedy = place.refused("--log-format", "text", "--no-http", command="start")
    assert "two_phase = true" in error
    assert f"cdc-outbox drop --slot {place.slot}" in remedy
    place.ok("--yes", command="drop")
    assert place.slots() == []


@ALL_VERSIONS
def test_what_its_role_may_not_remove_keeps_no_slot_and_the_remedy_works(place: Set) -> None:
    role = place.slot
    place.ok("--create-table", "--role", role)
    place.execute(SQL("alter role {} password {}").format(Identifier(role), Literal(PASSWORD)))
    try:
        error, remedy = place.as_role(role).refused("--yes", command="drop")
        assert error.startswith("the publication outbox_pub is left, for a right is missing: ")
        assert f"{role} doesn't own the publication outbox_pub" in error
        assert left(place) == (1, 0, 0)
        place.execute(statement_of(remedy))
        place.as_role(role).ok("--yes", command="drop")
        assert left(place) == (0, 0, 0)
        place.ok("--role", role)
        place.as_role(role, admin=place.dsn).ok("--yes", command="drop")
        assert left(place) == (0, 0, 0)
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


def test_all_missing_rights_are_named_at_once(place: Set) -> None:
    role = place.slot
    place.ok("--create-table")
    place.execute(SQL("create role {} login password {}").format(Identifier(role), Literal(PASSWORD)))
    try:
        error, remedy = place.as_role(role).refused("--yes", command="drop")
        assert f"{role} may not replicate, nor drop a slot" in error
        assert f", and {role} may not delete the witness row" in error
        assert "drop publication" not in remedy, "another relay may use it"
        assert left(place) == (1, 1, 1)
        for statement in statement_of(remedy).split("; "):
            place.execute(statement)
        error, remedy = place.as_role(role).refused("--yes", command="drop")
        assert f"{role} doesn't own the publication outbox_pub" in error
        assert left(place) == (1, 0, 0)
        place.execute(statement_of(remedy))
        place.as_role(role).ok("--yes", command="drop")
        assert left(place) == (0, 0, 0)
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


def statement_of(remedy: str) -> str:
    """The SQL in a remedy."""
    found = re.search(r"with no relay at work: (.*) then run the same command again", remedy)
    assert found is not None, remedy
    return found[1]


@ALL_VERSIONS
def test_a_publication_that_another_slot_uses_stays_until_the_last(place: Set) -> None:
    place.ok("--create-table")
    other = Set(place.database, f"{place.slot}_other")
    other.ok()
    try:
        assert left(place) == (1, 2, 2)
        assert place.ok("--yes", command="drop").splitlines() == [
            f'removed slot "{place.slot}"',
            f'removed witness row "{place.slot}"',
            f"kept publication outbox_pub, which slot {other.slot} uses",
            KEPT,
        ]
        assert left(place) == (1, 1, 1)
        again = place.ok("--yes", command="drop")
        assert again.startswith("nothing to remove")
        assert f'slot {other.slot} uses publication "outbox_pub"' in again
        assert "removed publication outbox_pub" in other.ok("--yes", command="drop")
        assert left(place) == (0, 0, 0)
    finally:
        other.ok("--yes", command="drop")


@ALL_VERSIONS
def test_the_publication_that_goes_is_the_slots_own(place: Set) -> None:
    place.ok("--create-table")
    other = Set(place.database, f"{place.slot}_other")
    other.ok("--publication", "other_pub")
    place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    said = run_command(
        *("drop", "--yes", "--slot", other.slot),
        env={"CDC_OUTBOX_DSN": other.dsn, "CDC_OUTBOX_PUBLICATION": "outbox_pub"},
    ).stdout
    assert "removed publication other_pub" in said
    assert place.value("select array_agg(pubname::text) from pg_publication") == ["outbox_pub"]


def test_a_publication_that_is_named_goes_instead(place: Set) -> None:
    place.ok("--create-table", "--publication", "other_pub")
    place.execute("create publication outbox_pub")
    said = place.ok("--yes", "--publication", "outbox_pub", command="drop")
    assert "removed publication outbox_pub" in said
    assert place.value("select array_agg(pubname::text) from pg_publication") == ["other_pub"]


@pytest.mark.parametrize("why", ["its slot is gone", "another publication", "no witness table"])
def test_a_publication_that_no_other_slot_uses_goes(place: Set, why: str) -> None:
    place.ok("--create-table")
    other = Set(place.database, f"{place.slot}_other")
    other.ok(*(["--publication", "other_pub"] if why == "another publication" else []))
    if why == "its slot is gone":
        other.execute("select pg_drop_replication_slot(%s)", (other.slot,))
    elif why == "no witness table":
        place.execute("drop table cdc_outbox_witness")
    try:
        assert "removed publication outbox_pub" in place.ok("--yes", command="drop")
        assert not place.execute("select from pg_publication where pubname = 'outbox_pub'")
    finally:
        other.ok("--yes", command="drop")


def test_a_dropped_slot_can_be_made_again(place: Set) -> None:
    place.ok("--create-table")
    place.ok("--yes", command="drop")
    assert place.steps()["slot"] == "created"
    assert left(place) == (1, 1, 1)
