"""The three tables, with the indexes that a polling relay wants, and how a shop writes a row of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, LiteralString

import psycopg
from psycopg.sql import SQL

OTHER_BUS: Final = "rabbitmq"
"""Rows for this bus are not for Kafka (table B)."""

KEY_IN_PAYLOAD: Final = ("--key", "payload:/order_id")


@dataclass(frozen=True, slots=True)
class Table:
    """`public.outbox`, as one kind of polling relay has it.

    `insert` takes the parameters `event_id`, `key`, `topic`, `payload` (JSON text) and `bus`. `unsent` is the condition
    of rows that the relay hasn't sent; `given_up` that of rows that it never will. `id` is what consumers know
    an event by: the header `id`. `key_flags` name the key to our relay, where the table's columns don't.
    """

    letter: str
    ddl: LiteralString
    insert: LiteralString
    unsent: LiteralString
    given_up: LiteralString
    id: LiteralString
    key_flags: tuple[str, ...]
    partitioner: str

    def make(self, dsn: str) -> None:
        """Make the table."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(self.ddl)

    def rows(self, dsn: str, condition: LiteralString = "true") -> Iterator[tuple[str, str]]:
        """The application's event id and the relay's of each row for which `condition` holds."""
        query = SQL("select payload ->> 'event_id', {}::text from outbox where ({})")
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield from connection.execute(query.format(SQL(self.id), SQL(condition)))

    def events(self, dsn: str, condition: LiteralString = "true") -> frozenset[str]:
        """The application's event ids of the rows for which `condition` holds."""
        return frozenset(event_id for event_id, _ in self.rows(dsn, condition))


A = Table(
    "a",
    ddl="""
        create table outbox (
            id bigserial primary key,
            aggregate_type text not null,
            aggregate_id text not null,
            topic text not null,
            payload jsonb not null,
            status text not null default 'pending' check (status in ('pending', 'processing', 'sent', 'failed')),
            attempts integer not null default 0,
            next_run_at timestamptz not null default now(),
            locked_by text,
            locked_at timestamptz,
            last_error text,
            created_at timestamptz not null default now(),
            sent_at timestamptz
        );
        create index outbox_due on outbox (next_run_at, id) where status in ('pending', 'failed');
        create index outbox_stuck on outbox (locked_at) where status = 'processing';
    """,
    insert="""
        insert into outbox (aggregate_type, aggregate_id, topic, payload)
        values ('order', %(key)s, %(topic)s, %(payload)s)
    """,
    unsent="status <> 'sent'",
    given_up="false",
    id="id",
    key_flags=(),
    partitioner="murmur2_random",
)

B = Table(
    "b",
    ddl="""
        create table outbox (
            id bigserial primary key,
            event_id uuid not null unique,
            bus text not null,
            topic text not null,
            payload jsonb not null,
            status text not null default 'pending',
            attempts integer not null default 0,
            last_error text,
            created_at timestamptz not null default now(),
            sent_at timestamptz
        );
        create index outbox_pending on outbox (bus, id) where status = 'pending';
    """,
    insert="""
        insert into outbox (event_id, bus, topic, payload)
        values (%(event_id)s, %(bus)s, %(topic)s, %(payload)s)
    """,
    unsent="status not in ('sent', 'failed') and bus = 'kafka'",
    given_up="status = 'failed'",
    id="event_id",
    key_flags=KEY_IN_PAYLOAD,
    partitioner="consistent_random",
)

C = Table(
    "c",
    ddl="""
        create table outbox (
            id bigserial primary key,
            topic text not null,
            payload jsonb not null,
            sent_at timestamptz
        );
        create index outbox_unsent on outbox (id) where sent_at is null;
    """,
    insert="insert into outbox (topic, payload) values (%(topic)s, %(payload)s)",
    unsent="sent_at is null",
    given_up="false",
    id="id",
    key_flags=KEY_IN_PAYLOAD,
    partitioner="murmur2_random",
)

TABLES: Final = {table.letter: table for table in (A, B, C)}
