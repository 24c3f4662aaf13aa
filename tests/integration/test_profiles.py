"""Tables as libraries make them, end to end: from their own DDL to Kafka, and what `init` and `doctor` say of them."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest
from psycopg import sql

from tests.integration.passage import Passage, last_words
from tests.servers.relay import run_command
from tests.unit.libraries import (
    AXON,
    CAP,
    DJANGO,
    EVENTUATE,
    MASSTRANSIT,
    MODULITH,
    NSERVICEBUS,
    WOLVERINE,
    Library,
)


def make(passage: Passage, *libraries: Library) -> list[str]:
    """Make the tables, and the flags that name them."""
    flags: list[str] = []
    for library in libraries:
        passage.sql(f'create schema if not exists "{library.schema}"')
        passage.sql(library.ddl)
        flags += ["--table", f'"{library.schema}"."{library.table}"']
    return flags


def insert(passage: Passage, library: Library, **cells: object) -> None:
    row = {**library.row, **cells}
    columns = sql.SQL(", ").join(map(sql.Identifier, row))
    places = sql.SQL(", ").join(sql.Placeholder() * len(row))
    table = sql.Identifier(library.schema, library.table)
    statement = sql.SQL("insert into {} ({}) values ({})").format(table, columns, places)
    passage.sql(statement.as_string(), *row.values())


def value(library: Library) -> bytes:
    payload = {"cap": "Content", "eventuate-tram": "payload", "axon": "payload"}.get(library.profile)
    payload = payload or next(name for name in ("Body", "body", "serialized_event") if name in library.row)
    text = library.row[payload]
    return bytes.fromhex(text[2:]) if text.startswith("\\x") else text.encode()


def test_tables_that_say_all_by_themselves(passage: Passage) -> None:
    """Three libraries' tables with columns of their own names behind one slot, without a word of configuration."""
    libraries = (CAP, EVENTUATE, AXON)
    tables = make(passage, *libraries)
    names = {library.profile: f"{passage.topics}{library.profile}" for library in libraries}
    topics = {**names, "axon": f"outbox.event.{names['axon']}"}
    for topic in topics.values():
        passage.kafka.create_topic(topic)
    passage.init(*tables)
    column = {"cap": "Name", "eventuate-tram": "destination", "axon": "type"}
    for library in libraries:
        insert(passage, library, **{column[library.profile]: names[library.profile]})
    insert(passage, CAP, Id="2", Name=names["cap"], StatusName="Succeeded")
    insert(passage, EVENTUATE, id="sent", destination=names["eventuate-tram"], published="1")
    done = passage.run(*tables)
    said = next(record for record in map(json.loads, done.stderr.splitlines()) if "mapping" in record)
    for library in libraries:
        words = said["mapping"][f"{library.schema}.{library.table}"]
        assert words.startswith(f"profile {library.profile} (recognised); id from ")
        [record] = passage.read(topics[library.profile])
        assert (record.key, record.value) == (library.key, value(library))
        assert {name: (text or b"").decode() for name, text in record.headers} == library.headers


@pytest.mark.parametrize("library", [MASSTRANSIT, WOLVERINE, MODULITH, DJANGO], ids=lambda each: each.profile)
def test_tables_whose_key_has_to_be_named(library: Library, passage: Passage) -> None:
    tables = make(passage, library)
    topic = passage.topic("named")
    passage.init(*tables)
    insert(passage, library)
    _, remedy = last_words(passage.run(*tables, "--topic", topic, code=78))
    assert "--key none" in remedy
    passage.run(*tables, "--topic", topic, *library.flags)
    [record] = passage.read(topic)
    assert (record.key, record.value) == (library.key, value(library))
    assert {name: (text or b"").decode() for name, text in record.headers} == library.headers
    environment = {**passage.environment, "CDC_OUTBOX_SLOT": passage.slot}
    flags = [*tables, "--topic", topic, *library.flags, "--bootstrap-servers", passage.kafka.bootstrap]
    peeked = run_command("peek", *flags, "--log-format", "text", env=environment)
    told = f"profile {library.profile} (recognised)"
    assert told in [line.strip() for line in peeked.stderr.splitlines()]
    examined = json.loads(run_command("doctor", *flags, "--json", env=environment).stdout)
    assert (
        told
        in examined["mapping"][
            f"{library.schema}.{library.table}".replace("OutboxMessage", '"OutboxMessage"')
        ]
    )


def test_rows_from_before_the_slot_are_told_by_the_librarys_own_marks(passage: Passage) -> None:
    tables = make(passage, CAP, MODULITH)
    topic = passage.topic("before")
    insert(passage, CAP)
    insert(passage, CAP, Id="2", StatusName="Succeeded")
    insert(passage, MODULITH)
    insert(passage, MODULITH, id=str(uuid4()), completion_date="2024-01-17 13:14:11+00")
    insert(passage, MODULITH, id=str(uuid4()), listener_id="com.example.Mailer.on(java.lang.Object)")
    environment = {**passage.environment, "CDC_OUTBOX_SLOT": passage.slot}
    done = run_command("init", *tables, env=environment)
    assert done.returncode == 78
    assert "cap.published holds 1 row and public.event_publication holds 1 row from before" in done.stderr
    flags = [*tables, "--topic", topic, "--key", "none", "--bootstrap-servers", passage.kafka.bootstrap]
    done = run_command("backfill", "--yes", *flags, env=environment)
    assert done.returncode == 0, done.stderr
    assert [(record.id, record.value) for record in passage.read(topic)] == [
        (library.headers["id"], value(library)) for library in (CAP, MODULITH)
    ]
    insert(passage, CAP, Id="3")
    passage.run(*tables, "--topic", topic, "--key", "none")
    assert [record.id for record in passage.read(topic)][2:] == ["3"]


def test_marks_are_written_as_the_library_would_have(passage: Passage) -> None:
    libraries = (CAP, EVENTUATE, MODULITH, DJANGO)
    flags = [
        *make(passage, *libraries),
        "--topic",
        passage.topic("marked"),
        "--key",
        "none",
        "--mark",
        "update",
    ]
    passage.init(*flags)
    for library in libraries:
        insert(passage, library)
    passage.run(*flags)
    assert passage.sql('select "StatusName", "ExpiresAt" > now() + \'23 hours\' from cap.published') == [
        ("Succeeded", True)
    ]
    assert passage.sql("select published from eventuate.message") == [(1,)]
    assert passage.sql("select status, completion_date is null from event_publication") == [
        ("COMPLETED", False)
    ]
    assert passage.sql("select status from published") == [(2,)]


def test_nservicebus_is_refused_before_anything_is_sent(passage: Passage) -> None:
    passage.sql(NSERVICEBUS[0])
    passage.init("--table", '"SalesOutboxData"')
    for flags in ((), ("--profile", "nservicebus"), ("--key", "none", "--column", "payload=Operations")):
        error, remedy = last_words(passage.run("--table", '"SalesOutboxData"', *flags, code=78))
        assert "an outbox of NServiceBus (profile nservicebus), can't be sent as events" in error
        assert (
            "--table public.outbox --create-table" in remedy
            or "--create-table --table public.outbox" in remedy
        )
