"""The relay's role, as `init --role` makes it, tries to do more than it needs."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import errors
from psycopg.sql import SQL, Identifier, Literal

from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.postgres import PASSWORD
from tests.servers.relay import run_command

FORBIDDEN = {
    "read the outbox": "select * from outbox",
    "lock the outbox": "do $$ begin lock table outbox in access share mode; end $$",
    "write an event": "insert into outbox (aggregate_type, aggregate_id, event_type) values ('a', '1', 'b')",
    "change events": "update outbox set payload = null",
    "delete events": "delete from outbox",
    "empty the outbox": "truncate outbox",
    "drop the outbox": "drop table outbox",
    "put a trigger on it": "create trigger t before update on outbox"
    " for each row execute function suppress_redundant_updates_trigger()",
    "read other tables": "select * from orders",
    "write other tables": "insert into orders values (1)",
    "make tables": "create table public.mine (id int)",
    "make schemas": "create schema mine",
    "make databases": "create database mine",
    "hide rows": "alter publication outbox_pub set (publish = 'delete')",
    "drop the publication": "drop publication outbox_pub",
    "make a publication of it": "create publication mine for table outbox",
    "make a publication of all": "create publication mine for all tables",
    "empty the witness": "truncate cdc_outbox_witness",
    "change the witness table": "alter table cdc_outbox_witness add column mine int",
    "drop the witness table": "drop table cdc_outbox_witness",
    "become a superuser": "alter role current_user superuser",
    "see what row security hides": "alter role current_user bypassrls",
    "make roles": "create role mine",
    "become the owner": "set role postgres",
    "change the server": "alter system set wal_level = minimal",
    "change the database": "alter database {database} set work_mem = '1GB'",
    "run programs": "copy (select 1) to program 'true'",
    "read the server's files": "select pg_read_file('postgresql.conf')",
    "see passwords": "select * from pg_authid",
    "end others": "select pg_terminate_backend({other})",
    "reload the server": "select pg_reload_conf()",
}


@pytest.fixture
def role(outbox: Database, slot: str) -> Iterator[str]:
    name = f"relay_{slot}"
    done = run_command("init", "--slot", slot, "--role", name, env={"CDC_OUTBOX_DSN": outbox.dsn})
    assert done.returncode == 0, done.stderr
    with psycopg.connect(outbox.dsn, autocommit=True) as owner:
        owner.execute(SQL("alter role {} password {}").format(Identifier(name), Literal(PASSWORD)))
        owner.execute("create table orders (id int)")
        yield name
        owner.execute(SQL("drop owned by {}").format(Identifier(name)))
        owner.execute(SQL("drop role {}").format(Identifier(name)))


@ALL_VERSIONS
def test_the_role_may_do_nothing_else(outbox: Database, role: str, slot: str) -> None:
    dsn = outbox.server.dsn(outbox.name, user=role, password=PASSWORD)
    with psycopg.connect(outbox.dsn) as other, psycopg.connect(dsn, autocommit=True) as relay:
        allowed = []
        for deed, statement in FORBIDDEN.items():
            try:
                relay.execute(
                    SQL(statement).format(
                        database=Identifier(outbox.name), other=Literal(other.info.backend_pid)
                    )
                )
            except errors.InsufficientPrivilege:
                continue
            allowed.append(deed)
        assert allowed == []
        assert relay.execute("select rolsuper, rolcreaterole, rolcreatedb, rolbypassrls, rolinherit, rolconnlimit"
                             " from pg_roles where rolname = current_user").fetchone() == (
            *(False,) * 4, True, -1,
        )  # fmt: skip
        # What it has is the witness, and what REPLICATION can't be had without: the slots of the server.
        relay.execute("select * from cdc_outbox_witness")
        assert relay.execute(
            "select slot_name from pg_replication_slots where slot_name = %s", (slot,)
        ).fetchone()
