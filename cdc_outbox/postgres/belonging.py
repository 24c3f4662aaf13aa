"""Whether the settings name what the slot has to do with: the publication and the tables of its witness row.

A table or publication that was never the slot's is wrong in the settings and says nothing of what the slot was fed;
what happens to those that are is for the guard's memory. Both look alike where a name finds nothing.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cdc_outbox.errors import PublicationReplaced, PublicationWrong, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres import publication
from cdc_outbox.postgres.remedy import accept_gap
from cdc_outbox.settings.likeness import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.publication import PublicationState
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.settings import PostgresSettings


async def another_publication(
    conn: Connection, settings: PostgresSettings, state: PublicationState, known: Identity
) -> PublicationWrong | PublicationReplaced | None:
    """Why the settings' publication isn't the slot's; None where it is, or may be.

    PublicationReplaced where it would do from now on. One that is gone, or was altered meanwhile, may have had this
    name: that is for the memory.
    """
    fed_by = await publication.other_name(conn, known.publication, settings.publication)
    if fed_by is None:
        return None
    slot, named = settings.slot, quote(settings.publication)
    own = f"cdc-outbox start --slot {slot} --publication {shlex.quote(fed_by)}"
    if state.problem is not None:
        return PublicationWrong(
            f"{state.problem}; the slot {slot} is fed by publication {quote(fed_by)}", next=own
        )
    return PublicationReplaced(
        f"the slot {slot} is fed by publication {quote(fed_by)}, and not by {named}: rows that were written while"
        f" {named} did not have their table are skipped",
        next=f"{own}; or, to go on with {named} and without such rows: {accept_gap(slot)}",
    )


async def of_the_slot(
    conn: Connection,
    settings: PostgresSettings,
    tables: Sequence[TableName],
    state: PublicationState,
    known: Identity,
) -> PublicationState:
    """The part of a look that concerns what the witness row names; the whole look where nothing else is wrong.

    Raises PublicationWrong where only tables that are strange to the slot are wrong.
    """
    foreign = strange(tables, state, known)
    if not foreign or state.problem is None:
        return state
    ours = [table for table in tables if table not in foreign]
    if ours:
        part = await publication.look(conn, settings.publication, ours)
        if part.problem is not None:
            return part
    fed = [name for name, _ in known.members]
    own = _flags(fed)
    also = (
        f"; or, to feed {', '.join(map(str, foreign))} from it too: {state.next}"
        if state.next.endswith(";")
        else ""
    )
    raise PublicationWrong(
        f"{state.problem}; the slot {settings.slot} feeds {', '.join(fed)}",
        next=f"cdc-outbox start --slot {settings.slot} {own}{also}",
    )


def strange(tables: Sequence[TableName], state: PublicationState, known: Identity) -> list[TableName]:
    """Those of the tables that the slot never fed, neither under this name nor under another one."""
    names, oids = {name for name, _ in known.members}, {member.table for _, member in known.members}
    there = {name: member.table for name, member in state.tables}
    return [table for table in tables if str(table) not in names and there.get(str(table)) not in oids]


def feeds_others(
    settings: PostgresSettings, state: PublicationState, known: Identity | None
) -> SetupError | None:
    """Why a relay of these tables may not stream, where the slot also feeds others: it would pass over their rows.

    Tables are known by their OIDs, so that one which was renamed isn't missed. Without a witness row nobody knows what
    the slot feeds; then a publication that has more tables is only told of.
    """
    if known is None or state.identity is None:
        return None
    ours, oids = dict(state.identity.members), {member.table for _, member in state.identity.members}
    others = [name for name, at in known.members if name not in ours and at.table not in oids]
    if not others:
        return None
    name, left_out = settings.slot, ", ".join(others)
    dropping = f"alter publication {quote(settings.publication)} drop table {left_out};"
    every, own = _flags((*others, *ours)), _flags(ours)
    return SetupError(
        f"the slot {name} feeds {left_out} too, and a relay of {', '.join(ours)} alone would pass over those rows"
        " for good",
        next=f"cdc-outbox start --slot {name} {every}; or give each table a slot and a publication of its own; or,"
        f" where the rows of {left_out} need no delivery any more, take it out of the publication, if it names it"
        f" ({dropping}), and then {accept_gap(name)} {own}",
    )


def _flags(tables: Iterable[str]) -> str:
    return " ".join(f"--table {shlex.quote(table)}" for table in tables)


async def beside(
    conn: Connection, slot: str, tables: Sequence[TableName], state: PublicationState
) -> PublicationWrong | None:
    """Where there is no such publication, an error with those that have these tables; None where it says nothing."""
    if state.problem != publication.absent(state.name):
        return None
    others = await publication.others_of(conn, state.name, tables)
    if not others:
        return None
    return PublicationWrong(
        f"{state.problem}; with these tables this database has: {', '.join(map(quote, others))}",
        next=f"cdc-outbox start --slot {slot} --publication {shlex.quote(nearest(state.name, others))}",
    )
