"""What a pending slot stands for: the work between a slot's position and its name.

Without a witness row nothing was decided yet: rows from before the slot may wait in the table, and what the publication
was when the slot was made is noted (`pending_note.py`). A witness row at the pending slot's start says that they were
counted and there were none, that they were given up, or that they were published (`backfill`). It is written last
before the slot gets its name, so that whoever finds both goes on there. `init` and `backfill` share this; the caller
holds the slot's advisory lock.

The table speaks for what the slot passes over only once it can be seen. A commit is in the write-ahead log, and so
before the slot, some time before other sessions see it: a moment, or where it waits for a synchronous standby as long
as that is away. The creation of a slot waits for the transactions that were open when it began, and not for one that
begins and commits while it waits. So whoever takes a slot for a boundary calls `everything_visible` before he counts,
takes a snapshot or decides, also for a slot that an earlier run has made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import GapFound, MissingRight, SlotBlocked
from cdc_outbox.postgres import pending_note, slot, whole, witness
from cdc_outbox.postgres.blocker import unended
from cdc_outbox.postgres.connection import Connection
from cdc_outbox.postgres.pending_note import Gap
from cdc_outbox.postgres.publication_identity import Change, compare
from cdc_outbox.postgres.witness import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.postgres.publication import PublicationState
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.postgres.whole import Keys

LOOK: Final = 0.1
"""Seconds between looks at transactions that have yet to end."""


async def witness_row(relay: Connection, owner: Connection, name: str) -> Witness | None:
    """The slot's witness row, read by who may."""
    row = await witness.read_by(relay, owner, name)
    return row if isinstance(row, Witness) else None


def decided(row: Witness | None, pending: Slot | None, server: Server) -> bool:
    """Whether the work before the name is done.

    Raises GapFound for a row that belongs to a slot which was in use and is gone.
    """
    if row is None:
        return False
    if (
        pending is not None
        and row.system_identifier == server.system_identifier
        and row.position == pending.confirmed_flush_lsn
    ):
        return True
    raise GapFound(
        f'the witness knows a slot "{row.slot}" that is gone: what was committed after '
        f"{row.position} may not have been published",
        next="recover, and have the rows counted that may be missing: "
        f"cdc-outbox drop --yes --slot {row.slot} && cdc-outbox init --slot {row.slot}",
    )


async def gap(
    relay: Connection,
    owner: Connection,
    pending: Slot,
    row: Witness | None,
    server: Server,
    publication: str,
    identity: Identity | None,
) -> Gap | None:
    """Why the pending slot may lack rows that were committed since it was made; None where it has all of them.

    `row`: its witness row, where it is decided. Rows that were hidden from it are in the table, unless the application
    has deleted them: whoever reads the table may go on with a slot that is passable.
    """
    if pending.lost:
        why = pending.invalidation_reason or "WAL that it still needed was removed"
        return Gap(f"it is lost ({why})", passable=False)
    if row is None:
        return await pending_note.hidden(relay, owner, pending, server, publication, identity)
    if identity is None or row.identity is None or compare(row.identity, identity) is Change.MADE_AGAIN:
        return Gap(pending_note.changed(publication), passable=False)
    return None


async def require_complete(
    relay: Connection,
    owner: Connection,
    name: str,
    pending: Slot,
    row: Witness | None,
    server: Server,
    state: PublicationState,
) -> None:
    """Raise GapFound where rows may be missing from the pending slot of `name` that were committed since it was made.

    That none waits in the table is no proof: an application may delete its rows as soon as it has written them.
    """
    found = await gap(relay, owner, pending, row, server, state.name, state.identity)
    if found is not None:
        raise GapFound(
            f'the slot "{pending.name}" may lack rows that were committed after {pending.confirmed_flush_lsn}: '
            f"{found.why}",
            next=f"stop the old relay, then publish what the table has of them: cdc-outbox backfill --slot {name}; or "
            "leave out all that is committed by then: "
            f"cdc-outbox drop --slot {name} && cdc-outbox init --no-backfill --slot {name}",
        )


async def everything_visible(
    owner: Connection,
    pending: Slot,
    name: str,
    *,
    within: float,
    waiting: Callable[[Sequence[Blocker]], None] | None = None,
) -> None:
    """Wait until each later snapshot sees everything that was committed before the pending slot of `name`.

    That is when the transactions have ended that may have begun to commit by now; others commit behind the slot.
    `waiting` is told of them when they change. Raises SlotBlocked, naming them, after `within` seconds; the slot stays.
    """
    now = asyncio.get_running_loop().time
    deadline = now() + within
    left = await unended(owner)
    told: set[int] = set()
    while left:
        if now() >= deadline:
            raise _invisible(pending, name, within, list(left.values()))
        await asyncio.sleep(LOOK)
        still = await unended(owner)
        left = {xid: still[xid] for xid in left.keys() & still.keys()}
        if left and left.keys() != told and waiting is not None:
            waiting(list(left.values()))
        told = set(left)


def _invisible(pending: Slot, name: str, within: float, left: Sequence[Blocker]) -> SlotBlocked:
    pids = [each.pid for each in left if each.pid is not None]
    step = f"let them end, or end them (select pg_terminate_backend({pids[0]});)" if pids else "let them end"
    if any(each.standby for each in left):
        step = "bring the synchronous standby back, or take it out of synchronous_standby_names"
    return SlotBlocked(
        f'rows that were committed before the slot "{pending.name}" may not be visible yet after {within:g} s, for '
        f"these transactions have yet to end: {'; '.join(map(str, left))}",
        next=f"{step}; then run the same command again. The slot keeps WAL until then; to give it up: "
        f"cdc-outbox drop --slot {name}",
    )


async def discard(
    relay: Connection, owner: Connection, name: str, pending: Slot, row: Witness | None
) -> None:
    """Remove a pending slot that is no good any more, and what was decided with it: nobody ever streamed from it."""
    slot.usable(pending)
    if row is not None:
        await witness.delete(owner, name)
    await slot.drop(relay, pending.name)


async def decide(
    relay: Connection,
    owner: Connection,
    name: str,
    server: Server,
    pending: Slot,
    identity: Identity | None,
    whole_parts: Mapping[str, Keys],
) -> None:
    """Write the witness row with the slot's start, if there is the table, and what is known of rows left behind.

    Raises MissingRight where nobody may.
    """
    if not await witness.exists(relay) or pending.confirmed_flush_lsn is None:
        return
    row = Witness(
        slot=name,
        system_identifier=server.system_identifier,
        timeline=server.timeline or 1,
        position=pending.confirmed_flush_lsn,
        publication=str(identity),
    )
    for conn in (relay, owner):
        try:
            if await whole.kept(conn):
                await witness.decide(conn, row, whole.written(whole_parts))
            else:
                await witness.write(conn, row)
            return
        except MissingRight:
            if conn is owner:
                raise
