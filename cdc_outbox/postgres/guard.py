"""The guard: what must hold while we stream, asked every second in two short queries.

Before a position is confirmed, the guard has to have passed since that position was received: a
publication that hides rows looks exactly like an idle server. It looks at the publication, at who holds
the slot, at synchronous_standby_names, and at whether this is still the server that we stream from.

The queries stand in this order for a reason: the snapshot and the first LSN are taken in the first, the
second LSN in the second. What the snapshot takes as finished had its commit record in the WAL before the
second LSN; and a change of the publication that the second query is the first to see came after the first
LSN of the check before.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox.errors import (
    CdcOutboxError,
    PostgresUnavailable,
    PublicationReplaced,
    PublicationWrong,
    SlotLost,
    SlotMissing,
    SynchronousStandby,
)
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import publication as publications
from cdc_outbox.postgres import synchronous
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.publication_identity import Change, Identity, compare
from cdc_outbox.postgres.remedy import accept_gap, recover
from cdc_outbox.postgres.server import timeline_of
from cdc_outbox.postgres.witness import Incident, IncidentKind, Witness

if TYPE_CHECKING:
    from cdc_outbox.event import TableName


@dataclass(frozen=True, slots=True)
class Guarded:
    """What is guarded. `walsender_pid` is the replication connection's backend, None before it streams."""

    slot: str
    publication: str
    tables: tuple[TableName, ...]
    application_name: str
    timeline: int
    walsender_pid: int | None = None


@dataclass(frozen=True, slots=True)
class GuardReport:
    """One check.

    `failure` ends the session: the slot is gone, lost or in other hands, the server another one, or we
    are a synchronous standby (a set-up error, as its class says). `publication` says for itself what it
    hides. `snapshot` and `publication.insert_lsn`, in this order, are for the witness's proof; `lsn` is
    where the WAL ended when the check began. On a standby both LSNs are None.
    """

    failure: CdcOutboxError | None
    publication: PublicationState
    lsn: LSN | None
    snapshot: str
    confirmed: LSN | None


_STATE: Final[LiteralString] = """
select pg_current_snapshot()::text, pg_is_in_recovery(),
       case when pg_is_in_recovery() then null else pg_current_wal_insert_lsn()::text end,
       case when pg_is_in_recovery() then null else pg_walfile_name(pg_current_wal_insert_lsn()) end,
       current_setting('synchronous_standby_names'),
       s.slot_name is not null, s.active_pid, s.wal_status, s.confirmed_flush_lsn::text
  from (values (%s)) as wanted (name) left join pg_replication_slots s on s.slot_name = wanted.name
"""


async def guard(conn: Connection, guarded: Guarded, *, within: float | None = None) -> GuardReport:
    """Check once. Raises what `execute` raises; what is found wrong is in the report."""
    (
        (snapshot, in_recovery, lsn, walfile, standby_names, exists, active_pid, wal_status, confirmed),
    ) = await execute(conn, _STATE, (guarded.slot,), within=within)
    state = await publications.look(conn, guarded.publication, guarded.tables, within=within)
    return GuardReport(
        failure=_failure(
            guarded,
            in_recovery=bool(in_recovery),
            timeline=timeline_of(walfile),
            standby_names=str(standby_names),
            exists=bool(exists),
            active_pid=active_pid,
            wal_status=wal_status,
        ),
        publication=state,
        lsn=LSN.parse(lsn) if lsn else None,
        snapshot=str(snapshot),
        confirmed=LSN.parse(confirmed) if confirmed else None,
    )


def _failure(
    guarded: Guarded,
    *,
    in_recovery: bool,
    timeline: int | None,
    standby_names: str,
    exists: bool,
    active_pid: int | None,
    wal_status: str | None,
) -> CdcOutboxError | None:
    """What ends the session, the gravest first."""
    slot = guarded.slot
    if in_recovery:
        return PostgresUnavailable("the server is a standby now", next=_FAILOVER)
    if timeline != guarded.timeline:
        return PostgresUnavailable(
            f"the server is on timeline {timeline} and the stream on {guarded.timeline}", next=_FAILOVER
        )
    if not exists:
        return SlotMissing(f"the replication slot {slot} does not exist any more", next=recover(slot))
    if wal_status == "lost":
        return SlotLost(
            f"the replication slot {slot} is lost: the server removed WAL that it needed",
            next=recover(slot),
        )
    try:
        synchronous.require_none(standby_names, guarded.application_name)
    except SynchronousStandby as found:
        return found
    if guarded.walsender_pid is not None and active_pid != guarded.walsender_pid:
        holder = f"held by process {active_pid}" if active_pid is not None else "held by nobody"
        return PostgresUnavailable(
            f"the replication slot {slot} is {holder} here, and not by our stream (process"
            f" {guarded.walsender_pid}): another server answers, or the stream was cut",
            next="nothing to do: the relay connects again by itself",
        )
    return None


