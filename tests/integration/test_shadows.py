"""Whoever may create in `public` gets nothing done with our rights; what the application's triggers name is found."""

from __future__ import annotations

import psycopg
import pytest

from tests.integration.cleaned import PROVE
from tests.integration.conftest import Database
from tests.integration.passage import Passage
from tests.polling.table import TABLES
from tests.servers.kafka import Kafka
from tests.servers.relay import run_command
from tests.servers.wait import PATIENCE, eventually

SHADOWS = {
    "unnest(smallint[])": "setof smallint",
    "unnest(text[])": "setof text",
    "unnest(int2vector)": "setof smallint",
    "to_jsonb(pg_catalog.pg_publication)": "jsonb",
    "to_jsonb(pg_catalog.pg_replication_slots)": "jsonb",
    "to_jsonb(public.cdc_outbox_witness)": "jsonb",
    "lower(name)": "text",
    "quote_ident(name)": "text",
    "replace(name, text, text)": "text",
    "to_regclass(name)": "regclass",
}
"""Functions that fit a call better than pg_catalog's own, which takes any type or needs a cast."""

MARKED = "select count(*)::int from outbox where status = 'sent'"

HEAR = """
create function hear() returns trigger language plpgsql as $$
begin insert into heard values (lower(tg_op::text)); return coalesce(new, old); end $$
"""

SHADOW = """
create function public.{call} returns {answer} language plpgsql as $$ begin raise exception 'shadowed'; end $$
"""


def plant(database: Database, *, but: str | None = None) -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for call, answer in SHADOWS.items():
            if call != but:
                connection.execute(SHADOW.format(call=call, answer=answer).encode())
        with pytest.raises(psycopg.errors.RaiseException, match="shadowed"):
            connection.execute("select unnest('{1}'::smallint[])")


def test_functions_that_shadow_ours(database: Database, kafka: Kafka, slot: str, topics: str) -> None:
    passage, table = Passage(database, kafka, slot, topics), TABLES["a"]
    topic = passage.topic("orders", 1)
    environment = {**passage.environment, "CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap}

    def run(command: str, *flags: str) -> str:
        done = run_command(command, "--slot", slot, *flags, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def insert(event: str) -> None:
        with psycopg.connect(database.dsn) as connection:
            connection.execute(
                table.insert,
                {"event_id": event, "key": "k", "topic": topic, "bus": "kafka", "payload": "{}"},
            )

    table.make(database.dsn)
    plant(database, but="to_jsonb(public.cdc_outbox_witness)")
    insert("first")
    rights = ("--role", f"{slot}_role", "--mark", "update", "--cleanup-older-than", "1d")
    passage.sql("create function plain(text) returns text language sql stable as 'select $1'")
    run("init", "--only", "publication")
    run("backfill", "--yes", "--where", "aggregate_id = plain('k')")
    run("init", *rights)
    passage.transaction(
        SHADOW.format(call="to_jsonb(public.cdc_outbox_witness)", answer="jsonb"),
        "create table heard (what text)",
        HEAR,
        "create trigger hear before update or delete on outbox for each row execute function hear()",
    )
    run("init", *rights)
    insert("second")
    insert("third")
    with passage.relay("--mark", "update") as relay:
        eventually(lambda: passage.sql(MARKED) == [(2,)], PATIENCE, lambda: f"marked\n{relay.text()}")
    assert [record.header("id") for record in passage.read(topic)] == ["1", "2", "3"]
    assert passage.sql("select count(*) > 0 from heard where what = 'update'") == [(True,)]
    run("find", "2")
    run("doctor", "--mark", "update")
    passage.sql(PROVE)
    run("cleanup", "--older-than", "0s")
    assert passage.sql("select count(*) > 0 from heard where what = 'delete'") == [(True,)]
    run("drop", "--yes")
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        connection.execute(f"drop owned by {slot}_role; drop role {slot}_role".encode())
