"""The inbox in transactions of each library: what comes twice is applied once, and nothing is passed over."""

from __future__ import annotations

import asyncio
import json
import threading

import psycopg
import pytest

from cdc_outbox import ddl
from cdc_outbox.inbox.psycopg import first_time
from tests.integration.applications import CONSUMER, Application, Work, ask, each_application, orders
from tests.integration.cleaned import Place, place
from tests.integration.conftest import ALL_VERSIONS, Database
from tests.servers.postgres import PASSWORD
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE, eventually

__all__ = ["place"]


@pytest.fixture
def billing(database: Database) -> Database:
    """A consumer's database: its inbox, and what events have an effect on."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(ddl.read("inbox").encode())
        connection.execute("create table orders (id int generated always as identity primary key, note text)")
    return database


def marks(database: Database) -> list[tuple[str, str]]:
    rows = ask(database, "select consumer, event_id from cdc_outbox_inbox order by processed_at")
    return [(row["consumer"], row["event_id"]) for row in rows]


@each_application
def test_applied_once_and_again_after_a_rollback(application: Application, billing: Database) -> None:
    application.do(billing.dsn, Work(marks=["a", "b"], rollback=True))
    assert (orders(billing), marks(billing)) == (0, [])
    application.do(billing.dsn, Work(marks=["a", "b", "a"]))
    application.do(billing.dsn, Work(marks=["b", "c"]))
    assert (orders(billing), marks(billing)) == (3, [(CONSUMER, "a"), (CONSUMER, "b"), (CONSUMER, "c")])


@pytest.mark.parametrize("commits", [True, False], ids=["the first commits", "the first rolls back"])
def test_two_instances_that_get_the_same_event_at_once(commits: bool, billing: Database) -> None:
    """The second one waits for the first one's end, and applies the event if that did not."""
    answers: list[bool] = []

    def second() -> None:
        with psycopg.connect(billing.dsn, application_name="second") as connection:
            answers.append(first_time(connection, consumer=CONSUMER, event_id="a"))

    waiting = "select from pg_stat_activity where application_name = 'second' and wait_event_type = 'Lock'"
    thread = threading.Thread(target=second)
    with psycopg.connect(billing.dsn) as connection:
        assert first_time(connection, consumer=CONSUMER, event_id="a")
        assert first_time(connection, consumer="shipping", event_id="a"), "another consumer's mark is its own"
        thread.start()
        eventually(lambda: ask(billing, waiting), PATIENCE, "the second one waits")
        assert answers == []
        if not commits:
            connection.rollback()
    thread.join(PATIENCE)
    assert answers == [not commits]
    assert (CONSUMER, "a") in marks(billing)


def test_in_a_pipeline(billing: Database) -> None:
    with psycopg.connect(billing.dsn) as connection, connection.pipeline(), connection.transaction():
        answers = [first_time(connection, consumer=CONSUMER, event_id=each) for each in "aba"]
    assert answers == [True, True, False]

    async def mark() -> list[bool]:
        async with (
            await psycopg.AsyncConnection.connect(billing.dsn) as connection,
            connection.pipeline(),
            connection.transaction(),
        ):
            return [await first_time(connection, consumer=CONSUMER, event_id=each) for each in "aca"]

    assert asyncio.run(mark()) == [False, True, False]


def test_the_insert_is_the_only_right_that_is_needed(billing: Database) -> None:
    role = f"consumer_{billing.name}"
    with psycopg.connect(billing.dsn, autocommit=True) as connection:
        connection.execute(f"create role {role}".encode())
        try:
            connection.execute(f"grant insert on cdc_outbox_inbox to {role}".encode())
            for expected in (True, False):
                with connection.transaction():
                    connection.execute(f"set local role {role}".encode())
                    assert first_time(connection, consumer=CONSUMER, event_id="a") is expected
        finally:
            connection.execute(f"drop owned by {role}".encode())
            connection.execute(f"drop role {role}".encode())


@ALL_VERSIONS
def test_the_table_is_made_by_its_command(database: Database) -> None:
    environment = {"CDC_OUTBOX_DSN": database.dsn}
    for expected in ("created", "existed"):
        done = run_command("inbox", "create", env=environment)
        assert (done.returncode, done.stdout.split()) == (0, ["inbox", expected, "public.cdc_outbox_inbox"])
    shown = run_command("inbox", "create", "--print-sql").stdout
    assert shown == ddl.read("inbox")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(shown.encode())
        with connection.transaction():
            assert first_time(connection, consumer=CONSUMER, event_id="a")
        connection.execute("set enable_seqscan = off")
        plan = connection.execute(
            "explain delete from cdc_outbox_inbox where processed_at < now() - interval '30 days'"
        ).fetchall()
    assert any("cdc_outbox_inbox_processed_at" in line for (line,) in plan)


def test_a_role_that_may_not_make_the_table(database: Database) -> None:
    role = f"reader_{database.name}"
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'x'".encode())
        try:
            dsn = database.server.dsn(database.name, user=role, password="x")
            done = run_command("inbox", "create", env={"CDC_OUTBOX_DSN": dsn})
        finally:
            connection.execute(f"drop role {role}".encode())
    error, remedy = done.stderr.splitlines()
    assert done.returncode == 78
    assert error == (
        f"error: the role {role} may not make public.cdc_outbox_inbox, which needs create on schema public"
    )
    assert "cdc-outbox inbox create --print-sql | psql" in remedy


def test_old_rows_of_the_inbox_go(place: Place) -> None:
    def inbox(*arguments: str, code: int = 0, env: dict[str, str] | None = None) -> str:
        done = run_command("inbox", *arguments, env={**place.environment, **(env or {})})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert "there is no table public.cdc_outbox_inbox" in inbox("cleanup", "--older-than", "30d", code=78)
    inbox("create")
    place.sql(
        "insert into cdc_outbox_inbox select 'billing', n::text, now() - '31 days'::interval"
        " from generate_series(1, 2500) n",
        "insert into cdc_outbox_inbox select 'billing', 'new', now() - '29 days'::interval",
    )
    assert "2500 rows would go" in inbox("cleanup", "--older-than", "30d", "--dry-run")
    assert "0 rows would go" in inbox("cleanup", "--older-than", "999999999999d", "--dry-run")
    assert json.loads(inbox("cleanup", "--older-than", "30d", "--json"))["removed"] == 2500
    left = place.database.server.execute("select event_id from cdc_outbox_inbox", dbname=place.database.name)
    assert left == [("new",)]

    role = f"billing_{place.slot}"
    place.sql(f"create role {role} login password '{PASSWORD}'")
    try:
        # The consumer's database is the one that --dsn names; the outbox's owner has no part in it.
        outbox = {"CDC_OUTBOX_ADMIN_DSN": "postgresql://nobody@127.0.0.1:1/none"}
        mine = place.database.server.dsn(place.database.name, user=role, password=PASSWORD)
        cleanup = ("cleanup", "--older-than", "1d", "--dsn", mine)
        said = inbox(*cleanup, code=78, env=outbox)
        assert f"error: the role {role} may not remove rows of public.cdc_outbox_inbox" in said
        place.sql(said.partition("next: as its owner: ")[2].partition(";")[0])
        assert "1 rows removed" in inbox(*cleanup, env=outbox)
    finally:
        place.sql(f"drop owned by {role}", f"drop role {role}")
