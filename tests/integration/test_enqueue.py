"""`enqueue` in real transactions of each library: there with a commit, and with nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction
from opentelemetry.sdk.trace import TracerProvider
from psycopg.sql import SQL
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import scoped_session, sessionmaker

from cdc_outbox.enqueue.event import Event
from cdc_outbox.errors import CallRefused, OutsideTransaction
from tests.integration.applications import (
    APPLICATIONS,
    Application,
    Work,
    ask,
    async_engine,
    connect_django,
    each_application,
    engine,
    orders,
)
from tests.integration.conftest import Database
from tests.integration.passage import Passage
from tests.servers.kafka import Kafka


@pytest.fixture
def shop(outbox: Database) -> Database:
    """The default table, and the application's own."""
    with psycopg.connect(outbox.dsn, autocommit=True) as connection:
        connection.execute("create table orders (id int generated always as identity primary key, note text)")
    return outbox


def event(key: object = 42, **parts: Any) -> Event:
    whole = {
        "aggregate_type": "order",
        "aggregate_id": key,
        "event_type": "Placed",
        "payload": {"total": 12.5},
    }
    made: Event = {**whole, **parts}  # type: ignore[typeddict-item]
    return made


@each_application
def test_commit_savepoint_and_rollback(application: Application, shop: Database) -> None:
    whole = event(
        event_version=2, headers={"tenant": "Zürich", "n": 1.5}, payload='{"b": [1,  2.50], "a": "x"}'
    )
    ids = application.do(
        shop.dsn,
        Work(
            undone=[event("undone")],
            events=[whole, event(payload=None)],
            many=[event(7), event(8, event_version=1)],
        ),
    )
    application.do(shop.dsn, Work(events=[event("rolled back")], many=[event("likewise")], rollback=True))
    rows = ask(
        shop, "select *, id::text as id, payload::text as payload from outbox order by created_at, ctid"
    )
    assert [row["id"] for row in rows] == ids
    assert [row["aggregate_id"] for row in rows] == ["42", "42", "7", "8"]
    assert orders(shop) == 1
    first, tombstone, *_ = rows
    assert (first["payload"], first["headers"]) == (
        '{"a": "x", "b": [1, 2.50]}',
        {"tenant": "Zürich", "n": 1.5},
    )
    assert (first["aggregate_type"], first["event_type"], first["event_version"]) == ("order", "Placed", 2)
    assert (tombstone["payload"], tombstone["headers"], tombstone["event_version"]) == (None, None, None)


@each_application
def test_outside_of_a_transaction(application: Application, shop: Database) -> None:
    for work in (Work(events=[event()]), Work(many=[event()]), Work(marks=["1"])):
        with pytest.raises(OutsideTransaction) as caught:
            application.do(shop.dsn, work, autocommit=True)
        assert caught.value.__notes__ == [f"next: {caught.value.next}"]
    assert ask(shop, "select from outbox") == []
    allowed = event(allow_autocommit=True)
    assert len(application.do(shop.dsn, Work(events=[allowed]), autocommit=True)) == 1


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("name", [name for name in APPLICATIONS if not name.startswith("sqlalchemy")])
def test_many_are_one_transaction_though_each_might_be_its_own(
    name: str, autocommit: bool, shop: Database
) -> None:
    """The server refuses the last, which another statement writes than the first."""
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute("alter table outbox add check (aggregate_id <> 'refused')")
    many = [event(1), event(2), event(3, event_version=1), event("refused")]
    with pytest.raises(Exception, match="violates check constraint"):
        APPLICATIONS[name].do(shop.dsn, Work(many=many, alone=True), autocommit=autocommit)
    assert ask(shop, "select from outbox") == []
    ids = APPLICATIONS[name].do(shop.dsn, Work(many=many[:3], alone=True), autocommit=autocommit)
    assert [row["id"] for row in ask(shop, "select id::text from outbox order by ctid")] == ids


def test_an_answer_that_is_awaited_when_the_transaction_is_over(shop: Database) -> None:
    """The row, or the mark, would be a transaction of its own."""
    import asyncpg

    from cdc_outbox.enqueue.psycopg import enqueue, enqueue_many
    from cdc_outbox.inbox import asyncpg as inbox_of_asyncpg
    from cdc_outbox.inbox import psycopg as inbox

    async def late() -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as connection:
            async with connection.transaction():
                waiting = [
                    enqueue(connection, **event()),
                    enqueue_many(connection, [event()]),
                    inbox.first_time(connection, consumer="billing", event_id="a"),
                ]
            for each in waiting:
                with pytest.raises(OutsideTransaction):
                    await each
        other = await asyncpg.connect(shop.dsn)
        async with other.transaction():
            marking = inbox_of_asyncpg.first_time(other, consumer="billing", event_id="a")
        with pytest.raises(OutsideTransaction):
            await marking
        await other.close()

    asyncio.run(late())
    assert ask(shop, "select from outbox") == []


