"""The witness: a row that remembers, beside the slot, what was delivered.

A relay without memory can't see that its slot was dropped and made again, or moved by another hand, while
it was away: events between are lost without a word. The row is written before each confirmation, so the
slot is never beyond it by our doing; a slot that is, was moved by somebody else. It only notices, it
never moves anything: the slot stays the only truth about where to go on.

The session has `synchronous_commit = local` (see connection.py): `on` would hang while a synchronous
standby is away, `off` could fall behind the slot in a crash.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, LiteralString, Protocol

from cdc_outbox.errors import GapFound, MissingRight, SetupError, SlotMissing
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.publication_identity import Identity
from cdc_outbox.postgres.remedy import recover

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from cdc_outbox.postgres.server import Server

    Answer = TypeVar("Answer")

TABLE: Final = "public.cdc_outbox_witness"


class Absent(enum.Enum):
    """Why there is no witness."""

    TABLE = "the witness table does not exist"
    ROW = "the witness table has no row for the slot"


class IncidentKind(enum.Enum):
    """What happened to the publication. MADE_AGAIN may have cost events and bars the way until accepted.

    HIDDEN: it hides rows, and isn't mended yet; if it passes again as it was, none were skipped. TRACELESS: the
    same, but then some may have been all the same.
    """

    ALTERED = "altered"
    HIDDEN = "hidden"
    TRACELESS = "hidden without a trace"
    MADE_AGAIN = "made again"

    @property
    def bars(self) -> bool:
        return self is IncidentKind.MADE_AGAIN

    @property
    def lasts(self) -> bool:
        """Whether it goes on until the publication passes again."""
        return self in (IncidentKind.HIDDEN, IncidentKind.TRACELESS)


@dataclass(frozen=True, slots=True)
class Incident:
    """What happened to the publication or the slot, and the range of WAL in which rows may be missing."""

    kind: IncidentKind
    at: datetime
    from_lsn: LSN
    to_lsn: LSN
    message: str

    def as_json(self) -> dict[str, str]:
        return {
            "kind": self.kind.value,
            "at": self.at.isoformat(),
            "from_lsn": str(self.from_lsn),
            "to_lsn": str(self.to_lsn),
            "message": self.message,
        }

    @classmethod
    def from_json(cls, whole: dict[str, str]) -> Incident:
        return cls(
            IncidentKind(whole["kind"]),
            datetime.fromisoformat(whole["at"]),
            LSN.parse(whole["from_lsn"]),
            LSN.parse(whole["to_lsn"]),
            whole["message"],
        )


@dataclass(frozen=True, slots=True)
class Witness:
    """One row. Everything committed up to `position` was delivered; `publication` is an identity's text.

    Rows whose xmin is below the xmin of `snapshot` (pg_snapshot as text) were delivered.
    """

    slot: str
    system_identifier: str
    timeline: int
    position: LSN
    publication: str | None = None
    incidents: tuple[Incident, ...] = ()
    snapshot: str | None = None
    updated_at: datetime | None = field(default=None, compare=False)

    @property
    def identity(self) -> Identity | None:
        """The publication's identity; None where the row has none, or one that another version wrote."""
        try:
            return Identity.parse(self.publication) if self.publication is not None else None
        except ValueError:
            return None


_EXISTS: Final[LiteralString] = "select pg_catalog.to_regclass('public.cdc_outbox_witness') is not null"

_READ_ALL: Final[LiteralString] = """
select slot, system_identifier, timeline, position::text, publication, incidents, snapshot::text, updated_at
  from public.cdc_outbox_witness
"""
_READ: Final[LiteralString] = _READ_ALL + " where slot = %s"

_INSERT: Final[LiteralString] = """
insert into public.cdc_outbox_witness as w
       (slot, system_identifier, timeline, position, publication, incidents, snapshot, updated_at)
values (%(slot)s, %(system_identifier)s, %(timeline)s, %(position)s::pg_lsn, %(publication)s,
        %(incidents)s::jsonb, %(snapshot)s::pg_snapshot, clock_timestamp())
on conflict (slot) do update set
"""

