"""What a name that finds nothing was perhaps meant to be, so that the next step mends the slip.

Whoever takes a mistyped name at its word makes a second, empty table, a publication that the slot knows nothing of, or
a slot that keeps WAL for nobody.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from shlex import quote as quoted
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import MissingRight, SetupError, SlotMissing
from cdc_outbox.event import TableName
from cdc_outbox.postgres import owning, publication, witness
from cdc_outbox.postgres import slot as slots
from cdc_outbox.postgres.connection import execute
from cdc_outbox.postgres.remedy import again
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.settings.likeness import likeness, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.publication import PublicationState
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.settings import PostgresSettings

ALIKE: Final = 0.75
"""From which likeness on a name that finds nothing is another one, mistyped."""

_TABLES: Final[LiteralString] = """
select n.nspname::text, c.relname::text
  from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
 where c.relkind in ('r', 'p') and not c.relispartition and c.relpersistence = 'p'
   and n.nspname not in ('pg_catalog', 'information_schema') and c.relname not like 'cdc\\_outbox\\_%%'
 order by pg_catalog.lower(c.relname) = pg_catalog.lower(%s) desc, 1, 2 limit 2000
"""
_SLOTS: Final[LiteralString] = """
select slot_name::text from pg_catalog.pg_replication_slots
 where plugin = 'pgoutput' and database = current_database() and not temporary order by slot_name limit 5
"""


async def table(conn: Connection, wanted: TableName, tables: Sequence[TableName] = ()) -> TableName | None:
    """The table that a name which finds nothing was most likely meant to be, first of all one of other case.

    None of `tables`, which the command was told of by their own names.
    """
    rows = await execute(conn, _TABLES, (wanted.name,))
    text = f"{wanted.schema}.{wanted.name}"
    there = [TableName(str(schema), str(name)) for schema, name in rows]
    # Somebody may have made it meanwhile.
    known = {f"{each.schema}.{each.name}": each for each in there if each not in (wanted, *tables)}
    if not known:
        return None
    near = nearest(text, known)
    return known[near] if likeness(text.lower(), near) >= ALIKE else None


def is_case_alone(wanted: TableName, there: TableName) -> bool:
    """Whether the names differ by nothing but the case of letters, as where quotes were left out."""
    return (wanted.schema.lower(), wanted.name.lower()) == (there.schema.lower(), there.name.lower())


def instead(wanted: TableName, there: TableName, tables: Sequence[TableName]) -> str:
    """The next step: the same command with the table that there is in place of the one that there isn't."""
    return again(*(("--table", str(there if each == wanted else each)) for each in tables))


async def no_table(
    conn: Connection,
    wanted: TableName,
    tables: Sequence[TableName] = (),
    *,
    otherwise: str = "name the outbox table with --table SCHEMA.NAME",
) -> SetupError:
    """The error for a table that there isn't; `otherwise` is the step where no name is like it.

    `tables`: all that the command was told of; without them the step names the one alone.
    """
    there = await table(conn, wanted, tables)
    if there is None:
        return SetupError(f"table {wanted} does not exist", next=otherwise)
    why = ", and a name with capitals needs its quotes" if is_case_alone(wanted, there) else ""
    step = instead(wanted, there, tables) if tables else f"name it with --table {quoted(str(there))}"
    return SetupError(f"table {wanted} does not exist; there is {there}{why}", next=step)


async def look(
    conn: Connection, settings: PostgresSettings, tables: Sequence[TableName], *, within: float | None = None
) -> PublicationState:
    """As `publication.look`; where a name finds nothing, the remedy is the name that was meant, if one is known.

    Without a slot, that of an absent publication is the command that makes both.
    """
    state = await publication.look(conn, settings.publication, tables, within=within)
    if state.problem is None or state.identity is not None:
        return state
    there = dict(state.tables)
    for each in tables:
        if str(each) not in there and (meant := await table(conn, each, tables)) is not None:
            return replace(state, next=instead(each, meant, tables))
    if state.problem == publication.absent(settings.publication):
        name = await _publication(conn, settings, tables)
        if name is not None:
            return replace(state, next=again(("--publication", name)))
        if not any(await slots.inspect_both(conn, settings.slot, within=within)):
            return replace(state, next=neither(settings.slot))
    return state


def neither(slot: str) -> str:
    """The next step where there is neither publication nor slot."""
    return f"cdc-outbox init --slot {slot}"


async def _publication(
    conn: Connection, settings: PostgresSettings, tables: Sequence[TableName]
) -> str | None:
    """The publication that the slot is fed by; without a memory the likest of those that have the tables."""
    with suppress(MissingRight):
        row = await witness.read(conn, settings.slot)
        if isinstance(row, Witness) and row.identity is not None:
            return await publication.other_name(conn, row.identity.publication, settings.publication)
    name = settings.publication
    others = await publication.others_of(conn, name, tables)
    near = nearest(name, others) if others else ""
    return near if likeness(name.lower(), near) >= ALIKE else None


async def require_slot(
    conn: Connection,
    found: Slot | None,
    settings: PostgresSettings,
    tables: Sequence[TableName],
    *,
    pending: Slot | None = None,
) -> Slot:
    """As `slot.require`, with the step as our role can do it; where there is neither slot, the error names those that
    there are.
    """
    name = settings.slot
    try:
        return slots.require(found, name, pending=pending)
    except SlotMissing as missing:
        step = await owning.by_whom(conn, missing.next, settings.publication, tables)
        told = SlotMissing(str(missing), next=step)
        raise (told if pending is not None else await slot(conn, told, name)) from None


async def slot(conn: Connection, missing: SlotMissing, name: str) -> SlotMissing:
    """The same with the slots that there are: a second slot keeps WAL for nobody.

    The likest of those that a relay has delivered from comes first as the next step.
    """
    there = [str(each) for (each,) in await execute(conn, _SLOTS)]
    if not there:
        return missing
    ours: list[str] = []
    with suppress(MissingRight):
        rows = await witness.read_all(conn)
        ours = [row.slot for row in rows if row.slot in there] if isinstance(rows, list) else []
    step = missing.next
    if ours:
        near = nearest(name, ours)
        step = unless(near, again(("--slot", near)), name, step)
    return SlotMissing(f"{missing}; this database has: {', '.join(there)}", next=step)


def unless(near: str, mended: str, name: str, step: str) -> str:
    """The next step where the slot `name` isn't there: what mends a slip first, then the one that makes it."""
    return f"if {near} is meant: {mended}; else, to make {name}: {step}"
