"""Through which publication a slot is read, and from which tables: what a person says, else what its witness row says.

Several slots of a database are, as a rule, read through a publication each. One that is judged by another's would be
well while its rows are hidden, or bad without a reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc_outbox.errors import MissingRight
from cdc_outbox.event import TableName
from cdc_outbox.postgres import publication, witness
from cdc_outbox.postgres.witness import Witness

if TYPE_CHECKING:
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.settings import Settings


class Known(enum.Enum):
    """How it is known which publication a slot is read through.

    NAMED: we stream through it ourselves, or a person or the witness row names it. DEFAULT: slot and publication are
    those of the settings, and nothing contradicts. GONE: the one that the witness row names isn't there any more.
    GUESSED: not at all.
    """

    NAMED = "named"
    DEFAULT = "default"
    GONE = "gone"
    GUESSED = "guessed"


@dataclass(frozen=True, slots=True)
class Reads:
    """A publication, its tables, and how they are known."""

    publication: str
    tables: tuple[TableName, ...]
    known: Known


async def find(
    conn: Connection, slot: str, settings: Settings, *, several: bool, within: float | None = None
) -> Reads:
    """What the slot is read through. `several`: more slots are looked at, so that the settings speak of their own only.

    Raises what `execute` raises, but for a missing right; SetupError where the witness row can't be understood.
    """
    postgres, tables = settings.postgres, settings.outbox.tables

    def said(key: str) -> bool:
        origin = settings.origins[key]
        return origin.startswith("flag ") or (origin != "default" and (not several or slot == postgres.slot))

    named, tables_named = said("postgres.publication"), said("outbox.table")
    if named and tables_named:
        return Reads(postgres.publication, tables, Known.NAMED)
    identity = await _identity(conn, slot, within)
    if identity is None:
        known = Known.DEFAULT if slot == postgres.slot else Known.GUESSED
        # Who names the tables of this one slot speaks of a slot of ours, and of the publication that start would take.
        by_flag = settings.origins["outbox.table"].startswith("flag ") and not several
        of_ours = named or by_flag or (tables_named and known is Known.DEFAULT)
        return Reads(postgres.publication, tables, Known.NAMED if of_ours else known)
    if not tables_named:
        tables = tuple(TableName.parse(name) for name, _ in identity.members) or tables
    if named:
        return Reads(postgres.publication, tables, Known.NAMED)
    name = await publication.name_of(conn, identity.publication.oid, within=within)
    if name is None:
        return Reads(postgres.publication, tables, Known.GONE)
    return Reads(name, tables, Known.NAMED)


async def _identity(conn: Connection, slot: str, within: float | None) -> Identity | None:
    try:
        row = await witness.read(conn, slot, within=within)
    except MissingRight:
        return None
    return row.identity if isinstance(row, Witness) else None
