"""Names with whatever PostgreSQL allows in them: a per cent sign, braces, quotes, a backslash, 63 bytes of anything."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable

import psycopg
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from psycopg.sql import SQL, Composed, Identifier, Literal

from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import connect_control, execute
from cdc_outbox.settings.model import PostgresSettings
from tests.integration.conftest import Database
from tests.integration.passage import Passage, payloads
from tests.integration.peeked import lines_of
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres, PostgresServer
from tests.servers.relay import RelayProcess, run_command

LONGEST = 63
"""Bytes of the longest name."""

LETTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
ODD = st.text(st.one_of(st.sampled_from("%s(){}\"'\\:$"), LETTERS), min_size=1, max_size=LONGEST)
NAMES = ODD.map(lambda name: name.encode()[:LONGEST].decode(errors="ignore")).filter(bool)

TABLE = TableName("sh%op", 'out%s"{0}\\box ü')
ID, TYPE, KEY = "%(id)s", "{type}%", 'key "%%'
TOPIC, PAYLOAD, STATUS = "t%d", "pay\\load'%s", "st%atus"
CREATED = "%" * LONGEST
SENT, WAITS = "sen%t", "wai%s{}t"

FLAGS = [
    *("--table", str(TABLE)),
    *("--column", f"id={ID}", "--column", f"aggregate_id={KEY}", "--column", f"type={TYPE}"),
    *("--column", f"topic={TOPIC}", "--column", f"payload={PAYLOAD}", "--column", f"created_at={CREATED}"),
    *("--status", f"column={STATUS}", "--status", f"sent={SENT}", "--status", f"waiting={WAITS}"),
    *("--only", f"{TYPE}=100%", "--only", f"{TYPE}=%s"),
]


@settings(max_examples=50, deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=20))
@example(["%", "%%", "%s", "%(a)s", "{}", "{0}", '"', "'", "\\", "$1", ":a", "ü" * 31])
def test_a_name_and_a_value_beside_parameters_are_what_they_are(postgres: Postgres, names: list[str]) -> None:
    async def run() -> None:
        where = PostgresSettings(
            dsn=postgres.dsn(), admin_dsn="", slot="s", publication="p", guard_interval=1.0
        )
        async with await connect_control(where, application_name="test_odd_names") as conn:
            for name in names:
                inner = SQL("select {} as {}").format(Literal(name), Identifier(name))
                query = SQL("select to_jsonb(r), r.{} like '%%', %s, '%%' from ({}) as r").format(
                    Identifier(name), inner
                )
                assert await execute(conn, query, ("%s",)) == [({name: name}, True, "%s", "%")]
                assert await execute(conn, inner) == [(name,)]

    asyncio.run(run())


@pytest.fixture
def odd(own_postgres: PostgresServer) -> Database:
    """A polling relay's table, all of whose names are odd.

    On a server of its own: what is open in any database, however shortly, keeps the last row from being proven.
    """
    database = Database(own_postgres, "postgres")
    names = [Identifier(each) for each in (ID, TYPE, KEY, TOPIC, PAYLOAD, STATUS, CREATED)]
    with psycopg.connect(database.dsn) as connection:
        connection.execute(SQL("create schema {}").format(Identifier(TABLE.schema)))
        connection.execute(
            SQL(
                "create table {} ({} bigserial primary key, {} text not null, {} text, {} text, {} jsonb,"
                " {} text default {}, {} timestamptz default now())"
            ).format(table(), *names[:6], Literal(WAITS), names[6])
        )
    return database


def table() -> Identifier:
    return Identifier(TABLE.schema, TABLE.name)


def insert(database: Database, topic: str, kind: str = "100%", status: str = WAITS) -> str:
    named = [Identifier(each) for each in (TYPE, KEY, TOPIC, PAYLOAD, STATUS, ID)]
    query = SQL(
        "insert into {} ({}, {}, {}, {}, {}) values ({}, 'k', {}, '{{}}', {}) returning {}::text"
    ).format(table(), *named[:5], Literal(kind), Literal(topic), Literal(status), named[5])
    with psycopg.connect(database.dsn) as connection:
        ((id_,),) = connection.execute(query).fetchall()
    return str(id_)


def sent(database: Database, event_id: str) -> Composed:
    return SQL("update {} set {} = {} where {} = {}").format(
        table(), Identifier(STATUS), Literal(SENT), Identifier(ID), Literal(int(event_id))
    )


def test_a_table_of_odd_names_goes_all_the_way(
    odd: Database, slot: str, kafka: Kafka, topics: str, make_relay: Callable[..., RelayProcess]
) -> None:
    topic = f"{topics}orders"
    kafka.create_topic(topic, partitions=1)
    env = {"CDC_OUTBOX_DSN": odd.dsn, "CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap}

    def run(*words: str, code: int = 0) -> str:
        done = run_command(*words, "--slot", slot, *FLAGS, env=env)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert "warning" not in done.stderr, (words, done.stderr)
        return done.stdout

    before = insert(odd, topic, status=SENT)
    waits = insert(odd, topic)
    run("init", "--only", "publication")

    trial = make_relay(
        odd.dsn,
        kafka.bootstrap,
        slot=slot,
        command="peek",
        http=False,
        flags=["--follow", "--compare", "1h", "--json", "--limit", "9", *FLAGS],
    )
    trial.wait_for(lambda record: record["event"] == "following", 60, message="peek follows")
    marked = insert(odd, topic)
    insert(odd, topic, kind="left out")
    with psycopg.connect(odd.dsn) as connection:
        connection.execute(sent(odd, marked))
    lines_of(trial, 1)
    trial.signal(signal.SIGINT)
    assert trial.wait() == 0, trial.text()
    account = json.loads(trial.output[-1])
    assert (account["same"], account["left_out"]) == (1, {"only": 1}), account

    assert "1 row" in run_command("init", "--slot", slot, *FLAGS, env=env).stderr
    run("backfill", "--yes")
    assert json.loads(run("peek", "--json") or "null") is None
    last = insert(odd, topic, kind="%s")
    run("start", "--no-http", "--until-caught-up", "--log-level", "warning")
    for event_id, said in ((before, "marks it as sent"), (waits, ""), (last, "proven by the witness")):
        (event,) = json.loads(run("find", event_id, "--json"))["events"]
        assert said in event["evidence"], event
        assert event["row"][ID] == event_id
    (event,) = json.loads(run("find", last, "--in-topic", "--json"))["events"]
    assert event["searched"] == "found"
    run("audit", "--since", "2h", "--settled")
    run("replay", "--id", last, "--aggregate", "k", "--since", "2h", "--yes")
    run("doctor")
    run("cleanup", "--older-than", "0s")


def test_names_beyond_ascii_where_the_database_has_no_encoding(
    postgres: Postgres, kafka: Kafka, slot: str, topics: str
) -> None:
    """Whoever reads the table takes bytes as they are, as the stream does, and its names are still UTF-8."""
    name = f"ascii_{slot}"
    postgres.execute(
        SQL("create database {} encoding 'SQL_ASCII' locale 'C' template template0").format(Identifier(name))
    )
    passage = Passage(Database(postgres, name), kafka, slot, topics)
    passage.environment |= {
        "CDC_OUTBOX_TABLE": '"Ausgänge"',
        "CDC_OUTBOX_OUTBOX_COLUMNS": "payload=größe",
        "CDC_OUTBOX_BOOTSTRAP_SERVERS": kafka.bootstrap,
    }
    topic = passage.topic("t")
    passage.sql(
        'create table "Ausgänge" (id bigserial primary key, topic text, aggregate_id text, "größe" text,'
        " status text default 'pending', created_at timestamptz default now())"
    )
    passage.sql(
        'insert into "Ausgänge" (topic, aggregate_id, "größe") values (%s, %s, %s)', topic, "k", "weiß"
    )
    passage.backfill("--where", "\"größe\" = 'weiß'")
    passage.run()
    for words in (("replay", "--id", "1", "--yes"), ("audit", "--since", "1h", "--settled")):
        done = run_command(*words, "--slot", slot, env=passage.environment)
        assert done.returncode == 0, done.stderr
    empty = run_command("audit", "--since", "2d", "--until", "1d", "--slot", slot, env=passage.environment)
    assert "; the newest was written" in empty.stdout, (empty.stdout, empty.stderr)
    assert payloads(passage.read(topic)) == ["weiß", "weiß"]
    postgres.drop_database(name)
