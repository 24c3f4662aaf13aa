"""The next step that is printed, pasted into a shell as it stands: it mends what was wrong, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import LiteralString

import pytest
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import Database
from tests.integration.initial import Set
from tests.servers.kafka import Kafka
from tests.servers.ledger import verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD, PostgresServer
from tests.servers.relay import run_command
from tests.servers.shell import Shell, shell_of_checkout
from tests.servers.wait import PATIENCE, eventually

KEYLESS: LiteralString = "create table outbox (id bigserial primary key, topic text not null, payload jsonb)"


@pytest.fixture
def place(database: Database, slot: str) -> Set:
    return Set(database, slot)


@pytest.fixture
def shell(place: Set, tmp_path: Path) -> Shell:
    """The shell of whoever runs the commands of `place`."""
    return shell_of_checkout(tmp_path, CDC_OUTBOX_DSN=place.dsn, OWNER_DSN=place.dsn)


@pytest.fixture
def roles(place: Set) -> Iterator[tuple[str, str]]:
    """A plain owner of the table public.outbox, and the name for a role of its relay."""
    server, owner, relay = place.database.server, f"{place.slot}_owner", f"{place.slot}_relay"
    server.execute(SQL("create role {} login password {}").format(Identifier(owner), Literal(PASSWORD)))
    place.execute(
        SQL("grant create on database {} to {}").format(Identifier(place.database.name), Identifier(owner))
    )
    place.execute(SQL("grant create on schema public to {}").format(Identifier(owner)))
    yield owner, relay
    if place.slots():
        place.execute("select pg_drop_replication_slot(%s)", (place.slot,))
    for role in (relay, owner):
        if server.execute("select from pg_roles where rolname = %s", (role,)):
            place.execute(SQL("drop owned by {} cascade").format(Identifier(role)))
            server.execute(SQL("drop role {}").format(Identifier(role)))


def lose(server: PostgresServer, slot: str) -> None:
    """Write more than the slot may keep, until its WAL is gone."""
    query = "select wal_status from pg_replication_slots where slot_name = %s"

    def lost() -> bool:
        server.value("select pg_logical_emit_message(false, 'noise', repeat('x', 1000000))::text")
        server.value("select pg_switch_wal()::text")
        server.execute("checkpoint")
        return bool(server.value(query, (slot,)) == "lost")

    eventually(lost, PATIENCE, "the slot's WAL is removed")


def test_a_lost_slot_is_replaced_by_the_relays_role_and_what_was_lost_is_sent(
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
) -> None:
    """F10: the role of the relay owns nothing, and what it prints says whose connection it takes."""
    server = make_postgres(
        settings={"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    )
    way = server.dsn("postgres", user="relay")
    pipeline = make_pipeline(server, kafka, way=way, flags=("--column", "payload=payload")).prepare()
    owner = {"CDC_OUTBOX_DSN": pipeline.dsn, "CDC_OUTBOX_SLOT": pipeline.slot}
    server.execute(SQL("create role relay login replication password {}").format(Literal(PASSWORD)))
    assert run_command("init", "--role", "relay", env=owner).returncode == 0
    writer, consumer = pipeline.writer(), pipeline.consumer()
    relay = pipeline.start()
    consumer.wait_ids(writer.write(20))
    assert relay.terminate()[0] == 0
    writer.write(30)
    lose(server, pipeline.slot)

    relay = pipeline.start(state=None, http=False)
    assert relay.wait() == 78, relay.text()
    remedy = str(relay.records[-1]["next"])
    assert PASSWORD not in remedy
    export, _, commands = remedy[remedy.index("export CDC_OUTBOX_ADMIN_DSN=") :].partition(" && ")
    assert commands.count("--column payload=payload") == 2, "init and audit take it"
    shell = shell_of_checkout(tmp_path, CDC_OUTBOX_DSN=way, OWNER_DSN=pipeline.dsn)
    shell.run(export)  # apart: our shell keeps nothing of a line that fails at its end, a person's does
    audited = shell.run(commands, code=1)
    assert "missing      30" in audited.stdout
    again = re.search(r": (cdc-outbox replay .*), which sends all", audited.stdout)
    assert again is not None, audited.stdout
    shell.run(f"{again[1]} --yes")
    pipeline.start()
    consumer.wait_ids(writer.write(10))
    verify(writer.committed, consumer.wait_ids(writer.committed, PATIENCE))


# What was mistyped


@pytest.mark.parametrize("flags", [(), ("--create-table",)])
def test_a_table_whose_name_wants_quotes_is_named_with_them(
    flags: tuple[str, ...], place: Set, shell: Shell
) -> None:
    place.execute("create schema shop")
    place.execute(
        'create table shop."OutboxEvents" (id uuid primary key, aggregate_id text, topic text, payload json)'
    )
    error, remedy = place.refused("--table", "shop.OutboxEvents", *flags)
    assert "table shop.outboxevents does not exist" in error
    assert 'there is shop."OutboxEvents"' in error
    shell.run(remedy)
    assert place.value("select to_regclass('shop.outboxevents') is null")
    assert place.execute("select tablename from pg_publication_tables") == [("OutboxEvents",)]


def test_a_table_that_is_like_no_other_may_be_made(place: Set) -> None:
    place.execute("create table customers (id int)")
    _, remedy = place.refused()
    assert remedy.startswith("cdc-outbox init --slot")
    assert "--create-table" in remedy


@pytest.mark.parametrize(
    "command", [("init",), ("peek", "--limit", "1"), ("doctor",), ("backfill", "--yes", "--overlap")]
)
@pytest.mark.parametrize(
    ("wrong", "meant"), [("--publication outbox_pbu", "outbox_pub"), ("--table outbx", "public.outbox")]
)
def test_a_mistyped_name_is_answered_by_the_one_that_was_meant(
    command: tuple[str, ...], wrong: str, meant: str, place: Set
) -> None:
    place.ok("--create-table")
    name, *flags = command
    done = place.run(*flags, *wrong.split(), command=name)
    said = done.stdout + done.stderr
    assert done.returncode == 78, said
    flag = wrong.partition(" ")[0]
    again = " ".join(["cdc-outbox", name, "--slot", place.slot, *flags, flag, meant])
    assert again in said
    assert "accept-gap" not in said
    assert "create publication" not in said


@pytest.mark.parametrize("command", [("start", "--no-http"), ("peek", "--limit", "1"), ("doctor",)])
def test_a_mistyped_slot_is_answered_by_the_nearest_of_ours_first(
    command: tuple[str, ...], place: Set
) -> None:
    place.ok("--create-table")
    name, *flags = command
    typo = f"{place.slot}x"
    done = Set(place.database, typo).run(*flags, "--key", "aggregate_id", command=name)
    said = done.stdout + done.stderr
    assert done.returncode == 78, said
    shown = " ".join(flag for flag in flags if flag != "--no-http")
    again = " ".join(f"cdc-outbox {name} {shown} --key aggregate_id --slot {place.slot}".split())
    assert f"if {place.slot} is meant: {again}; else, to make {typo}: cdc-outbox init --slot {typo}" in said


def test_all_that_is_missing_is_told_with_the_slot(place: Set) -> None:
    place.ok("--create-table", "--only", "table")
    error, remedy = place.refused("--no-http", "--log-format", "text", command="start")
    assert error == f'there is no replication slot "{place.slot}"; publication outbox_pub does not exist'
    assert remedy == f"cdc-outbox init --slot {place.slot}"


# Who does it


def test_what_only_an_owner_can_do_is_not_asked_of_the_relays_role(
    place: Set, roles: tuple[str, str], shell: Shell
) -> None:
    _, relay = roles
    told = place.run("--create-table", "--role", relay).stderr
    assert f"the role {relay} was made: it may log in and replicate, and has no password yet" in told
    assert rf"""psql "$OWNER_DSN" -c '\password {relay}'""" in told
    assert "was made" not in place.run("--role", relay).stderr
    place.execute(SQL("alter role {} password {}").format(Identifier(relay), Literal(PASSWORD)))
    as_relay = place.as_role(relay)
    place.execute("alter publication outbox_pub drop table outbox")
    _, remedy = as_relay.refused("--no-http", "--log-format", "text", command="start")
    assert re.match(r"as \S+: alter publication outbox_pub add table public.outbox;", remedy), remedy
    place.ok("--yes", command="drop")
    _, remedy = as_relay.refused("--no-http", "--log-format", "text", command="start")
    command, _, who = remedy.partition(", ")
    assert command == f'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && cdc-outbox init --slot {place.slot}'
    assert who == "with the owner's connection in OWNER_DSN"
    shell.export(CDC_OUTBOX_DSN=as_relay.dsn)
    shell.run(command)
    assert place.slots() == [place.slot]


def test_an_owner_who_may_not_replicate_is_shown_to_a_relays_role(
    place: Set, roles: tuple[str, str], shell: Shell
) -> None:
    owner, _ = roles
    relay = f"{place.slot}_relay"
    as_owner = place.as_role(owner)
    error, remedy = as_owner.refused("--create-table")
    assert f"the role {owner} may not replicate" in error
    assert f"alter role {owner}" not in remedy
    superuser, _, init = remedy.partition("; then ")
    printed = superuser[superuser.index("cdc-outbox init") :]
    assert printed.endswith('--role outbox_relay | psql "$SUPERUSER_DSN"')
    shell.export(
        SUPERUSER_DSN=place.dsn, RELAY_DSN=place.database.server.dsn(place.database.name, user=relay)
    )
    shell.export(OWNER_DSN=as_owner.dsn)
    shell.run(printed.replace("outbox_relay", relay))
    place.execute(SQL("alter role {} password {}").format(Identifier(relay), Literal(PASSWORD)))
    _, remedy = as_owner.refused("--role", relay)
    assert "SUPERUSER" not in remedy, "the role is there"
    shell.run(remedy[remedy.index("export CDC_OUTBOX_DSN") :])
    assert init.replace("outbox_relay", relay).partition(": ")[2] in remedy
    assert place.slots() == [place.slot]


def test_rows_that_the_relays_role_may_not_read_are_published_by_the_owner(
    place: Set, roles: tuple[str, str], shell: Shell, kafka: Kafka
) -> None:
    _, relay = roles
    place.execute("create schema shop")
    place.execute(
        "create table shop.events (id bigserial primary key, aggregate_type text, aggregate_id text, payload json)"
    )
    place.execute("insert into shop.events (aggregate_type, aggregate_id) values ('order', '42')")
    table = ("--table", "shop.events")
    place.refused(*table, "--role", relay)
    place.execute(SQL("alter role {} password {}").format(Identifier(relay), Literal(PASSWORD)))
    as_relay = place.as_role(relay)
    bus = ("--bootstrap-servers", kafka.bootstrap)
    try:
        backfill = f"cdc-outbox backfill --table shop.events --slot {place.slot} --bootstrap-servers {kafka.bootstrap}"
        owned = f'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && {backfill}'
        _, remedy = as_relay.refused(*table, *bus, command="peek")
        assert remedy.startswith(f"stop the old relay, then: {owned}; or to hear")
        assert remedy.endswith(", with the owner's connection in OWNER_DSN")
        assert f"{owned}; or to hear" in as_relay.run(*table, *bus, command="doctor").stdout
        for flags in (("--yes",), ("--yes", "--where", "true"), ("--yes",)):
            error, remedy = as_relay.refused(*table, *bus, *flags, command="backfill")
            assert f"the role {relay} may not read all of shop.events: " in error
            assert "cdc-outbox init" not in remedy
            owners, _, rights = remedy.partition("; or as its owner: ")
            assert owners == (
                "read it as its owner, with the owner's connection in OWNER_DSN: "
                'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN", then run this again'
            )
            assert rights == f"grant usage on schema shop to {relay}; grant select on shop.events to {relay};"
            place.execute("alter table shop.events add column if not exists status text default 'pending'")
        shell.export(CDC_OUTBOX_DSN=as_relay.dsn)
        with kafka.without("outbox.event.order"):
            assert "published 1" in shell.run(f"{owned} --yes --create-topics").stdout
        assert place.slots() == [place.slot]
    finally:
        place.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = %s",
            (f"{place.slot}_pending",),
        )


# What comes first


def test_rows_are_asked_for_once_the_mapping_holds(place: Set) -> None:
    place.execute(KEYLESS)
    place.execute("""insert into outbox (topic, payload) values ('orders', '{"order_id": 7}')""")
    error, remedy = place.refused()
    assert "has no aggregate id column" in error
    assert "holds 1 row from before the slot" in error
    assert remedy.startswith("name the key, as --key payload:/order_id")
    assert "stop the old relay" not in remedy
    assert place.slots() == [], "no WAL is kept for what can't be published yet"
    _, remedy = place.refused("--key", "payload:/order_id", "--topic", "shop.{topic}")
    assert remedy.startswith(
        "stop what else sends these rows, if anything does, then publish them: cdc-outbox backfill "
    )
    assert remedy.count(" --key payload:/order_id --topic 'shop.{topic}'") == 2
    assert place.slots() == [f"{place.slot}_pending"]
