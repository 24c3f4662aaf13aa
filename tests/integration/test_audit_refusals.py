"""What keeps an audit from being made is named, with its next step: a wrong question, a right, who wants the table."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from psycopg.sql import SQL, Identifier

from cdc_outbox.postgres.table_wanted import TableWanted
from cdc_outbox.repair.audit import Wish, audit
from cdc_outbox.settings import load
from tests.integration.audited import Audited, audited
from tests.integration.conftest import Database
from tests.servers.kafka import KafkaBroker
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PASSWORD
from tests.servers.relay import run_command
from tests.servers.security import client_settings
from tests.servers.wait import PATIENCE

__all__ = ["audited"]


def test_what_is_wrong_with_the_question_is_named(audited: Audited) -> None:
    audited.pipeline.sql(SQL("create view seen as select * from outbox"))
    for flags, code, error, remedy in (
        ("--table nowhere", 78, "table public.nowhere does not exist", "--table"),
        ("--table seen", 78, "public.seen is a view", "name the table behind it"),
        ("--topic-name none.such", 78, "the cluster has no topic none.such", "--topic-name"),
        ("--spool /nowhere", 78, "records can't be kept in /nowhere: no such file", "--spool"),
        ("--since yesterday", 2, "--since 'yesterday' is neither a time nor a duration", "--since 2h"),
        ("--id-from payload", 2, "--id-from is 'payload': it is neither", "payload:/event_id"),
        ("--bootstrap-servers 127.0.0.1:1", 1, "no Kafka broker can be used", "bootstrap_servers"),
        ("--column id=nothing", 78, "has no column 'nothing'", "name one of the columns"),
    ):
        done = audited.run(*flags.split())
        assert done.returncode == code, done.stderr
        wrong, next_ = done.stderr.splitlines()[-2:]
        assert wrong.startswith("error: ")
        assert error in wrong
        assert next_.startswith("next: ")
        assert remedy in next_


def test_whoever_wants_the_table_to_himself_is_let_by(
    audited: Audited, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """ALTER TABLE waits for the reader, and inserts wait behind it: the audit ends at once, and says who it was."""
    pipeline = audited.pipeline
    pipeline.sql(
        SQL(
            "insert into outbox (aggregate_type, aggregate_id, event_type)"
            " select 'large', n::text, 'x' from generate_series(1, 300000) n"
        )
    )
    environment = {
        "CDC_OUTBOX_DSN": pipeline.dsn,
        "CDC_OUTBOX_SLOT": pipeline.slot,
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
    }
    settings = load("audit", {}, environment, tmp_path)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK", 0.02)
    monkeypatch.setattr("cdc_outbox.postgres.table_wanted.LOOK_AGAIN", 0.02)
    altered = threading.Event()

    def alter() -> None:
        pipeline.sql(SQL("alter table outbox add column note text"))
        altered.set()

    waiting = threading.Thread(target=alter)

    def told(what: str, _done: int, _total: int) -> None:
        if what == "rows" and not waiting.ident:
            waiting.start()

    with pytest.raises(TableWanted, match="alter table outbox add column note"):
        asyncio.run(audit(settings, Wish(), told))
    assert altered.wait(PATIENCE)
    waiting.join()


def test_what_a_table_or_a_role_lacks_is_named(audited: Audited) -> None:
    """For replay as for audit: each names only what it has itself."""
    pipeline = audited.pipeline
    role = Identifier(f"auditor_{pipeline.slot}")
    event = audited.insert()
    pipeline.sql(
        SQL("create role {} login password {}").format(role, PASSWORD),
        SQL("grant select on cdc_outbox_witness to {}").format(role),
        SQL("alter table outbox rename created_at to written"),
    )
    try:
        plain = {
            "CDC_OUTBOX_DSN": pipeline.dsn,
            "CDC_OUTBOX_ADMIN_DSN": pipeline.server.dsn(pipeline.dbname, user=f"auditor_{pipeline.slot}"),
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
        }
        commands = {
            ("audit",): "audit the whole table, without --since and --until",
            ("replay", "--yes"): "choose rows by --id or --aggregate",
        }
        for command, otherwise in commands.items():
            done = run_command(*command, "--slot", pipeline.slot, "--since", "2h", env=plain)
            assert done.returncode == 2, done.stderr
            assert done.stderr.endswith(f"\nnext: name it with --column created_at=NAME; or {otherwise}\n")
            choice = () if command == ("audit",) else ("--id", event)
            done = run_command(*command, "--slot", pipeline.slot, *choice, env=plain)
            assert done.returncode == 78, done.stderr
            granted = f"grant select on public.outbox to auditor_{pipeline.slot};"
            assert f"; or as its owner: {granted}" in done.stderr
    finally:
        pipeline.sql(SQL("drop owned by {}").format(role), SQL("drop role {}").format(role))


def test_the_rights_on_a_table_in_its_own_schema_are_all_named(audited: Audited) -> None:
    pipeline = audited.pipeline
    name = f"auditor_{pipeline.slot}"
    role, table = Identifier(name), '"Sales"."OutboxEvents"'
    pipeline.sql(
        SQL("create role {} login password {}").format(role, PASSWORD),
        SQL("grant select on cdc_outbox_witness to {}").format(role),
        SQL('create schema "Sales"'),
        SQL('create table "Sales"."OutboxEvents" (like outbox including all)'),
    )
    plain = {
        "CDC_OUTBOX_DSN": pipeline.dsn,
        "CDC_OUTBOX_ADMIN_DSN": pipeline.server.dsn(pipeline.dbname, user=name),
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": pipeline.kafka.bootstrap,
    }
    look = ("find", "b7c9a6a0-0000-4000-8000-000000000000", "--slot", pipeline.slot, "--table", table)
    try:
        done = run_command(*look, env=plain)
        assert done.returncode == 78, done.stderr
        granted = f'grant usage on schema "Sales" to {name}; grant select on {table} to {name};'
        assert f"; or as its owner: {granted}" in done.stderr
        pipeline.sql(*(SQL(each) for each in granted.split("; ")))
        found = run_command(*look, env=plain)
        assert found.returncode == 1, found.stderr
    finally:
        pipeline.sql(SQL("drop owned by {}").format(role), SQL("drop role {}").format(role))


def test_the_right_to_read_a_topic_is_named(
    outbox: Database, secure_kafka: KafkaBroker, make_pipeline: Callable[..., Pipeline]
) -> None:
    audited = Audited(make_pipeline(outbox, secure_kafka).prepare().init())
    audited.put(audited.insert("a"), key="a")
    flags = ["--settled", "--bootstrap-servers", secure_kafka.address("SASL_SSL")]
    for name, value in client_settings("SASL_SSL", "PLAIN").items():
        flags += ["--kafka", f"{name}={value}"]
    secure_kafka.allow("relay", "describe", audited.topic)
    done = audited.run(*flags)
    assert done.returncode == 78, done.stderr
    assert f"error: the cluster doesn't let us read {audited.topic}\n" in done.stderr
    assert "--operation Read --operation Describe" in done.stderr
    secure_kafka.allow("relay", "read", audited.topic)
    assert audited.run(*flags).stdout.endswith("\nclean\n")
