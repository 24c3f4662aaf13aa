"""The replication slot: what the server knows of it, and how it is made, named and dropped.

The slot is the only truth about where delivery goes on, so this module guarantees that a slot that bears the
configured name is whole: it is made under the name `<slot>_pending`, and gets its own name by a copy, which
keeps the start position, only when the work that had to come before is done. The copy, its failover property
and the drop of the pending slot happen under one advisory lock; a crash between two of them leaves both
slots, and `finish_pending` completes the job for whoever finds them.

Creating a slot waits for every transaction that holds an xid at that time, in all databases. What bounds it
(seen on 15 to 18): `lock_timeout` bounds the wait for *one* transaction, so several in a row add up;
`statement_timeout` bounds the SQL function as a whole, but not CREATE_REPLICATION_SLOT on a replication
connection; a cancel request ends both, and a client that went away ends neither: the function goes on to make
the slot in the end, unless `client_connection_check_interval` is set. So the function is used, with all three. In
each of these cases, and when the server crashes, the half-made slot is gone: it is ephemeral until its start is found.

Relies on the columns of `pg_replication_slots`
(https://www.postgresql.org/docs/current/view-pg-replication-slots.html); columns that a server doesn't have
yet are read as None or false.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg import Error, sql

from cdc_outbox import ddl, faults
from cdc_outbox.errors import CdcOutboxError, SlotBlocked, SlotBusy, SlotLost, SlotMissing, SlotUnusable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import sqlstate
from cdc_outbox.postgres.blocker import Blocker, blockers, held_up, in_words
from cdc_outbox.postgres.connection import (
    STATEMENT_TIMEOUT,
    Connection,
    connect_replication,
    end_with_us,
    execute,
    sever,
)
from cdc_outbox.postgres.remedy import recover

if TYPE_CHECKING:
    from cdc_outbox.settings import PostgresSettings

PLUGIN: Final = "pgoutput"
PENDING_SUFFIX: Final = "_pending"
WAIT: Final = 30.0
"""Seconds that the creation of a slot, and the wait for another `init` or `start`, may take."""

CANCEL: Final = 5.0
"""Seconds for the server to end the creation of a slot that isn't wanted any more."""

APPLICATION_NAME: Final = "cdc-outbox init"

WAL_STATUSES: Final = ("reserved", "extended", "unreserved", "lost")
"""PostgreSQL's words on the WAL that a slot needs, the worst last."""

_INSPECT: Final[LiteralString] = """
select pg_catalog.to_jsonb(s), pg_catalog.current_database()::text
  from pg_catalog.pg_replication_slots s where s.slot_name = any(%s)
"""

# Two numbers: the first says that it is ours, the second is the slot's.
_LOCK_CLASS: Final = int.from_bytes(b"cdco")
_TRY_LOCK: Final[LiteralString] = "select pg_catalog.pg_try_advisory_lock(%s, %s)"
_UNLOCK: Final[LiteralString] = "select pg_catalog.pg_advisory_unlock(%s, %s)"
_LOCK_HOLDER: Final[LiteralString] = """
select a.pid, a.application_name from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a using (pid)
 where l.locktype = 'advisory' and l.granted and l.classid = %s::oid
   and l.objid = (%s::bigint & 4294967295)::oid
   and l.database = (select oid from pg_catalog.pg_database where datname = current_database())
"""

_COPY: Final[LiteralString] = "select pg_catalog.pg_copy_logical_replication_slot(%s, %s, false)"
_DROP: Final[LiteralString] = "select pg_catalog.pg_drop_replication_slot(%s)"


@dataclass(frozen=True, slots=True)
class Slot:
    """One row of `pg_replication_slots`, in that view's words.

    `here`: the slot belongs to the database that was asked. `confirmed_flush_lsn` is delivery, `restart_lsn`
    is disk. `safe_wal_size` is None when unlimited or lost, and None is never 0. Before 17 `inactive_since` and
    `invalidation_reason` are None; a slot that is invalidated for whatever reason has the `wal_status` lost on all.
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
    inactive_since: datetime | None
    invalidation_reason: str | None
    failover: bool
    synced: bool

    @classmethod
    def of(cls, row: Mapping[str, Any], database: str) -> Slot:
        """Read a row of the view, in its JSON form; `database` is the one that was asked.

        Columns that only newer servers have may be missing: inactive_since, invalidation_reason, failover, synced (17).
        """
        catalog_xmin, inactive_since = row["catalog_xmin"], row.get("inactive_since")
        return cls(
            name=row["slot_name"],
            plugin=row["plugin"],
            slot_type=row["slot_type"],
            database=row["database"],
            here=row["database"] == database,
            temporary=row["temporary"],
            active=row["active"],
            active_pid=row["active_pid"],
            catalog_xmin=None if catalog_xmin is None else int(catalog_xmin),
            restart_lsn=_lsn(row["restart_lsn"]),
            confirmed_flush_lsn=_lsn(row["confirmed_flush_lsn"]),
            wal_status=row["wal_status"],
            safe_wal_size=row["safe_wal_size"],
            two_phase=row["two_phase"],
            inactive_since=None if inactive_since is None else datetime.fromisoformat(inactive_since),
            invalidation_reason=row.get("invalidation_reason"),
            failover=bool(row.get("failover")),
            synced=bool(row.get("synced")),
        )

    @property
    def lost(self) -> bool:
        """The server can no longer serve this slot, and never will again."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def unready(self) -> bool:
        """The server copies it from its primary, and hasn't come to a state that a promotion would keep (17+).

        https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS-SYNCHRONIZATION
        """
        return self.synced and self.temporary


