"""The relay that this project replaces, as its users have it, to be measured beside it.

It takes a batch of pending rows with `for update skip locked`, publishes them, marks them sent, commits; and looks
again half a second later, or at once when the batch was full. Runs until it is killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
from typing import TYPE_CHECKING, Any

import psycopg
from aiokafka import AIOKafkaProducer

from tests.servers.cache import CHECKOUT
from tests.servers.process import Process
from tests.servers.relay import clean_environment
from tests.servers.wait import eventually

if TYPE_CHECKING:
    from tests.benchmarks.backlog import Backlog

BATCH = 500
EVERY = 0.5

TABLE = """
create table outbox_polled (
  id             bigint generated always as identity primary key,
  aggregate_type text not null,
  aggregate_id   text not null,
  event_type     text not null,
  payload        jsonb,
  status         text not null default 'pending',
  created_at     timestamptz not null default clock_timestamp(),
  sent_at        timestamptz
);
create index on outbox_polled (id) where status = 'pending';
"""

_TAKE = """
select id, aggregate_type, aggregate_id, event_type, payload::text from outbox_polled
where status = 'pending' order by id limit %s for update skip locked
"""
_MARK = "update outbox_polled set status = 'sent', sent_at = now() where id = any(%s)"


async def run(bootstrap: str) -> None:
    """Poll for ever."""
    producer: Any = AIOKafkaProducer(  # type: ignore[no-untyped-call]
        bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=0
    )
    await producer.start()
    connection = await psycopg.AsyncConnection.connect(os.environ["BENCHMARK_DSN"])
    while True:
        async with connection.transaction():
            cursor = await connection.execute(_TAKE, (BATCH,), prepare=True)
            rows = await cursor.fetchall()
            sent = [
                await producer.send(
                    f"outbox.event.{kind}",
                    key=key.encode(),
                    value=payload.encode(),
                    headers=[("id", str(number).encode()), ("type", type_.encode())],
                )
                for number, kind, key, type_, payload in rows
            ]
            await asyncio.gather(*sent)
            if rows:
                await connection.execute(_MARK, ([row[0] for row in rows],), prepare=True)
        if len(rows) < BATCH:
            await asyncio.sleep(EVERY)


def start(backlog: Backlog, bootstrap: str) -> tuple[Process, int]:
    """This program as a process, and the process id of its server session."""
    name = f"polling-{secrets.token_hex(3)}"
    dsn = backlog.server.socket_dsn(backlog.name) + f"&application_name={name}"
    process = Process(
        [sys.executable, "-m", "tests.benchmarks.polling", "--bootstrap-servers", bootstrap],
        env=clean_environment({"BENCHMARK_DSN": dsn}),
        cwd=CHECKOUT,
    )

    def connected() -> int | None:
        row = backlog.connection.execute(
            "select pid from pg_stat_activity where application_name = %s", (name,)
        ).fetchone()
        return None if row is None else int(row[0])

    return process, eventually(connected, 30, "the polling relay connected") or 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    asyncio.run(run(parser.parse_args().bootstrap_servers))
