"""Who may do what of `init`: the owner's part, the relay's role, and what is printed where a right is missing."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.initial import Set, place, psql
from tests.servers.postgres import PASSWORD
from tests.servers.process import free_port
from tests.servers.relay import run_command

__all__ = ["place"]

WITNESS: LiteralString = (
    "select position::text, system_identifier, timeline, publication from cdc_outbox_witness"
)


def test_a_missing_right_prints_the_owners_sql_and_keeps_what_is_done(place: Set, plain_role: str) -> None:
    place.execute("create table outbox (id uuid, topic text, payload json)")
    relay = place.as_role(plain_role)
    done = relay.run()
    assert done.returncode == 78
    error, remedy = done.stderr.splitlines()
    assert (
        "may not make: witness, publication; witness needs create on schema public; publication needs "
        in error
    )
    assert f"create on database {place.database.name}, and to own public.outbox" in error
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
    done = relay.run()
    assert (done.returncode, "create_logical" in done.stdout) == (78, False)
    assert "can't be counted" in done.stderr
    assert place.slots() == []
    place.execute(SQL("grant select on outbox to {}").format(Identifier(plain_role)))
    assert relay.steps()["slot"] == "created"
    assert place.execute(WITNESS)[0][0] == place.start_of(place.slot)


def test_the_rights_on_a_witness_that_may_not_be_made_are_missing_with_it(
    place: Set, plain_role: str
) -> None:
    place.execute("create table outbox (id uuid, topic text, payload json)")
    error, remedy = place.as_role(plain_role).refused("--role", plain_role)
    assert "may not make: witness, publication, grants; " in error
    assert "grants needs public.cdc_outbox_witness to be there" in error
    assert f"--role {plain_role} | psql" in remedy


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


def nothing_is_made(place: Set) -> bool:
    made: LiteralString = """
        select to_regclass('public.outbox') is not null or to_regclass('public.cdc_outbox_witness') is not null
            or exists (select from pg_publication)
    """
    return not place.value(made) and place.slots() == []


def test_the_admin_dsn_has_to_lead_to_the_same_database(place: Set) -> None:
    other = place.database.server.dsn("postgres")
    error, _ = Set(place.database, place.slot, other, admin=place.dsn).refused("--create-table")
    assert "is not the same" in error
    assert nothing_is_made(place)


def test_a_relays_dsn_that_leads_nowhere_is_told_before_anything_is_made(place: Set) -> None:
    nowhere = f"postgresql://relay@127.0.0.1:{free_port()}/app"
    error, _ = Set(place.database, place.slot, nowhere, admin=place.dsn).refused("--create-table", code=1)
    assert "connection refused" in error
    assert nothing_is_made(place)


@pytest.mark.parametrize("command", ["init", "drop"])
def test_the_owners_dsn_alone_is_not_enough(place: Set, command: str) -> None:
    """Nobody named the relay's, whose role makes the slot; libpq's own defaults lead to no server of the tests."""
    flags = ["--create-table"] if command == "init" else ["--yes"]
    done = run_command(command, "--slot", place.slot, *flags, env={"CDC_OUTBOX_ADMIN_DSN": place.dsn})
    assert done.returncode in (1, 78), done.stderr
    error, remedy = done.stderr.splitlines()
    assert error.startswith(
        "error: no DSN is set but the owner's, and libpq's defaults don't lead anywhere: "
    )
    assert (
        remedy
        == "next: name the relay's beside it: export CDC_OUTBOX_DSN=postgresql://USER@HOST:5432/DATABASE"
    )
    assert nothing_is_made(place)


def test_a_role_that_is_not_there_yet_is_made_before_it_is_let_in(place: Set) -> None:
    role = place.slot
    relay = place.as_role(role, admin=place.dsn)
    try:
        error, _ = relay.refused("--create-table", "--role", role)
        assert role in error
        assert not nothing_is_made(place)
        place.execute(SQL("alter role {} password {}").format(Identifier(role), Literal(PASSWORD)))
        assert relay.steps("--role", role)["slot"] == "created"
    finally:
        place.execute(SQL("drop owned by {}").format(Identifier(role)))
        place.execute(SQL("drop role {}").format(Identifier(role)))


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