@pytest.mark.parametrize("encoding", ["LATIN1", "UTF8", "SQL_ASCII"])
def test_names_in_the_encoding_of_a_connection_of_psycopg(encoding: str, shop: Database) -> None:
    from cdc_outbox.enqueue.psycopg import Outbox

    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute('create table "Ausgänge" (like outbox including defaults, "größe" text)')
        connection.execute(f"set client_encoding = '{encoding}'".encode())
        outbox = Outbox('"Ausgänge"', extra={"größe": "weiß"})
        with connection.transaction():
            outbox.enqueue(connection, **event("Zürich"))
            outbox.enqueue_many(connection, [event("Zürich")])

    async def asynchronous() -> None:
        async with await psycopg.AsyncConnection.connect(shop.dsn) as other:
            await other.execute(f"set client_encoding = '{encoding}'".encode())
            await outbox.enqueue(other, **event("Zürich"))
            await outbox.enqueue_many(other, [event("Zürich")])

    asyncio.run(asynchronous())
    rows = ask(shop, 'select aggregate_id, "größe" from "Ausgänge"')
    assert rows == [{"aggregate_id": "Zürich", "größe": "weiß"}] * 4


@each_application
def test_what_is_refused_leaves_the_transaction_whole(application: Application, shop: Database) -> None:
    """The application may go on: nothing was sent that the server could have failed at, nor a part of many."""
    refused = [
        event(payload=["x" * 2_000_000]),
        event(payload={"a": "b\x00"}),
        event(payload="not JSON"),
        event("a\x00b"),
        event(None),
    ]
    ids = application.do(shop.dsn, Work(refused=refused, events=[event()]))
    assert [row["id"] for row in ask(shop, "select id::text from outbox")] == ids
    assert orders(shop) == 1


@each_application
def test_a_table_of_its_own(application: Application, shop: Database) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute(
            "create schema \"50%: x\"; create type kind as enum ('made', 'sold');"
            'create table "50%: x"."Events" (id bigserial primary key, "order" bigint, kind kind, "50%: body" bytea,'
            " bus text not null, tenant int, status text default 'pending')"
        )
    options: dict[str, Any] = {
        "table": '"50%: x"."Events"',
        "columns": {"id": "id", "aggregate_id": "order", "type": "kind", "payload": "50%: body"},
        "types": {"id": "bigint", "aggregate_id": "bigint", "type": "kind", "payload": "bytea"},
        "extra": {"bus": "kafka"},
    }
    one: Event = {"aggregate_id": 7, "event_type": "made", "payload": b"\x00\xff"}
    other: Event = {"aggregate_id": 7, "event_type": "sold", "payload": {"a": 1}, "extra": {"tenant": 3}}
    ids = application.do(shop.dsn, Work(events=[one], many=[one, other, {**one, "id": 17}]), **options)
    assert ids == ["1", "2", "3", "17"]
    rows = ask(shop, 'select * from "50%: x"."Events" order by id')
    assert [(row["order"], row["kind"], row["bus"], row["tenant"]) for row in rows] == [
        (7, "made", "kafka", None),
        (7, "made", "kafka", None),
        (7, "sold", "kafka", 3),
        (7, "made", "kafka", None),
    ]
    assert [bytes(row["50%: body"]) for row in rows] == [b"\x00\xff", b"\x00\xff", b'{"a":1}', b"\x00\xff"]


@each_application
def test_a_type_that_nobody_named_is_told(application: Application, shop: Database) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        connection.execute(
            "create type kind as enum ('made'); alter table outbox alter event_type type kind using 'made'"
        )
    for work in (Work(events=[event(event_type="made")]), Work(many=[event(event_type="made")])):
        with pytest.raises(Exception, match="of type kind but expression is of type text") as told:
            application.do(shop.dsn, work)
        assert told.value.__notes__ == ["next: name the type of that column: Outbox(types={'type': 'kind'})"]
    assert application.do(shop.dsn, work, types={"type": "kind"})


def test_scoped_sessions_of_sqlalchemy(shop: Database) -> None:
    from cdc_outbox.enqueue.sqlalchemy import enqueue

    scoped = scoped_session(sessionmaker(engine(shop.dsn)))
    with scoped.begin():
        ids = [enqueue(scoped, **event())]

    async def asynchronous() -> None:
        sessions = async_scoped_session(async_sessionmaker(async_engine(shop.dsn)), asyncio.current_task)
        async with sessions.begin():
            ids.append(await enqueue(sessions, **event()))

    asyncio.run(asynchronous())
    assert [row["id"] for row in ask(shop, "select id::text from outbox order by created_at")] == ids