# In the place of what was noted of the pending slot (pending_note.py).
_DECIDE: Final[LiteralString] = """
with noted as (delete from public.cdc_outbox_witness where slot = %(slot)s::text || '_pending')
insert into public.cdc_outbox_witness
       (slot, system_identifier, timeline, position, publication, incidents, snapshot, whole)
values (%(slot)s, %(system_identifier)s, %(timeline)s, %(position)s::pg_lsn, %(publication)s,
        %(incidents)s::jsonb, %(snapshot)s::pg_snapshot, %(whole)s::jsonb)
"""

# `greatest`, for a relay that lost the slot to another one must not take the position back with its last
# word. On another server or timeline the old position and the old snapshot mean nothing.
_WRITE: Final[LiteralString] = """
       updated_at = excluded.updated_at, system_identifier = excluded.system_identifier, timeline = excluded.timeline,
       position = case when w.system_identifier = excluded.system_identifier
                        and w.timeline = excluded.timeline
                       then greatest(w.position, excluded.position) else excluded.position end,
       publication = excluded.publication, incidents = excluded.incidents,
       snapshot = case when w.system_identifier = excluded.system_identifier
                        and w.timeline = excluded.timeline
                       then coalesce(excluded.snapshot, w.snapshot) else excluded.snapshot end
"""

_ADVANCE: Final[LiteralString] = """
       updated_at = excluded.updated_at,
       position = greatest(w.position, excluded.position), snapshot = coalesce(excluded.snapshot, w.snapshot)
"""

# Not the time: it tells when a position was written, and so since when nobody reads from the slot.
_NOTE: Final[LiteralString] = """
       publication = excluded.publication, incidents = w.incidents || excluded.incidents
"""

_ACCEPT: Final[LiteralString] = """
update public.cdc_outbox_witness w
   set incidents = coalesce((select jsonb_agg(i.one order by i.place)
                               from jsonb_array_elements(w.incidents) with ordinality as i (one, place)
                              where i.one <> all (select jsonb_array_elements(%s::jsonb))), '[]'::jsonb)
 where w.slot = %s
"""

_DELETE: Final[LiteralString] = "delete from public.cdc_outbox_witness where slot = %s"


async def exists(conn: Connection, *, within: float | None = None) -> bool:
    """Whether there is the witness table."""
    ((there,),) = await execute(conn, _EXISTS, within=within)
    return bool(there)


async def read(conn: Connection, slot: str, *, within: float | None = None) -> Witness | Absent:
    """The slot's row, or which of row and table there isn't.

    Raises MissingRight when the role may not read the table.
    """
    if not await exists(conn, within=within):
        return Absent.TABLE
    rows = await execute(conn, _READ, (slot,), within=within)
    if not rows:
        return Absent.ROW
    return of(*rows[0])


async def by_who_may(
    relay: Connection, owner: Connection, work: Callable[[Connection], Awaitable[Answer]]
) -> Answer:
    """Do something with the witness as the relay, or as the owner where the relay's role may not."""
    try:
        return await work(relay)
    except MissingRight:
        return await work(owner)


async def read_by(relay: Connection, owner: Connection, slot: str) -> Witness | Absent:
    """As `read`, by who may."""
    return await by_who_may(relay, owner, lambda conn: read(conn, slot))


async def read_all(conn: Connection, *, within: float | None = None) -> list[Witness] | Absent:
    """The rows of all slots of this database, or that there is no table.

    Raises MissingRight when the role may not read the table.
    """
    if not await exists(conn, within=within):
        return Absent.TABLE
    return [of(*row) for row in await execute(conn, _READ_ALL, within=within)]


def of(
    slot: str,
    system_identifier: str,
    timeline: int,
    position: str,
    publication: str | None,
    incidents: list[dict[str, str]],
    snapshot: str | None,
    updated_at: datetime | None,
) -> Witness:
    """A row from its columns. Raises SetupError where its incidents can't be read."""
    try:
        happened = tuple(Incident.from_json(incident) for incident in incidents)
    except (ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"the incidents in the row of slot {slot} in {TABLE} can't be read: {json.dumps(incidents)}",
            next="have a person read them, then set the column to '[]'",
        ) from error
    return Witness(
        slot=slot,
        system_identifier=system_identifier,
        timeline=timeline,
        position=LSN.parse(position),
        publication=publication,
        incidents=happened,
        snapshot=snapshot,
        updated_at=updated_at,
    )


