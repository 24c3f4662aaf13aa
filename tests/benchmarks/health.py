"""`python -m tests.benchmarks.health`: what a sample of the slot watch costs the server.

A server that is not empty: slots, sessions with open transactions, a thousand tables in the publication. Server time is
planning and execution as EXPLAIN ANALYZE tells them, and as a running relay asks, prepared, the CPU of its backend.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path

import psycopg
from psycopg.sql import SQL, Literal

from cdc_outbox.event import TableName
from cdc_outbox.postgres.connection import connect_control
from cdc_outbox.settings import load
from cdc_outbox.watch import sample as samples
from tests.benchmarks.report import against, table
from tests.servers.ledger import create_outbox
from tests.servers.postgres import MAJORS, PASSWORD, PostgresServer
from tests.servers.relay import run_command

SLOT = "outbox_slot"
PUBLICATION = "everything"
TABLES = (TableName("public", "outbox"),)
SLOTS, SESSIONS, MEMBERS, LOOKS = 15, 60, 1000, 200
BAR = 20.0
"""Milliseconds of server time that a sample may take."""


async def measured(major: int) -> list[object]:
    """A row of the table: version, EXPLAIN's planning and execution, CPU and time of a prepared sample."""
    server = PostgresServer(major, settings={"max_replication_slots": "40"}).start()
    with contextlib.ExitStack() as stack:
        stack.callback(server.close)
        dsn = server.create_database("app")
        create_outbox(dsn)
        with psycopg.connect(dsn, autocommit=True) as owner:
            owner.execute(
                SQL("create role relay login replication password {}").format(Literal(PASSWORD)),
            )
            owner.execute(
                "select count(*) from generate_series(1, %s) n,"
                " lateral pg_create_physical_replication_slot('other_' || n, true)",
                (SLOTS,),
            )
            owner.execute(
                SQL(
                    "do $$ begin for n in 1..{} loop execute 'create table t' || n || '()'; end loop; end $$"
                ).format(Literal(MEMBERS))
            )
            owner.execute("create publication everything for all tables")
        done = run_command("init", "--slot", SLOT, "--role", "relay", env={"CDC_OUTBOX_DSN": dsn})
        assert done.returncode == 0, done.stderr
        for number in range(SESSIONS):
            session = stack.enter_context(contextlib.closing(psycopg.connect(dsn)))
            session.execute("select pg_current_xact_id()" if number % 2 else "select 1")
        role = server.dsn("app", user="relay", password=PASSWORD)
        settings = load("health", {"dsn": role}, {}, Path.cwd())
        control = await connect_control(settings.postgres, application_name="cdc-outbox benchmark")
        try:
            sample = await samples.take(control, SLOT, PUBLICATION, TABLES)
            explained = explain(role, samples.query(sample, lists_wal=True))
            pid, began = control.info.backend_pid, time.perf_counter()
            cpu = cpu_seconds(pid)
            for _ in range(LOOKS):
                sample = await samples.take(control, SLOT, PUBLICATION, TABLES, before=sample)
            took = (time.perf_counter() - began) / LOOKS * 1000
            used = (cpu_seconds(pid) - cpu) / LOOKS * 1000
        finally:
            await control.close()
    planning, execution = explained
    return [
        f"PostgreSQL {major}",
        f"{planning:.1f}",
        f"{execution:.1f}",
        against(planning + execution, BAR, least=False, form="{:.1f}"),
        f"{used:.1f}",
        f"{took:.1f}",
    ]


def explain(dsn: str, query: str) -> tuple[float, float]:
    """Milliseconds of planning and execution: the middle of some."""
    seen = []
    with psycopg.connect(dsn, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        for _ in range(20):
            wanted = samples.parameters(SLOT, PUBLICATION, TABLES)
            cursor = connection.execute(SQL("explain (analyze, format json) " + query), wanted)
            row = cursor.fetchone()
            assert row is not None
            seen.append((row[0][0]["Planning Time"], row[0][0]["Execution Time"]))
    return statistics.median(each[0] for each in seen), statistics.median(each[1] for each in seen)


def cpu_seconds(pid: int) -> float:
    """Processor time that a server process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    majors = [int(each) for each in sys.argv[1:]] or list(MAJORS)
    rows = [asyncio.run(measured(major)) for major in majors]
    title = f"One sample beside {SLOTS} slots, {SESSIONS} sessions and {MEMBERS} published tables, in ms"
    print(table(title, ["server", "planning", "execution", "together", "prepared: CPU", "round trip"], rows))


if __name__ == "__main__":
    main()