_FAILOVER: Final = "nothing to do while a failover is under way: the relay connects again by itself"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one look says about the publication: hold because of `problem`, write down `incident`, or neither."""

    problem: str | None = None
    next: str = ""
    incident: Incident | None = None

    def wrong(self, slot: str) -> PublicationWrong:
        """The problem as an error, its remedy for this slot."""
        return PublicationWrong(self.problem or "", next=self.next.replace(accept_gap(), accept_gap(slot)))


class PublicationWatch:
    """Remembers the publication as it was when nothing was wrong, and tells what became of it.

    Lives as long as the process; where there is a witness row, that is its memory beyond (`recall`). A row that
    was inserted while the publication hid it is skipped by the server for ever, so what was made again, or was
    seen to hide rows and was altered then, is an incident with the range of WAL that may hold such rows, and
    bars delivery until a person accepts it. That a publication hides rows is an incident when it is first seen,
    for the one who looks next may be another process; it goes when the publication passes as it was before.
    """

    def __init__(self, known: Identity | None = None, since: LSN | None = None) -> None:
        self.known = known
        self.incidents: tuple[Incident, ...] = ()
        self.unwritten: tuple[Incident, ...] = ()
        """Those of `incidents` that the witness row doesn't hold yet."""
        self._since = since

    def recall(self, row: Witness) -> None:
        """Go by the witness row, which another process may have written since."""
        self.known = row.identity or self.known
        self.incidents = row.incidents + self.unwritten
        self._since = max(row.position, self._since or row.position)

    @property
    def hidden(self) -> tuple[Incident, ...]:
        """Since when the publication hides rows and why, if it did so at the last look."""
        return tuple(each for each in self.incidents if each.kind.lasts)

    @property
    def bars(self) -> bool:
        """Whether nothing may be confirmed: it hides rows, or has hidden some, which nobody has accepted yet."""
        return any(each.kind.lasts or each.kind.bars for each in self.incidents)

    def require(self, slot: str) -> None:
        """Raise PublicationReplaced while an incident bars delivery."""
        barring = [each.message for each in self.incidents if each.kind.bars]
        if barring:
            raise PublicationReplaced(
                f"{'; '.join(barring)}: events of that time may be missing",
                next=f"after a look at what may be missing: {accept_gap(slot)}",
            )

    def accept(self) -> None:
        """A person has taken it as it is."""
        self.incidents = self.unwritten = ()

    def look(self, state: PublicationState, began: LSN | None, *, at: datetime | None = None) -> Finding:
        """Take in one look; `began` is a position where the WAL ended before it (`GuardReport.lsn`)."""
        ends = state.insert_lsn or began or LSN(0)
        hidden = self.hidden
        since = hidden[0].from_lsn if hidden else self._since or began or ends

        def noted(kind: IncidentKind, message: str) -> Incident:
            incident = Incident(kind, at or datetime.now(UTC), since, ends, message)
            self.incidents += (incident,)
            self.unwritten += (incident,)
            return incident

        if state.problem is not None or state.identity is None:
            problem = state.problem or f"publication {state.name} could not be identified"
            kind = IncidentKind.TRACELESS if state.traceless else IncidentKind.HIDDEN
            if hidden and kind in (IncidentKind.HIDDEN, hidden[-1].kind):
                return Finding(problem, state.next)
            return Finding(problem, state.next, noted(kind, f"{problem}, first seen at {ends}"))
        before = self.known
        self.known, self._since = state.identity, began
        self.incidents = tuple(each for each in self.incidents if each not in hidden)
        self.unwritten = tuple(each for each in self.unwritten if each not in hidden)
        change = Change.UNCHANGED
        if before is not None:
            change = compare(before, state.identity)
        elif hidden:
            change = Change.MADE_AGAIN
        if hidden and (change is Change.ALTERED or hidden[-1].kind is IncidentKind.TRACELESS):
            change = Change.MADE_AGAIN
        if change is Change.UNCHANGED:
            return Finding()
        kind = IncidentKind.ALTERED if change is Change.ALTERED else IncidentKind.MADE_AGAIN
        message = f"publication {state.name} was {kind.value} between {since} and {ends}"
        for each in hidden:
            message = f"{message}; meanwhile {each.message.partition(', first seen at ')[0]}"
        return Finding(incident=noted(kind, message))


class ProvenSnapshot:
    """A snapshot whose finished transactions have all been delivered.

    A snapshot is offered with an LSN that was read after it, and is proven once the delivered position has
    reached that LSN. One at a time: under a steady lag, always taking the newest would never prove any.
    """

    def __init__(self, proven: str | None = None) -> None:
        self.proven = proven
        self.final = False
        """Whether it was offered as final here, and is no older one that was known before."""
        self._offered: tuple[str, LSN, bool] | None = None

    def offer(self, snapshot: str, lsn: LSN | None, *, final: bool = True) -> None:
        """Propose a snapshot (pg_snapshot as text) and an LSN that was read in a later statement.

        `final`: nothing was to be done any more to the rows that it shows.
        """
        if self._offered is None and lsn is not None:
            self._offered = (snapshot, lsn, final)

    def advance(self, position: LSN) -> str | None:
        """The newest proven snapshot, when everything up to `position` has been delivered."""
        if self._offered is not None and position >= self._offered[1]:
            self.proven, _, self.final = self._offered
            self._offered = None
        return self.proven

    @property
    def horizon(self) -> int:
        """The number of the first transaction that isn't proven; 0 without a proof."""
        return int(self.proven.partition(":")[0]) if self.proven else 0


def unended(snapshot: str) -> int:
    """The number of the first transaction that had not begun when a pg_snapshot, as text, was taken."""
    return int(snapshot.split(":")[1])