def pending_name(name: str) -> str:
    """The name under which the slot `name` is made before it gets its own."""
    return name + PENDING_SUFFIX


def require_own(name: str) -> None:
    """Raise SlotUnusable for a name that another slot may be made under."""
    if name.endswith(PENDING_SUFFIX):
        raise SlotUnusable(
            f'"{name}" is how the slot "{name.removesuffix(PENDING_SUFFIX)}" is called until it is ready',
            next=f"choose a name with --slot that doesn't end in {PENDING_SUFFIX}",
        )


async def inspect(conn: Connection, name: str, *, within: float | None = None) -> Slot | None:
    """Read the slot `name` from the server, or None where there is none."""
    return (await _read(conn, [name], within)).get(name)


async def inspect_both(
    conn: Connection, name: str, *, within: float | None = None
) -> tuple[Slot | None, Slot | None]:
    """The slot `name` and its pending one, as they are at one moment. Raises SlotUnusable for a pending one's name."""
    require_own(name)
    found = await _read(conn, [name, pending_name(name)], within)
    return found.get(name), found.get(pending_name(name))


async def _read(conn: Connection, names: list[str], within: float | None) -> dict[str, Slot]:
    rows = await execute(conn, _INSPECT, (names,), within=within)
    return {str(row["slot_name"]): Slot.of(row, str(database)) for row, database in rows}


def _lsn(text: str | None) -> LSN | None:
    return None if text is None else LSN.parse(text)


def removable(slot: Slot) -> Slot:
    """The same slot, if it is no other tool's, session's or database's; raises SlotUnusable."""
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
    if slot.unready:
        raise SlotUnusable(
            f'the slot "{slot.name}" is on its way to this standby: a promotion now would lose it',
            next="wait until the primary's has moved on; where nothing is written, on the primary: "
            "select pg_log_standby_snapshot();",
        )
    if slot.temporary:
        raise SlotUnusable(
            f'the slot "{slot.name}" is temporary and belongs to another session',
            next="choose another name with --slot",
        )
    return slot


def usable(slot: Slot) -> Slot:
    """The same slot, if it is one that this relay made or could have made; raises SlotUnusable.

    A slot with two-phase decoding brings the rows of a prepared transaction before it is decided whether that commits.
    https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (Begin Prepare)
    """
    removable(slot)
    if slot.two_phase:
        raise SlotUnusable(
            f'the slot "{slot.name}" was made with two_phase = true: rows of prepared transactions would come before '
            "their commit, and also where they are rolled back",
            next=f"choose another name with --slot; or, if nothing else reads from it: cdc-outbox drop --slot "
            f"{slot.name}, then cdc-outbox init --slot {slot.name}",
        )
    return slot


def unfinished(name: str) -> str:
    """The step where only the pending slot of `name` exists, lost or not: the table has the rows."""
    return (
        f"stop the old relay, then: cdc-outbox backfill --slot {name}; or to hear how many rows there are, and to "
        f"finish it if there are none: cdc-outbox init --slot {name}"
    )


def not_carried_over(name: str) -> SlotMissing:
    """The error where a standby has no slot of that name, which says nothing of the primary's.

    A standby has the primary's slots only from PostgreSQL 17 on, and where it was told to keep them.
    """
    return SlotMissing(
        f'this server is a standby, and has no replication slot "{name}" of the primary\'s',
        next=f"look at the primary: cdc-outbox health --slot {name}, with its address in CDC_OUTBOX_DSN",
    )


