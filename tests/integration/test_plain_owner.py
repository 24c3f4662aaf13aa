"""The how-to of leaving a polling relay, done by a role that owns the table and its schema and is no superuser."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from typing import LiteralString

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.integration.initial import Set, psql
from tests.servers.ledger import create_outbox
from tests.servers.postgres import PASSWORD
from tests.servers.relay import run_command

PREPARE = ("--only", "witness", "--only", "publication", "--role")
LEFT: LiteralString = (
    "select (select count(*) from pg_publication), (select count(*) from cdc_outbox_witness)"
)


@pytest.fixture
def owned(database: Database, slot: str) -> Iterator[Set]:
    """A table and schema of a plain owner; `run` is what the owner does, with the relay's role beside."""
    owner, relay = f"{slot}_owner", f"{slot}_relay"
    server = database.server
    server.execute(SQL("create role {} login password {}").format(Identifier(owner), Literal(PASSWORD)))
    create_outbox(database.dsn)
    for statement in (
        SQL("create schema shop authorization {}").format(Identifier(owner)),
        SQL("alter table outbox owner to {}").format(Identifier(owner)),
    ):
        server.execute(statement, dbname=database.name)
    server.execute("alter table outbox set schema shop", dbname=database.name)
    server.execute("alter table shop.outbox add status text, add sent_at timestamptz", dbname=database.name)
    yield Set(database, slot, server.dsn(database.name, user=relay), server.dsn(database.name, user=owner))
    server.execute(
        SQL(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like {}"
        ).format(Literal(f"{slot}%"))
    )
    for role in (relay, owner):
        if server.execute("select from pg_roles where rolname = %s", (role,)):
            server.execute(SQL("drop owned by {} cascade").format(Identifier(role)), dbname=database.name)
            server.execute(SQL("drop role {}").format(Identifier(role)))


def names(place: Set) -> tuple[str, str]:
    return f"{place.slot}_owner", f"{place.slot}_relay"


def run(place: Set, *arguments: str, command: str = "init") -> subprocess.CompletedProcess[str]:
    return place.run(*(() if command == "drop" else ("--table", "shop.outbox")), *arguments, command=command)


def as_superuser(place: Set, stderr: str) -> None:
    """What the remedy prints, run as the remedy says."""
    found = re.search(r': (cdc-outbox init --print-sql .*?) \| psql "\$SUPERUSER_DSN"$', stderr)
    assert found is not None, stderr
    script = run_command(*shlex.split(found[1])[1:]).stdout
    done = psql(place.database.dsn, script)
    assert done.returncode == 0, done.stderr


def prepared(place: Set) -> str:
    """Step 1, with the superuser's part done by the printed SQL; what was said before that."""
    _, relay = names(place)
    done = run(place, *PREPARE, relay)
    assert done.returncode == 78, done.stdout
    as_superuser(place, done.stderr)
    place.execute(SQL("alter role {} password {}").format(Identifier(relay), Literal(PASSWORD)))
    assert run(place, *PREPARE, relay).returncode == 0
    return done.stderr


@ALL_VERSIONS
def test_from_the_first_step_to_the_last(owned: Set) -> None:
    owner, relay = names(owned)
    said = prepared(owned)
    assert f"the role {owner} may not make: witness, publication, grants; " in said
    assert "a superuser to make a role that may replicate" in said
    owners: LiteralString = (
        "select pubowner::regrole::text, (select relowner::regrole::text from pg_class"
        " where oid = 'public.cdc_outbox_witness'::regclass) from pg_publication"
    )
    assert owned.execute(owners) == [(owner, owner)]
    done = run(owned)
    assert done.returncode == 0, done.stderr
    assert owned.slots() == [owned.slot]
    done = run(owned, "--yes", command="drop")
    assert done.returncode == 0, done.stderr
    assert owned.slots() == []
    assert owned.execute(LEFT) == [(0, 0)]
    assert done.stdout.splitlines()[-1] == (
        f"kept table public.cdc_outbox_witness and role {relay}, for other slots; when there are none:"
        f" drop table public.cdc_outbox_witness; drop owned by {relay}; drop role {relay};"
    )


def test_what_the_owner_may_give_is_given_and_only_the_rest_is_named(owned: Set) -> None:
    _, relay = names(owned)
    owned.execute(SQL("create role {} login replication").format(Identifier(relay)))
    owned.execute("create table public.cdc_outbox_witness ()")
    done = run(owned, *PREPARE, relay, "--mark", "update", "--cleanup-older-than", "7d")
    assert done.returncode == 78
    assert (
        "grants needs to own public.cdc_outbox_witness, which is postgres's; done: witness\n" in done.stderr
    )
    assert "superuser to make" not in done.stderr
    granted = SQL(
        "select has_column_privilege({0}, 'shop.outbox', 'sent_at', 'update'), has_table_privilege({0}, 'shop.outbox',"
        " 'delete')"
    ).format(Literal(relay))
    assert owned.execute(granted) == [(True, True)]
    assert done.stdout.count("grant select, insert, update, delete on table public.cdc_outbox_witness") == 1
    assert "grant update" not in done.stdout


def test_marks_are_granted_by_the_owner_afterwards(owned: Set) -> None:
    _, relay = names(owned)
    prepared(owned)
    done = run(owned, *PREPARE, relay, "--mark", "update")
    assert done.returncode == 0, done.stderr


def test_no_slot_is_left_where_the_publication_is_anothers(owned: Set) -> None:
    owner, _ = names(owned)
    prepared(owned)
    assert run(owned).returncode == 0
    owned.execute("alter publication outbox_pub owner to current_user")
    done = run(owned, "--yes", command="drop")
    assert done.returncode == 78
    assert owned.slots() == []
    assert owned.execute(LEFT) == [(1, 0)]
    error, remedy = done.stderr.splitlines()
    assert error.startswith("error: the publication outbox_pub is left, for a right is missing: ")
    assert f"{owner} doesn't own the publication outbox_pub, which belongs to " in error
    assert error.endswith("; no slot is left, so no WAL is kept")
    assert "drop publication outbox_pub;" in remedy


def test_of_what_existed_no_statement_is_shown(owned: Set) -> None:
    prepared(owned)
    done = run(owned, "--json")
    steps = {step["name"]: step for step in json.loads(done.stdout)["steps"]}
    assert {name: step["sql"] is None for name, step in steps.items()} == {
        "table": True,
        "witness": True,
        "publication": True,
        "slot": False,
    }
