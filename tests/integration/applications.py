"""The same application, written with each library that `enqueue` and the inbox know.

Its business data is the table `orders`. It does one transaction at a time: some work that is undone to a savepoint,
some that stays, and an end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final

import asyncpg
import django
import psycopg
import pytest
from django.conf import settings
from django.db import connection as django_connection
from django.db import transaction
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from cdc_outbox.enqueue.event import Event
from cdc_outbox.errors import EventUnfit
from tests.integration.conftest import Database

CONSUMER: Final = "billing"
ORDER: Final = "insert into orders (note) values ('placed')"


class RolledBack(Exception):
    """Ends a transaction or a savepoint without its work."""


@dataclass(frozen=True)
class Work:
    """One transaction: an order and its events, after an order and events that a savepoint undoes.

    `refused`: events that can't be, after which the application goes on. `many`: events that are written at once.
    `alone`: those may be a transaction of their own. `marks`: ids that the consumer applies, each by one order, if they
    are new.
    """

    undone: Sequence[Event] = ()
    refused: Sequence[Event] = ()
    events: Sequence[Event] = ()
    many: Sequence[Event] = ()
    alone: bool = False
    marks: Sequence[str] = ()
    rollback: bool = False


@dataclass(frozen=True)
class Hands:
    """What an application does with a library; coroutines and asynchronous contexts where the library is so."""

    execute: Callable[[str], Any]
    savepoint: Callable[[], Any]
    enqueue: Callable[..., Any]
    enqueue_many: Callable[..., Any]
    first_time: Callable[..., Any]


@dataclass(frozen=True)
class Library:
    """Our functions for a library: methods of an Outbox of its module, and its `first_time`."""

    outbox: Any
    first_time: Any

    def hands(self, conn: Any, execute: Callable[..., Any], savepoint: Callable[[], Any]) -> Hands:
        """On a connection."""
        functions = self.outbox.enqueue, self.outbox.enqueue_many, self.first_time
        return Hands(execute, savepoint, *(partial(function, conn) for function in functions))


@dataclass(frozen=True)
class Application:
    """`opens(dsn, library, autocommit)` opens a connection, and a transaction unless `autocommit`."""

    opens: Callable[[str, Library, bool], AbstractContextManager[Hands] | AbstractAsyncContextManager[Hands]]
    name: str

    def do(self, dsn: str, work: Work, *, autocommit: bool = False, **outbox: Any) -> list[str]:
        """Do the work in one transaction; the ids of its events. `outbox`: options of the library's Outbox."""
        enqueue, inbox = (import_module(f"cdc_outbox.{part}.{self.name}") for part in ("enqueue", "inbox"))
        opened = self.opens(dsn, Library(enqueue.Outbox(**outbox), inbox.first_time), autocommit)
        if isinstance(opened, AbstractContextManager):
            return _do(opened, work)
        return asyncio.run(_do_async(opened, work))


def _do(opened: AbstractContextManager[Hands], work: Work) -> list[str]:
    ids: list[str] = []
    try:
        with opened as hands:
            if work.undone:
                try:
                    with hands.savepoint():
                        hands.execute(ORDER)
                        for event in work.undone:
                            hands.enqueue(**event)
                        raise RolledBack
                except RolledBack:
                    pass
            if work.events or work.many:
                hands.execute(ORDER)
            for event in work.refused:
                with pytest.raises(EventUnfit):
                    hands.enqueue(**event)
                with pytest.raises(EventUnfit):
                    hands.enqueue_many([*work.events, event])
            ids += [hands.enqueue(**event) for event in work.events]
            ids += hands.enqueue_many(work.many, allow_autocommit=work.alone) if work.many else []
            for id_ in work.marks:
                if hands.first_time(consumer=CONSUMER, event_id=id_):
                    hands.execute(ORDER)
            if work.rollback:
                raise RolledBack
    except RolledBack:
        pass
    return ids


async def _do_async(opened: AbstractAsyncContextManager[Hands], work: Work) -> list[str]:
    ids: list[str] = []
    try:
        async with opened as hands:
            if work.undone:
                try:
                    async with hands.savepoint():
                        await hands.execute(ORDER)
                        for event in work.undone:
                            await hands.enqueue(**event)
                        raise RolledBack
                except RolledBack:
                    pass
            if work.events or work.many:
                await hands.execute(ORDER)
            for event in work.refused:
                with pytest.raises(EventUnfit):
                    await hands.enqueue(**event)
                with pytest.raises(EventUnfit):
                    await hands.enqueue_many([*work.events, event])
            ids += [await hands.enqueue(**event) for event in work.events]
            ids += await hands.enqueue_many(work.many, allow_autocommit=work.alone) if work.many else []
            for id_ in work.marks:
                if await hands.first_time(consumer=CONSUMER, event_id=id_):
                    await hands.execute(ORDER)
            if work.rollback:
                raise RolledBack
    except RolledBack:
        pass
    return ids


