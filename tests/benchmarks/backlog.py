"""Rows to be relayed, made quickly inside the server, and one slot a reader, all at the same place before them."""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from tests.servers.relay import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.servers.postgres import PostgresServer

PUBLICATION = "outbox_pub"

# A row is 360 bytes in the stream: eight columns of the default table, a uuid for a key, a payload of 198 bytes.
_FILL = """
create procedure fill(transactions int, rows_each int, kind text, kinds int, keys int) language plpgsql as $$
declare
  n int := 0;
begin
  for t in 1 .. transactions loop
    insert into outbox (aggregate_type, aggregate_id, event_type, event_version, payload)
    select kind || case when kinds > 1 then '-' || ((n + i) % kinds)::text else '' end,
           md5(((n + i) * 7919::bigint % keys)::text)::uuid::text, 'OrderPlaced', 1,
           ('{"n": ' || lpad((n + i)::text, 9, '1') || ', "note": "' || repeat('an order of no importance ', 6)
            || '", "total": 12345}')::jsonb
    from generate_series(1, rows_each) as i;
    n := n + rows_each;
    commit;
  end loop;
end $$
"""

# The same for a single row a transaction, without the price of a query over a series.
_FILL_ONE = """
create procedure fill_one(transactions int, kind text, kinds int, keys int) language plpgsql as $$
begin
  for n in 1 .. transactions loop
    insert into outbox (aggregate_type, aggregate_id, event_type, event_version, payload)
    values (kind || case when kinds > 1 then '-' || (n % kinds)::text else '' end,
            md5((n * 7919::bigint % keys)::text)::uuid::text, 'OrderPlaced', 1,
            ('{"n": ' || lpad(n::text, 9, '1') || ', "note": "' || repeat('an order of no importance ', 6)
             || '", "total": 12345}')::jsonb);
    commit;
  end loop;
end $$
"""

_WITNESS = """
insert into cdc_outbox_witness
select copy.* from cdc_outbox_witness as w, jsonb_populate_record(w, jsonb_build_object('slot', %s::text)) as copy
where w.slot = %s
"""


@dataclass(frozen=True)
class Shape:
    """Transactions, and how their rows spread."""

    name: str
    transactions: int
    rows_each: int = 1
    kind: str = "order"
    kinds: int = 1
    keys: int = 10_000
    partitions: int = 4

    @property
    def rows(self) -> int:
        return self.transactions * self.rows_each

    @property
    def topics(self) -> tuple[str, ...]:
        """Where the default mapping sends the rows."""
        if self.kinds == 1:
            return (f"outbox.event.{self.kind}",)
        return tuple(f"outbox.event.{self.kind}-{number}" for number in range(self.kinds))


class Backlog:
    """A database with an outbox, and slots that stand before everything that `fill` wrote."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.name = f"bench_{secrets.token_hex(3)}"
        server.create_database(self.name)
        self.connection = server.connect(self.name)
        self.origin = f"{self.name}_origin"
        made = run_command(
            "init", "--create-table", "--slot", self.origin, env={"CDC_OUTBOX_DSN": server.dsn(self.name)}
        )
        assert made.returncode == 0, made.stderr
        self.connection.execute(_FILL)
        self.connection.execute(_FILL_ONE)
        self.end = "0/0"
        """Where the WAL ended behind the last row."""

    def fill(self, shape: Shape) -> None:
        """Write and flush the rows."""
        self.connection.execute("set synchronous_commit = off")
        if shape.rows_each == 1:
            self.connection.execute(
                "call fill_one(%s, %s, %s, %s)", (shape.transactions, shape.kind, shape.kinds, shape.keys)
            )
        else:
            self.connection.execute(
                "call fill(%s, %s, %s, %s, %s)",
                (shape.transactions, shape.rows_each, shape.kind, shape.kinds, shape.keys),
            )
        self.flush()

    def flush(self) -> None:
        """See everything on disk, and remember where it ends."""
        self.connection.execute("set synchronous_commit = on")
        self.connection.execute("select pg_logical_emit_message(true, 'bench', '')")
        self.end = self.value("select pg_current_wal_flush_lsn()")

    def value(self, query: Any, parameters: Sequence[object] = ()) -> Any:
        """The first column of the first row."""
        row = self.connection.execute(query, parameters or None).fetchone()
        assert row is not None
        return row[0]

    @contextmanager
    def slot(self) -> Iterator[str]:
        """A slot of one reader's own, before all rows."""
        name = f"reader_{secrets.token_hex(3)}"
        self.connection.execute("select pg_copy_logical_replication_slot(%s, %s)", (self.origin, name))
        self.connection.execute(_WITNESS, (name, self.origin))
        try:
            yield name
        finally:
            with suppress(psycopg.Error):
                self.connection.execute("select pg_drop_replication_slot(%s)", (name,))

    def walsender(self, slot: str) -> int | None:
        """The process that streams from a slot."""
        pid: int | None = self.value(
            "select active_pid from pg_replication_slots where slot_name = %s", (slot,)
        )
        return pid

    def close(self) -> None:
        """Remove the database with its slots."""
        self.connection.close()
        self.server.drop_database(self.name)

    def __enter__(self) -> Backlog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