def limit_of(slot: Slot) -> str:
    """The server's setting that made it lose the slot, as a step. https://www.postgresql.org/docs/18/view-pg-replication-slots.html"""
    return {
        "idle_timeout": "raise idle_replication_slot_timeout",
        "wal_level_insufficient": "set wal_level to logical",
        "rows_removed": "set hot_standby_feedback on the standby",
    }.get(slot.invalidation_reason or "", "raise max_slot_wal_keep_size")


def require(slot: Slot | None, name: str, *, pending: Slot | None = None) -> Slot:
    """The slot `name` as `inspect` found it, if a relay can stream from it.

    `pending` is what `inspect` found under `pending_name(name)`. Raises SlotMissing, SlotUnusable or
    SlotLost, each of which ends the process with 78. An active slot passes: who holds it is the caller's
    question.
    """
    if slot is None:
        if pending is not None:
            raise SlotMissing(
                f'only "{pending.name}" exists: rows from before it have to be published before the slot "{name}" '
                "gets its name, or init was interrupted",
                next=unfinished(name),
            )
        raise SlotMissing(
            f'there is no replication slot "{name}"',
            next=f"cdc-outbox init --slot {name}",
        )
    usable(slot)
    if slot.lost:
        reason = slot.invalidation_reason or "WAL that it still needed was removed"
        raise SlotLost(
            f'the replication slot "{name}" is lost ({reason}): of what was committed after '
            f"{slot.confirmed_flush_lsn}, events may be missing",
            next=recover(name),
        )
    return slot


@asynccontextmanager
async def lock(conn: Connection, name: str, *, within: float = WAIT) -> AsyncIterator[None]:
    """Hold the advisory lock under which the slot `name` is made, named and dropped.

    It is asked for again and again and not waited for, so that waiting leaves no line in the server's log.
    It ends with the session. Raises SlotBusy, naming the holder, when it isn't free in time.
    """
    keys = (_LOCK_CLASS, _signed(zlib.crc32(name.encode())))
    deadline = asyncio.get_running_loop().time() + within
    while not (await execute(conn, _TRY_LOCK, keys))[0][0]:
        if asyncio.get_running_loop().time() >= deadline:
            holders = await execute(conn, _LOCK_HOLDER, keys)
            who = ", ".join(f"pid {pid} ({application})" for pid, application in holders) or "a session"
            raise SlotBusy(
                f'the slot "{name}" is being set up by another process: {who} holds its lock',
                next="wait for that init, start or drop to end, then try again",
            )
        await asyncio.sleep(0.1)
    try:
        yield
    finally:
        if not conn.closed:
            with suppress(CdcOutboxError):
                await execute(conn, _UNLOCK, keys)


def creation(
    name: str, *, failover: bool, within: float = WAIT, publication: str | None = None
) -> sql.Composed:
    """The statements that make the slot `name`: `sql/slot.sql`, filled in.

    `publication`: one without which they make none, where nobody has looked for it before.
    """
    return sql.SQL(ddl.read("slot")).format(
        slot=sql.Literal(name),
        failover=sql.Literal(failover),
        publication=sql.Literal(publication),
        timeout=sql.Literal(f"{round(within * 1000)}ms"),
    )


async def create(
    conn: Connection,
    name: str,
    *,
    failover: bool,
    watcher: Connection,
    within: float = WAIT,
    waiting: Callable[[Sequence[Blocker]], None] | None = None,
) -> Slot:
    """Make the slot `name`, a failover slot on a primary of 17 and later if `failover`.

    `conn` needs the right to replicate and no open transaction. `watcher` is a second connection, which looks
    who is waited for; the more its role may see, the better. `waiting` is told of them when they change.

    Raises SlotBlocked, naming them, after `within` seconds; nothing is left behind then. SetupError when the
    server has no room for a slot or doesn't decode, MissingRight, PostgresUnavailable.
    """
    await end_with_us(conn)
    making = asyncio.ensure_future(_make(conn, name, failover, within))
    try:
        seen = await held_up(making, lambda: blockers(watcher, conn.info.backend_pid), waiting)
    except BaseException:
        await _give_up(conn, making)
        raise
    failure = making.exception()
    if failure is not None:
        if getattr(failure, "sqlstate", None) in ("57014", "55P03"):
            raise _blocked(name, within, seen) from failure
        if isinstance(failure, Error):
            raise sqlstate.from_exception(failure, stage="create") from failure
        raise failure
    # For those who run the same statements, they end with the role's own limit.
    await execute(conn, STATEMENT_TIMEOUT)
    made = await inspect(conn, name)
    if made is None or made.confirmed_flush_lsn is None:
        raise _dropped_meanwhile(name)
    return made


async def _make(conn: Connection, name: str, failover: bool, within: float) -> None:
    await conn.execute(creation(name, failover=failover, within=within))


