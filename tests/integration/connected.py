"""A test's database, asked by SQL, and by the relay's own functions on a control connection of theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg
from psycopg.sql import SQL

from cdc_outbox.postgres.connection import Connection, connect_control
from cdc_outbox.settings.model import PostgresSettings

T = TypeVar("T")


def settings_of(dsn: str, *, slot: str = "s", publication: str = "p") -> PostgresSettings:
    """Settings by which they connect, on the relay's side as on the owner's."""
    return PostgresSettings(dsn=dsn, admin_dsn=dsn, slot=slot, publication=publication, guard_interval=1.0)


def with_control(
    dsn: str, work: Callable[[Connection], Awaitable[T]], *, application_name: str = "test"
) -> T:
    """What a coroutine function answers that is given a control connection."""

    async def run() -> T:
        async with await connect_control(settings_of(dsn), application_name=application_name) as conn:
            return await work(conn)

    return asyncio.run(run())


def run_sql(dsn: str, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(SQL(statement))