@contextmanager
def _psycopg(dsn: str, library: Library, autocommit: bool) -> Iterator[Hands]:
    with psycopg.connect(dsn, autocommit=True) as conn, nullcontext() if autocommit else conn.transaction():
        yield library.hands(conn, conn.execute, conn.transaction)


@contextmanager
def _psycopg_cursor(dsn: str, library: Library, autocommit: bool) -> Iterator[Hands]:
    """The transaction that psycopg itself begins, a cursor, and parameters of another form."""
    with psycopg.connect(
        dsn, autocommit=autocommit, cursor_factory=psycopg.RawCursor, row_factory=psycopg.rows.dict_row
    ) as conn:
        cursor = psycopg.ClientCursor(conn)
        yield library.hands(cursor, cursor.execute, conn.transaction)


@asynccontextmanager
async def _psycopg_async(dsn: str, library: Library, autocommit: bool) -> AsyncIterator[Hands]:
    async with (
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn,
        nullcontext() if autocommit else conn.transaction(),
    ):
        yield library.hands(conn, conn.execute, conn.transaction)


@asynccontextmanager
async def _asyncpg(dsn: str, library: Library, autocommit: bool) -> AsyncIterator[Hands]:
    """With a codec for jsonb as many applications set one, which must not touch what we write."""
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        await conn.set_type_codec("jsonb", encoder=repr, decoder=str, schema="pg_catalog")
        async with nullcontext() if autocommit else conn.transaction():
            yield library.hands(conn, conn.execute, conn.transaction)


def engine(dsn: str, autocommit: bool = False) -> Any:
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return create_engine(
        "postgresql+psycopg://", connect_args=conninfo_to_dict(dsn), poolclass=NullPool, **level
    )


def async_engine(dsn: str, autocommit: bool = False) -> Any:
    level = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return create_async_engine("postgresql+asyncpg://" + dsn.partition("://")[2], poolclass=NullPool, **level)


@contextmanager
def _sqlalchemy(dsn: str, library: Library, autocommit: bool) -> Iterator[Hands]:
    with engine(dsn, autocommit).begin() as conn:
        yield library.hands(conn, lambda sql: conn.execute(text(sql)), conn.begin_nested)


@contextmanager
def _session(dsn: str, library: Library, autocommit: bool) -> Iterator[Hands]:
    with Session(engine(dsn, autocommit)) as session, session.begin():
        yield library.hands(session, lambda sql: session.execute(text(sql)), session.begin_nested)


@asynccontextmanager
async def _sqlalchemy_async(dsn: str, library: Library, autocommit: bool) -> AsyncIterator[Hands]:
    async with async_engine(dsn, autocommit).begin() as conn:
        yield library.hands(conn, lambda sql: conn.execute(text(sql)), conn.begin_nested)


@asynccontextmanager
async def _session_async(dsn: str, library: Library, autocommit: bool) -> AsyncIterator[Hands]:
    async with AsyncSession(async_engine(dsn, autocommit)) as session, session.begin():
        yield library.hands(session, lambda sql: session.execute(text(sql)), session.begin_nested)


def connect_django(dsn: str) -> None:
    """Let Django's default connection lead to a database."""
    if not settings.configured:
        settings.configure(
            DATABASES={
                "default": {"ENGINE": "django.db.backends.postgresql"},
                "lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
            },
            USE_TZ=True,
            INSTALLED_APPS=[],
        )
        django.setup()
    django_connection.close()
    parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items()}
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    django_connection.settings_dict.update({names[name]: value for name, value in parts.items()})


@contextmanager
def _django(dsn: str, library: Library, autocommit: bool) -> Iterator[Hands]:
    connect_django(dsn)
    try:
        with nullcontext() if autocommit else transaction.atomic():

            def execute(sql: str) -> None:
                with django_connection.cursor() as cursor:
                    cursor.execute(sql)

            yield Hands(
                execute,
                transaction.atomic,
                library.outbox.enqueue,
                library.outbox.enqueue_many,
                library.first_time,
            )
    finally:
        django_connection.close()


APPLICATIONS: Final = {
    "psycopg": Application(_psycopg, "psycopg"),
    "psycopg cursor": Application(_psycopg_cursor, "psycopg"),
    "psycopg async": Application(_psycopg_async, "psycopg"),
    "asyncpg": Application(_asyncpg, "asyncpg"),
    "sqlalchemy connection": Application(_sqlalchemy, "sqlalchemy"),
    "sqlalchemy session": Application(_session, "sqlalchemy"),
    "sqlalchemy async connection": Application(_sqlalchemy_async, "sqlalchemy"),
    "sqlalchemy async session": Application(_session_async, "sqlalchemy"),
    "django": Application(_django, "django"),
}

each_application = pytest.mark.parametrize("application", APPLICATIONS.values(), ids=APPLICATIONS.keys())


def ask(database: Database, query: str) -> list[dict[str, Any]]:
    with psycopg.connect(database.dsn, row_factory=dict_row) as connection:
        return connection.execute(query.encode()).fetchall()


def orders(database: Database) -> int:
    return len(ask(database, "select from orders"))