async def decide(conn: Connection, witness: Witness, whole: str) -> None:
    """Write the row of a slot that nobody has streamed from, with the parts of its tables that are whole, as JSON."""
    await execute(conn, _DECIDE, {**_parameters(witness), "whole": whole})


async def write(conn: Connection, witness: Witness, *, within: float | None = None) -> None:
    """Write the row, new or over the old one. No snapshot keeps the old one, if that is of this server and timeline."""
    await execute(conn, _INSERT + _WRITE, _parameters(witness), within=within)


async def advance(conn: Connection, witness: Witness, *, within: float | None = None) -> None:
    """Write position and snapshot. The rest stays as it is, for a person may have accepted incidents meanwhile."""
    await execute(conn, _INSERT + _ADVANCE, _parameters(witness), within=within)


async def note(conn: Connection, witness: Witness, *, within: float | None = None) -> None:
    """Add the incidents to those of the row, and write the publication's identity; the rest stays as it is."""
    await execute(conn, _INSERT + _NOTE, _parameters(witness), within=within)


def _parameters(witness: Witness) -> dict[str, Any]:
    return {
        "slot": witness.slot,
        "system_identifier": witness.system_identifier,
        "timeline": witness.timeline,
        "position": str(witness.position),
        "publication": witness.publication,
        "incidents": json.dumps([incident.as_json() for incident in witness.incidents]),
        "snapshot": witness.snapshot,
    }


async def accept(
    conn: Connection, slot: str, incidents: Sequence[Incident], *, within: float | None = None
) -> None:
    """Take these incidents out of the row: a person has seen them. What happened meanwhile stays."""
    seen = json.dumps([incident.as_json() for incident in incidents])
    await execute(conn, _ACCEPT, (seen, slot), within=within)


async def delete(conn: Connection, slot: str, *, within: float | None = None) -> None:
    """Remove the slot's row, if there is the table and the row."""
    if await exists(conn, within=within):
        await execute(conn, _DELETE, (slot,), within=within)


class SlotState(Protocol):
    """What `judge` has to know of a slot; `slot.Slot` has it."""

    @property
    def confirmed_flush_lsn(self) -> LSN | None: ...
    @property
    def synced(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the witness says at start: an error (`--accept-gap` overrides it), a note to log, or neither."""

    error: SetupError | None = None
    note: str | None = None


def judge(name: str, found: Witness | Absent, slot: SlotState | None, server: Server) -> Verdict:
    """May a relay go on from where its slot stands?

    No: when the slot is gone, when it stands beyond the witness, and when the server isn't the one that
    the witness belongs to. A slot that PostgreSQL itself carried to the new primary (17+, `synced`) may
    be ahead of a witness that was replicated a moment later; that is noted only.
    """
    if isinstance(found, Absent):
        return Verdict(note=f"{found.value}: a slot that somebody else moves can't be noticed")
    if slot is None:
        return Verdict(
            SlotMissing(
                f"the replication slot {name} is gone; events were delivered up to {found.position},"
                " those after it may be missing",
                next=recover(name),
            )
        )
    ways_out = f"{recover(name)}; or go on past it: cdc-outbox start --slot {name} --accept-gap"
    confirmed = slot.confirmed_flush_lsn
    if found.system_identifier != server.system_identifier:
        return Verdict(
            GapFound(
                f"the witness of slot {name} belongs to the system {found.system_identifier} and this server"
                f" is {server.system_identifier}: events after {found.position} may be missing",
                next=ways_out,
            )
        )
    if server.timeline is not None and found.timeline != server.timeline:
        moved = f"the server went from timeline {found.timeline} to {server.timeline}"
        if slot.synced:
            return Verdict(
                note=f"{moved}, and the slot {name} with it: {confirmed}, witness {found.position}"
            )
        return Verdict(
            GapFound(
                f"{moved}, and the slot {name} was made anew there at {confirmed}: events between"
                f" {found.position} and {confirmed} may be missing",
                next=ways_out,
            )
        )
    if confirmed is not None and confirmed > found.position:
        return Verdict(
            GapFound(
                f"the replication slot {name} stands at {confirmed} and events were delivered up to"
                f" {found.position}: those between may be missing",
                next=ways_out,
            )
        )
    return Verdict()