def test_connections_of_django(shop: Database) -> None:
    from cdc_outbox.enqueue.django import enqueue

    connect_django(shop.dsn)
    try:
        with pytest.raises(CallRefused, match="the connection 'lite' leads to sqlite"):
            enqueue(using="lite", **event())
        with pytest.raises(OutsideTransaction) as caught:
            enqueue(using="default", **event())
        assert caught.value.next.endswith("of using='default'")
        transaction.set_autocommit(False)
        enqueue(**event("rolled back"))
        transaction.rollback()
        id_ = enqueue(using="default", **event())
        transaction.commit()
    finally:
        connection.close()
    assert ask(shop, "select id::text from outbox") == [{"id": id_}]


def test_what_is_no_connection() -> None:
    from cdc_outbox.enqueue import asyncpg, psycopg, sqlalchemy

    lite = create_engine("sqlite://")
    with lite.begin() as other, pytest.raises(CallRefused, match="the connection leads to sqlite"):
        sqlalchemy.enqueue(other, **event())
    with pytest.raises(TypeError, match="not Engine"):
        sqlalchemy.enqueue(lite, **event())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not str"):
        psycopg.enqueue("", **event())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="not str"):
        asyncio.run(asyncpg.enqueue("", **event()))  # type: ignore[arg-type]


def test_a_pipeline_of_psycopg(shop: Database) -> None:
    from cdc_outbox.enqueue.psycopg import enqueue, enqueue_many

    with psycopg.connect(shop.dsn, autocommit=True) as connection, connection.pipeline():
        with pytest.raises(OutsideTransaction):
            enqueue(connection, **event())
        with connection.transaction():
            enqueue(connection, **event(1))
            enqueue_many(connection, [event(2), event(3)])
    assert [row["aggregate_id"] for row in ask(shop, "select * from outbox order by ctid")] == ["1", "2", "3"]


def test_behind_a_commit_that_a_pipeline_of_psycopg_has_queued(shop: Database) -> None:
    """What the server says of the transaction is older than that commit: the row would be one of its own."""
    from cdc_outbox.enqueue.psycopg import enqueue, enqueue_many

    with psycopg.connect(shop.dsn, autocommit=True) as connection, connection.pipeline() as pipeline:
        for write in (lambda: enqueue(connection, **event()), lambda: enqueue_many(connection, [event()])):
            connection.execute("begin")
            pipeline.sync()
            connection.execute("select 1")
            connection.execute("commit")
            with pytest.raises(OutsideTransaction):
                write()
        connection.execute("begin")
        enqueue(connection, **event(1))
        connection.execute("rollback")
        connection.execute("begin")
        enqueue(connection, **event(2))
        connection.execute("commit")

    async def asynchronous() -> None:
        async with (
            await psycopg.AsyncConnection.connect(shop.dsn, autocommit=True) as connection,
            connection.pipeline() as pipeline,
        ):
            await connection.execute("begin")
            await pipeline.sync()
            await connection.execute("commit")
            with pytest.raises(OutsideTransaction):
                await enqueue(connection, **event())
            async with connection.transaction():
                await enqueue(connection, **event(3))

    asyncio.run(asynchronous())
    assert [row["aggregate_id"] for row in ask(shop, "select * from outbox order by ctid")] == ["2", "3"]


def test_the_insert_is_the_only_right_that_is_needed(shop: Database) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        role = f"writer_{shop.name}"
        connection.execute(SQL("create role {}").format(SQL(role)))
        try:
            connection.execute(SQL("grant insert on outbox to {}").format(SQL(role)))
            from cdc_outbox.enqueue.psycopg import enqueue

            with connection.transaction():
                connection.execute(SQL("set local role {}").format(SQL(role)))
                enqueue(connection, **event())
        finally:
            connection.execute(SQL("drop owned by {}").format(SQL(role)))
            connection.execute(SQL("drop role {}").format(SQL(role)))
    assert len(ask(shop, "select from outbox")) == 1


def test_the_events_of_each_library_reach_kafka_in_order(
    shop: Database, kafka: Kafka, slot: str, topics: str, aggregate_type: str, outbox_topic: str
) -> None:
    passage = Passage(shop, kafka, slot, topics).init()
    kafka.create_topic(outbox_topic)
    ids = []
    with TracerProvider().get_tracer("test").start_as_current_span("order") as span:
        for place, application in enumerate(APPLICATIONS.values()):
            each = event(aggregate_type=aggregate_type, payload={"place": place}, headers={"tenant": "x"})
            ids += application.do(shop.dsn, Work(undone=[each], events=[each]))
    passage.run()
    records = passage.read(outbox_topic)
    assert [record.id for record in records] == ids
    assert [record.json() for record in records] == [{"place": place} for place in range(len(ids))]
    context = span.get_span_context()
    trace = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    for record in records:
        assert record.key == b"42"
        assert [name for name, _ in record.headers] == ["id", "type", "tenant", "traceparent"]
        assert (record.header("type"), record.header("traceparent")) == ("Placed", trace)
