"""How fast rows of the table are published before the stream begins, and in how much memory."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.benchmarks.offsets import Offsets
from tests.benchmarks.usage import cpu_seconds, memory
from tests.servers.relay import RelayProcess

if TYPE_CHECKING:
    from tests.benchmarks.ground import Ground

BAR = 96 << 20
"""Bytes of resident memory that it stays under, however many rows there are."""

LIMIT = 1800.0
"""Seconds after which it counts as stuck."""

_TABLES = {
    "a sequence": """
create table outbox (
    id bigserial primary key, aggregate_type text not null, aggregate_id text not null, topic text not null,
    payload jsonb not null, status text not null default 'pending', attempts integer not null default 0,
    next_run_at timestamptz not null default now(), locked_by text, locked_at timestamptz, last_error text,
    created_at timestamptz not null default now(), sent_at timestamptz
)""",
    "time and id": """
create table outbox (
    id uuid primary key default gen_random_uuid(), aggregate_type text not null, aggregate_id text not null,
    topic text not null, payload jsonb not null, created_at timestamptz not null default clock_timestamp()
)""",
}
"""By what the rows are ordered: an index is there for the one, the server has to sort for the other."""

# The payload of the other benchmarks, in a table with a topic column.
_FILL = """
insert into outbox (aggregate_type, aggregate_id, topic, payload)
select 'order', md5((n * 7919::bigint %% 10000)::text)::uuid::text, %s,
       ('{"n": ' || lpad(n::text, 9, '1') || ', "note": "' || repeat('an order of no importance ', 6)
        || '", "total": 12345}')::jsonb
from generate_series(1, %s) as n
"""


@dataclass(frozen=True)
class Backfilled:
    """One run, from the start of the process to its end."""

    ordered: str
    rows: int
    seconds: float
    cpu_us: float
    peak_bytes: int
    records: int

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def run(ground: Ground, ordered: str, rows: int) -> Backfilled:
    """`cdc-outbox backfill` of a table with so many unsent rows."""
    name, topic = f"bench_{secrets.token_hex(3)}", f"backfill-{secrets.token_hex(3)}"
    ground.kafka.create_topic(topic, 4)
    offsets = Offsets(ground.kafka, (topic,), 4)
    before = offsets.ends()
    ground.postgres.create_database(name)
    try:
        with ground.postgres.connect(name) as connection:
            connection.execute(_TABLES[ordered])
            connection.execute(_FILL, (topic, rows))
            connection.execute("create publication outbox_pub for table outbox with (publish = 'insert')")
            connection.execute("analyze outbox")
        began = time.monotonic()
        process = RelayProcess(
            ground.dsn(name, "tcp"),
            ground.kafka.bootstrap,
            slot=name,
            flags=["--yes"],
            command="backfill",
            http=False,
        )
        try:
            peak, used = _watched(process)
            assert process.wait() == 0, process.text()
        finally:
            process.close()
        seconds = time.monotonic() - began
        return Backfilled(ordered, rows, seconds, used / rows * 1e6, peak, offsets.count(before))
    finally:
        with ground.postgres.connect("postgres") as connection:
            connection.execute("select pg_drop_replication_slot(%s)", (name,))
        ground.postgres.drop_database(name)


def _watched(process: RelayProcess) -> tuple[int, float]:
    """The peak of resident memory and the CPU time of a process that ends by itself."""
    peak, used = 0, 0.0
    deadline = time.monotonic() + LIMIT
    while process.running and time.monotonic() < deadline:
        with suppress(OSError, IndexError):
            peak, used = memory(process.pid), cpu_seconds(process.pid)
        time.sleep(0.02)  # /proc is sampled: it has no event to wait for, and is gone with the process
    return peak, used
