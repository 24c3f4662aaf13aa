"""What the publication was when a pending slot was made: a note, so that a later run sees what was hidden from it.

The slot keeps the write-ahead log, and what of it becomes an event the publication says, as it was at each position. A
publication that was dropped, altered or filtered for a time has hidden rows of that time, and afterwards nothing tells
of it but other OIDs and another xmin. So the publication's identity is written before the slot is made, as a row of the
witness table under the pending slot's own name, at a position where the slot wasn't there yet. Killed between the two
there is a note without a slot, which means nothing: the next one is written over it. The witness row of the slot's own
name, which has the identity too, takes its place (`pending.decide`).

Before PostgreSQL 18 a stream ends at a change that was made while there was no publication of the name; since then it
passes over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.event import quote
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import witness
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.publication_identity import Change, compare
from cdc_outbox.postgres.slot import pending_name
from cdc_outbox.postgres.witness import Absent, Witness

if TYPE_CHECKING:
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.slot import Slot

_NOW: Final[LiteralString] = (
    "select pg_catalog.pg_current_wal_insert_lsn()::text, pg_catalog.pg_current_snapshot()::text"
)

PASSES_OVER: Final = 18
"""The first version whose streams pass over changes from a time without the publication."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Why a pending slot may lack rows that were committed since it was made. `passable`: it gives the others."""

    why: str
    passable: bool


async def note(
    relay: Connection, owner: Connection, name: str, server: Server, identity: Identity | None
) -> None:
    """Write what the publication is, and which transactions had ended, before the pending slot of `name` is made.

    Nothing is written where there is no table.

    Raises MissingRight where nobody may.
    """
    if await witness.read_by(relay, owner, pending_name(name)) is Absent.TABLE:
        return
    ((now, snapshot),) = await execute(relay, _NOW)
    row = Witness(
        slot=pending_name(name),
        system_identifier=server.system_identifier,
        timeline=server.timeline or 1,
        position=LSN.parse(now),
        publication=str(identity),
        snapshot=str(snapshot),
    )
    await witness.by_who_may(relay, owner, lambda conn: witness.write(conn, row))


async def hidden(
    relay: Connection,
    owner: Connection,
    pending: Slot,
    server: Server,
    publication: str,
    identity: Identity | None,
) -> Gap | None:
    """Why rows may have been hidden from a pending slot; None where the publication is what it was."""
    found = await _found(relay, owner, pending, server)
    if found is None or found.identity is None:
        return Gap(
            f"nothing says what the publication {quote(publication)} was when the slot was made",
            passable=True,
        )
    if identity is None:
        return Gap(changed(publication), passable=False)
    if compare(found.identity, identity) is Change.UNCHANGED:
        return None
    stayed = found.identity.publication.oid == identity.publication.oid
    return Gap(changed(publication), passable=stayed or server.major >= PASSES_OVER)


async def ended(relay: Connection, owner: Connection, pending: Slot, server: Server) -> int | None:
    """The transaction below which all had ended before the pending slot was made; None where no note says so."""
    found = await _found(relay, owner, pending, server)
    return None if found is None or found.snapshot is None else int(found.snapshot.partition(":")[0])


async def _found(relay: Connection, owner: Connection, pending: Slot, server: Server) -> Witness | None:
    """The note, if it is one of this server and from before the slot."""
    found = await witness.read_by(relay, owner, pending.name)
    if (
        isinstance(found, Absent)
        or found.system_identifier != server.system_identifier
        or pending.confirmed_flush_lsn is None
        or found.position > pending.confirmed_flush_lsn
    ):
        return None
    return found


def changed(publication: str) -> str:
    """That the publication isn't what it was, in words."""
    return f"the publication {quote(publication)} was made again or altered since"
