"""The replication slot: what the server knows of it, and how it is made, named and dropped.

The slot is the only truth about where delivery goes on, so this module guarantees that a slot that bears the
configured name is whole: it is made under the name `<slot>_pending`, and gets its own name by a copy, which
keeps the start position, only when the work that had to come before is done. A crash between two of these
steps leaves a state that `finish_pending` completes.

Relies on the columns of `pg_replication_slots`
(https://www.postgresql.org/docs/current/view-pg-replication-slots.html); columns that a server doesn't have
yet are read as None or false.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from cdc_outbox.errors import SlotLost, SlotMissing, SlotUnusable
from cdc_outbox.lsn import LSN

PLUGIN: Final = "pgoutput"
PENDING_SUFFIX: Final = "_pending"

# Columns that only newer servers have are read by name from the row's JSON form, so that one statement serves
# all versions: conflicting (16), inactive_since, invalidation_reason, failover, synced (17).
_INSPECT: Final = """
select s.slot_name::text, s.plugin::text, s.slot_type, s.database::text,
       coalesce(s.database = current_database(), false), s.temporary, s.active, s.active_pid,
       s.catalog_xmin::text::bigint, s.restart_lsn::text, s.confirmed_flush_lsn::text, s.wal_status,
       s.safe_wal_size, s.two_phase, (j ->> 'conflicting')::boolean, (j ->> 'inactive_since')::timestamptz,
       j ->> 'invalidation_reason', coalesce((j ->> 'failover')::boolean, false),
       coalesce((j ->> 'synced')::boolean, false)
from pg_catalog.pg_replication_slots s cross join lateral to_jsonb(s) j
where s.slot_name = %s
"""
_LSN_AT: Final = (9, 10)


@dataclass(frozen=True, slots=True)
class Slot:
    """One row of `pg_replication_slots`, in that view's words.

    `here`: the slot belongs to the database that was asked. `confirmed_flush_lsn` is delivery, `restart_lsn`
    is disk. `safe_wal_size` is None when unlimited or lost, and None is never 0. Before 16 `conflicting`,
    before 17 `inactive_since` and `invalidation_reason` are None.
    """

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    here: bool
    temporary: bool
    active: bool
    active_pid: int | None
    catalog_xmin: int | None
    restart_lsn: LSN | None
    confirmed_flush_lsn: LSN | None
    wal_status: str | None
    safe_wal_size: int | None
    two_phase: bool
    conflicting: bool | None
    inactive_since: datetime | None
    invalidation_reason: str | None
    failover: bool
    synced: bool

    @property
    def lost(self) -> bool:
        """The server can no longer serve this slot, and never will again."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def unfinished(self) -> bool:
        """Another session is still creating the slot: it has no start position yet."""
        return self.slot_type == "logical" and self.confirmed_flush_lsn is None and not self.lost


def pending_name(name: str) -> str:
    """The name under which the slot `name` is made before it gets its own."""
    return name + PENDING_SUFFIX


async def inspect(conn: AsyncConnection[TupleRow], name: str) -> Slot | None:
    """Read the slot `name` from the server, or None where there is none."""
    row = await (await conn.execute(_INSPECT, (name,))).fetchone()
    if row is None:
        return None
    values = list(row)
    for at in _LSN_AT:
        values[at] = None if row[at] is None else LSN.parse(row[at])
    return Slot(*values)


def usable(slot: Slot) -> Slot:
    """The same slot, if it is one that this relay made or could have made; raises SlotUnusable."""
    if slot.slot_type != "logical":
        raise SlotUnusable(
            f'the slot "{slot.name}" is a {slot.slot_type} replication slot',
            next="choose another name with --slot; a physical slot belongs to a standby or a backup tool",
        )
    if slot.plugin != PLUGIN:
        raise SlotUnusable(
            f'the slot "{slot.name}" belongs to the output plugin "{slot.plugin}", not to {PLUGIN}',
            next="choose another name with --slot; another tool reads from this one",
        )
    if not slot.here:
        raise SlotUnusable(
            f'the slot "{slot.name}" belongs to the database "{slot.database}"',
            next="connect to that database with --dsn, or choose another name with --slot",
        )
    if slot.temporary:
        raise SlotUnusable(
            f'the slot "{slot.name}" is temporary and belongs to another session',
            next="choose another name with --slot",
        )
    return slot


def require(slot: Slot | None, name: str, *, pending: Slot | None = None) -> Slot:
    """The slot `name` as `inspect` found it, if a relay can stream from it.

    `pending` is what `inspect` found under `pending_name(name)`. Raises SlotMissing, SlotUnusable or
    SlotLost, each of which ends the process with 78. An active slot passes: who holds it is the caller's
    question.
    """
    if slot is None:
        if pending is not None:
            raise SlotMissing(
                f'only "{pending.name}" exists: rows that were in the table before it are not published yet',
                next=f"cdc-outbox init --no-backfill --slot {name}, if those rows need not be published",
            )
        raise SlotMissing(
            f'there is no replication slot "{name}"',
            next=f"cdc-outbox init --slot {name}",
        )
    usable(slot)
    if slot.lost:
        reason = slot.invalidation_reason or "WAL that it still needed was removed"
        raise SlotLost(
            f'the replication slot "{name}" is lost: {reason}',
            next=f"recover: cdc-outbox drop --slot {name}, then cdc-outbox init --no-backfill --slot {name}; "
            f"events committed after {slot.confirmed_flush_lsn} and before that may not be published",
        )
    return slot