async def _give_up(conn: Connection, making: asyncio.Future[None]) -> None:
    """End the making of a slot: by a cancel request, which is psycopg's way, or with the connection."""
    making.cancel()
    try:
        await asyncio.wait({making}, timeout=CANCEL)
    finally:
        if not making.done():
            sever(conn)
            making.cancel()  # it may wait for a thread that waits for the answer to a cancel request
            await asyncio.wait({making})
            await conn.close()
    if not making.cancelled():
        making.exception()  # what it failed with is of no interest any more


def _blocked(name: str, within: float, seen: Sequence[Blocker]) -> SlotBlocked:
    names = in_words(seen)
    pids = [each.pid for each in seen if each.pid is not None]
    how = f" (select pg_terminate_backend({pids[0]});)" if pids else ""
    return SlotBlocked(
        f'the slot "{name}" could not be made within {within:g} s, for it has to wait for open transactions: '
        f"{names}",
        next=f"let them end, or end them{how}, then run the same command again",
    )


def _dropped_meanwhile(name: str) -> SlotMissing:
    return SlotMissing(
        f'the slot "{name}" was dropped by another session while it was made',
        next="find out who drops slots here, then run init again",
    )


async def copy(conn: Connection, source: str, target: str) -> None:
    """Give the position of the slot `source` to a new slot `target`; the copy is never a failover slot.

    Raises SetupError when there is no room for it or `target` exists; MissingRight.
    """
    await execute(conn, _COPY, (source, target), stage="create", within=WAIT)


async def drop(conn: Connection, name: str) -> bool:
    """Remove the slot `name`; False when there was none.

    Raises SlotBusy, naming the process, when somebody streams from it; MissingRight.
    """
    try:
        await execute(conn, _DROP, (name,), stage="drop")
    except SlotMissing:
        return False
    except SlotBusy as busy:
        found = await inspect(conn, name)
        raise in_use(name, found.active_pid if found is not None else None) from busy
    return True


def in_use(name: str, pid: int | None) -> SlotBusy:
    """The error for a slot that can't be removed, since a process uses it; `pid` where it is known."""
    return SlotBusy(
        f'the slot "{name}" is in use' + (f" by pid {pid}" if pid else ""),
        next="stop the process that uses it, then run the same command again",
    )


async def finish_pending(
    conn: Connection, settings: PostgresSettings, *, within: float = WAIT
) -> tuple[Slot | None, Slot | None]:
    """Complete a hand-over that a crash interrupted; the slot and what is left of the pending one.

    Where both slots exist the work before the hand-over was done, so that the rest is: failover as the
    pending slot has it, then its end. Takes the advisory lock for that, and only then. Called at each start,
    before streaming, and by `init`.

    Raises SlotBusy when another process holds the lock for longer than `within`.
    """
    both = await inspect_both(conn, settings.slot)
    if both[0] is None or both[1] is None:
        # The pending slot is dropped last: without it nothing is under way.
        return both
    async with lock(conn, settings.slot, within=within):
        return await hand_over(conn, settings)


async def hand_over(conn: Connection, settings: PostgresSettings) -> tuple[Slot | None, Slot | None]:
    """Copy the pending slot to its name unless that is done, make it a failover slot, drop the pending one.

    The caller holds the lock and knows that the work before the hand-over is done. Each step may be the first
    after a crash. Raises SlotUnusable when one of the names belongs to somebody else.
    """
    name = settings.slot
    slot, pending = await inspect_both(conn, name)
    if pending is None:
        return slot, pending
    usable(pending)
    if slot is None:
        await copy(conn, pending.name, name)
        faults.backfill_held("copied")
        slot = await inspect(conn, name)
    if slot is None:
        raise _dropped_meanwhile(name)
    usable(slot)
    if pending.failover and not slot.failover and not slot.lost:
        await _make_failover(conn, settings)
    await drop(conn, pending.name)
    return await inspect(conn, name), None


async def _make_failover(conn: Connection, settings: PostgresSettings) -> None:
    """ALTER_REPLICATION_SLOT exists on replication connections only; it waits while the slot is in use."""
    replication = await connect_replication(settings, application_name=APPLICATION_NAME, like=conn)
    try:
        command = sql.SQL("ALTER_REPLICATION_SLOT {} (FAILOVER true)").format(sql.Identifier(settings.slot))
        await execute(replication, command, stage="create", within=WAIT)
    finally:
        await replication.close()


def _signed(number: int) -> int:
    """The same 32 bits as PostgreSQL's integer."""
    return number - 2**32 if number >= 2**31 else number
