"""Before a stream: is the server the right one, is everything as it should be, and is the slot free?

An admission holds the control connection of a session and what was found on it. `check` refuses, `stand_by` waits,
`stream` starts; since a hot standby may wait for days, everything is checked again just before the start.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, LiteralString

from cdc_outbox import log
from cdc_outbox.errors import (
    PublicationReplaced,
    PublicationUnseen,
    PublicationWrong,
    SetupError,
    SlotBusy,
    SlotMissing,
)
from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN, ZERO
from cdc_outbox.postgres import (
    backend,
    belonging,
    heirs,
    outbox,
    owning,
    publication,
    server,
    slot,
    synchronous,
    transaction,
    whole,
    witness,
)
from cdc_outbox.postgres import slip as slips
from cdc_outbox.postgres.connection import Connection, connect_control, connect_replication, execute
from cdc_outbox.postgres.control import Control
from cdc_outbox.postgres.family import FAMILY_OF_OID
from cdc_outbox.postgres.guard import Guarded, PublicationWatch
from cdc_outbox.postgres.remedy import accept_gap, begin_with_the_table
from cdc_outbox.postgres.stream import ReplicationStream
from cdc_outbox.postgres.witness import Absent, Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.postgres.backend import Backend
    from cdc_outbox.postgres.publication import PublicationState
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.settings import PostgresSettings

_log = log.get(__name__)

POLL: Final = 0.5
"""Seconds between a standby's looks at the slot."""


@dataclass(slots=True)
class Memory:
    """What a relay's sessions hand on to each other."""

    watch: PublicationWatch = field(default_factory=PublicationWatch)
    noticed: set[str] = field(default_factory=set)
    proven: LSN = ZERO
    """The last position that was written into the witness, or confirmed where there is none."""
    taken: LSN = ZERO
    """The position that the slot was last seen at, or is known to have taken."""
    accepted: bool = False
    """Whether a person told this process to go on past what it would refuse."""
    left_behind: set[TableName] = field(default_factory=set)
    """Tables of the publication that nobody delivers, as a person told this process to have it."""
    row: Witness | None = None
    """The witness row as this process knows it, as long as nobody else streams: what it says outlives the row."""


class Admission:
    """The control connection of a session, and what it showed."""

    def __init__(self, settings: PostgresSettings, tables: tuple[TableName, ...], memory: Memory) -> None:
        self._settings = settings
        self._tables = tables
        self._memory = memory
        self.watch = memory.watch
        self.application_name = f"cdc-outbox/{settings.slot}"
        self.control: Control
        self.server: Server
        self.publication: PublicationState
        self.witness: Witness | Absent
        self.position: LSN | None = None
        """Where the slot stood at the check."""
        self._writes = False
        """Whether what the check finds may be written into the witness row."""
        self._holder: int | None = None
        """Who streamed from the slot at the check: as long as another process does, nothing is written."""

    @property
    def row(self) -> Witness | None:
        """The slot's witness row as the check has found it or we have written it since; None where there is none."""
        return self.witness if isinstance(self.witness, Witness) else None

    @property
    def _fed(self) -> Identity | None:
        """The publication and tables that the slot was fed by, as far as a witness row says so."""
        return self.row.identity if self.row is not None else None

    async def open(self) -> None:
        """Connect. Raises SetupError, MissingRight, PostgresUnavailable; also while the server is a standby."""
        connection = await connect_control(self._settings, application_name=self.application_name)
        self.control = Control(connection)
        self.server = await self.control.run(server.identity)
        server.require_primary(self.server)
        await self.control.run(server.require_able)

    async def reconnect(self) -> None:
        """Make the control connection anew, to the server that streams.

        Raises PostgresShutdown or PostgresGone where that one ends, OtherServer where another one answers.
        """
        before = self.control
        connection = await connect_control(
            self._settings, application_name=self.application_name, timeout=2.0, like=before.connection
        )
        control = Control(connection)
        try:
            server.require_same(await control.run(server.identity), self.server)
        except BaseException:
            await control.close()
            raise
        self.control = control
        await before.close()

    async def check(self, *, accept_gap: bool = False, begins: bool = False) -> None:
        """Refuse to stream where events could be lost or hidden.

        `accept_gap`: a gap or an incident that would be refused is taken as it is, and the witness says so from then
        on, unless another process streams: then it has to be stopped first. `begins`: nothing else can refuse the
        stream, so that tables which the witness doesn't know yet are the slot's from now on. Raises the SetupError that
        says what is wrong.
        """
        name = self._settings.slot
        self._memory.accepted = self._memory.accepted or accept_gap
        # The slot is read before the witness: both only grow, and the witness is written first.
        found, pending = await self.control.run(lambda conn: slot.finish_pending(conn, self._settings))
        self.publication = await self.control.run(
            lambda conn: publication.look(conn, self._settings.publication, self._tables)
        )
        self.witness = await self.control.run(lambda conn: witness.read(conn, name))
        self._holder = (found.active_pid or 0) if found is not None and found.active else None
        if self.witness is Absent.ROW and found is not None and self._holder is None:
            await self._remember_row()
        self._writes = self._holder is None and (begins or accept_gap or not self._new_tables())
        said = self._last_said()
        if found is not None or pending is not None or isinstance(said, Absent):
            try:
                slot.require(found, name, pending=pending)
            except SlotMissing as missing:
                raise await self._for_this_role(missing, slip=pending is None) from None
        self.position = found.confirmed_flush_lsn if found is not None else None
        self.seen(self.position)
        judged = witness.judge(name, said, found, self.server)
        if judged.note is not None:
            self._notice(judged.note)
        if said is not self.witness:
            self._notice(f"{Absent.TABLE.value}: a slot that is moved while no relay runs can't be noticed")
        if judged.error is not None:
            self._refuse_unless(accept_gap and found is not None, judged.error)
        if (another := await self._another_publication()) is not None:
            self._refuse_unless(accept_gap and isinstance(another, PublicationReplaced), another)
        left_out = belonging.feeds_others(self._settings, self.publication, self._fed)
        if left_out is not None:
            self._refuse_unless(accept_gap, left_out)
        try:
            await self._look_back(found)
        except PublicationReplaced as replaced:
            self._refuse_unless(accept_gap, replaced)
            self.watch.accept()
        if left_out is None and self.publication.identity is not None:
            await self._require_all_named(accepted=accept_gap)
        await self.control.run(lambda conn: synchronous.require_not(conn, self.application_name))
        await self._renew_witness(accepted=accept_gap)
        if self._holder is None or self.row is not None:
            self._memory.row = self.row or (said if isinstance(said, Witness) else None)
        await self._tell_of_tables()

    @property
    def _known_row(self) -> Witness | None:
        """The row as this process knows it, if it speaks of this server."""
        row = self._memory.row
        return row if row is not None and row.system_identifier == self.server.system_identifier else None

    async def _remember_row(self) -> None:
        """Write the row again that somebody has deleted since we knew it, so that it says what became of the slot."""
        row = self._known_row
        if row is not None:
            await self.control.run(lambda conn: witness.write(conn, row))
            self.witness = row

    def _last_said(self) -> Witness | Absent:
        """What the witness says, or said before somebody dropped its table since, unless another streams now."""
        if self.witness is Absent.TABLE and self._holder is None:
            return self._known_row or self.witness
        return self.witness

    async def _for_this_role(self, missing: SlotMissing, *, slip: bool) -> SlotMissing:
        """The same with what else is missing, and the step as our role can do it; `slip`: the name may be one."""
        name, problem = self._settings.slot, self.publication.problem
        also = f"; {problem}" if slip and problem is not None and self.publication.identity is None else ""
        step = await self._by_whom(missing.next)
        told = SlotMissing(f"{missing}{also}", next=step)
        return await self.control.run(lambda conn: slips.slot(conn, told, name)) if slip else told

    async def _by_whom(self, step: str) -> str:
        name, tables = self._settings.publication, self._tables
        return await self.control.run(lambda conn: owning.by_whom(conn, step, name, tables))

    async def _require_all_named(self, *, accepted: bool) -> None:
        """Refuse where the publication names tables whose rows nobody would deliver.

        Where another slot may feed them it is only told of: these rows are passed over here, and confirmed.
        """
        name, slot_name = self._settings.publication, self._settings.slot
        found = await self.control.run(
            lambda conn: publication.passed_over(conn, name, self._tables, slot_name)
        )
        if found is None:
            return
        if not found.fed and not self._memory.left_behind.issuperset(found.tables):
            self._refuse_unless(accepted, found.refusal(slot_name, self._tables))
            self._memory.left_behind.update(found.tables)
        self._notice(f"{found}: rows of those are passed over, and no other relay gets them from this slot")

    async def _tell_of_tables(self) -> None:
        """Warn of tables without a primary key, which who looks for a row again needs, and of those with heirs."""
        for table in self._tables:
            if not await self.control.run(partial(outbox.primary_key, table=table)):
                self._notice(f"{table} has {outbox.KEYLESS}")
            if found := await self.control.run(partial(heirs.unnamed, table=table, named=self._tables)):
                self._notice(f"{heirs.told(table, found)}; {heirs.remedy(found)}")

    async def _look_back(self, found: Slot | None) -> None:
        """Compare the publication with what is known of it, and write down what happened to it."""
        watch, state = self.watch, self.publication
        row = self.row
        if row is not None:
            watch.recall(row)
        unknown = watch.known is None
        if row is not None and row.identity is not None:
            state = await self._of_the_slot(row.identity)
        elif unknown:
            await self._require_no_slip()
        before = watch.incidents, watch.unwritten
        finding = watch.look(state, self.position)
        if unknown and finding.problem is None and found is not None:
            await self._require_older(found)
        if row is not None and (self._writes or (finding.problem is not None and self._holder is None)):
            known = str(watch.known) if watch.known is not None else row.publication
            noted = replace(row, publication=known, incidents=watch.incidents)
            if noted != row:
                await self.control.run(lambda conn: whole.forget(conn, self._settings.slot))
                await self.control.run(lambda conn: witness.write(conn, noted))
                self.witness = noted
            watch.unwritten = ()
        if finding.problem is not None:
            wrong = finding.wrong(self._settings.slot)
            raise PublicationWrong(str(wrong), next=await self._by_whom(wrong.next))
        try:
            watch.require(self._settings.slot)
        finally:
            if row is not None and row.identity is not None and not self._writes:
                watch.incidents, watch.unwritten = before  # the row still tells it to the next look
        if finding.incident is not None:
            self._notice(finding.incident.message)

    async def _another_publication(self) -> SetupError | None:
        """Why the publication that we are told of isn't the one that the witness row names, if so."""
        settings, state, known = self._settings, self.publication, self._fed
        if known is None:
            return None
        return await self.control.run(
            lambda conn: belonging.another_publication(conn, settings, state, known)
        )

    def _new_tables(self) -> bool:
        return self._fed is not None and bool(belonging.strange(self._tables, self.publication, self._fed))

    async def _of_the_slot(self, known: Identity) -> PublicationState:
        settings, tables, state = self._settings, self._tables, self.publication
        return await self.control.run(
            lambda conn: belonging.of_the_slot(conn, settings, tables, state, known)
        )

    async def _require_no_slip(self) -> None:
        """Without a memory: refuse a publication or table that there isn't, naming the one that was meant."""
        settings, tables, state = self._settings, self._tables, self.publication
        slip = await self.control.run(lambda conn: belonging.beside(conn, settings.slot, tables, state))
        if slip is not None:
            raise slip
        if state.problem is not None and state.identity is None:
            meant = await self.control.run(lambda conn: slips.look(conn, settings, tables))
            if meant.next != state.next:
                meant.require()

    async def _require_older(self, found: Slot) -> None:
        """Without a memory: refuse a publication that wasn't there yet, or not as it is, when the slot was made.

        Rows that were written in between are skipped by the server, on 18 in silence. A slot is made with the oldest
        catalog_xmin of the server's logical slots, so where there are others a person has to know.
        """
        identity = self.publication.identity
        if identity is None or found.catalog_xmin is None or not identity.since(found.catalog_xmin):
            return
        name = self._settings.publication
        ((others,),) = await self.control.run(lambda conn: execute(conn, _OTHER_SLOTS, (found.name,)))
        if others:
            self._notice(
                f"publication {name} may have been made or altered after the slot {found.name}: then rows that were"
                " inserted in between are skipped"
            )
            return
        raise PublicationReplaced(
            f"publication {name} was made or altered after the slot {found.name}: rows that were inserted in"
            " between are skipped",
            next=f"to go on without such rows: {accept_gap(found.name)}",
        )

    def _notice(self, what: str) -> None:
        """Say once what a person should know and can't be told otherwise."""
        if what not in self._memory.noticed:
            self._memory.noticed.add(what)
            _log.warning("noticed", what=what, slot=self._settings.slot)

    def _refuse_unless(self, accepted: bool, error: SetupError) -> None:
        if not accepted:
            raise error
        if self._holder is not None:
            raise type(error)(
                str(error),
                next=f"stop the relay that streams from the slot (process {self._holder}), then: {error.next}",
            )
        _log.warning("gap accepted", error=str(error), slot=self._settings.slot)

    async def _renew_witness(self, *, accepted: bool) -> None:
        """Make the row where there is none, and let it speak of this server and publication."""
        if self.witness is Absent.TABLE or self.position is None or not self._writes:
            return
        known = self.row
        same_server = (
            known is not None
            and known.system_identifier == self.server.system_identifier
            and known.timeline == self.server.timeline
        )
        row = Witness(
            slot=self._settings.slot,
            system_identifier=self.server.system_identifier,
            timeline=self.server.timeline or 0,
            position=max(known.position, self.position) if known and same_server else self.position,
            publication=str(self.publication.identity),
            incidents=self.watch.incidents,
            snapshot=known.snapshot if known is not None and same_server and not accepted else None,
        )
        if row != known:
            await self.control.run(lambda conn: witness.write(conn, row))
        if accepted:
            await self.control.run(lambda conn: whole.forget(conn, self._settings.slot))
        self.witness = row

    def was_set_back(self, delivered: int) -> bool:
        """Whether the server knows less than it did, as after a restore; `delivered`: where it had been for sure.

        A crash takes nothing back of what was committed to the witness or streamed. Without a witness table the slot's
        position counts, which a crash may set back: that is a wrong guess on the safe side.
        """
        known = self.row.position if self.row is not None else self.position
        ends = self.publication.insert_lsn
        back = (known or ZERO) < self._memory.proven or (ends is not None and ends < delivered)
        if back:
            self._memory.proven = ZERO
        return back

    async def stand_by(self, standing_by: Callable[[Backend], None]) -> None:
        """Wait while another walsender has the slot; `standing_by` is told which."""
        name = self._settings.slot
        while (holder := await self.control.run(lambda conn: backend.holder(conn, name))) is not None:
            standing_by(holder)
            await asyncio.sleep(POLL)

    async def stream(self) -> ReplicationStream:
        """Start the slot's walsender on the server of the control connection.

        Raises SlotBusy when another was quicker, and what `sqlstate` has for the start.
        """
        if self._holder is not None:
            raise SlotBusy(
                f"process {self._holder} streamed from the slot {self._settings.slot} at the last look",
                next="nothing to do: the relay looks again by itself",
            )
        connection = await connect_replication(
            self._settings, application_name=self.application_name, like=self.control.connection
        )
        try:
            server.require_same(self.server, await server.identify(connection))
            timeout, own = await _sender_timeout(connection), await backend.own(connection)
            stream = ReplicationStream(connection, sender_timeout=timeout, backend=own)
            await stream.start(self._settings.slot, self._settings.publication)
        except BaseException:
            await connection.close()
            raise
        return stream

    async def ours(self) -> dict[int, TableName]:
        """Our tables by their OIDs and those of their partitions.

        The stream knows a table by it that went by another name for a while, and sends rows under a partition's
        when the publication didn't name the root for a while.
        """
        identity = self.publication.identity
        found: dict[int, TableName] = {}
        for name, member in identity.members if identity is not None else ():
            rows = await self.control.run(partial(execute, query=_PARTITIONS, parameters=(member.table,)))
            found |= dict.fromkeys((int(oid) for (oid,) in rows), TableName.parse(name))
        return found

    async def runs(self, xid: int) -> bool:
        """Whether a transaction hasn't ended yet for whoever looks, though its commit may be on disk."""
        return await self.control.run(partial(transaction.runs, xid=xid))

    def guarded(self, stream: ReplicationStream) -> Guarded:
        """What the guard watches while this stream runs."""
        return Guarded(
            slot=self._settings.slot,
            publication=self._settings.publication,
            tables=self._tables,
            application_name=self.application_name,
            timeline=self.server.timeline or 0,
            walsender_pid=stream.pid,
        )

    def remedied(self, unseen: PublicationUnseen) -> PublicationUnseen:
        """The same with a remedy that leaves no row out where the slot has only been made, or a backfill done.

        A row of the witness has a snapshot as soon as something was delivered from its slot. Who has just accepted a
        gap knows that rows are missing.
        """
        fresh = self.row is not None and self.row.snapshot is None
        if fresh and not self._memory.accepted:
            return PublicationUnseen(str(unseen), next=begin_with_the_table(self._settings.slot))
        return unseen

    def seen(self, position: LSN | None) -> None:
        """The slot stands there, as a look at it has shown."""
        self._memory.taken = position or ZERO

    async def advance(self, position: LSN, snapshot: str | None) -> None:
        """Write into the witness row, if there is the table, that everything up to `position` is delivered."""
        if self.row is not None:
            row = replace(self.row, position=position, snapshot=snapshot)
            await self.control.run(lambda conn: witness.advance(conn, row))
            self.witness = self._memory.row = row
        elif self._memory.row is not None:
            self._memory.row = replace(self._memory.row, position=position, snapshot=snapshot)
        self._memory.proven = position

    async def note(self) -> None:
        """Write new incidents into the witness row, if there is the table, and the publication as it is known now."""
        if self.row is not None and self.watch.unwritten:
            row = replace(self.row, publication=str(self.watch.known), incidents=self.watch.unwritten)
            await self.control.run(lambda conn: whole.forget(conn, self._settings.slot))
            await self.control.run(lambda conn: witness.note(conn, row))
            self.witness = self._memory.row = replace(row, incidents=self.watch.incidents)
            self.watch.unwritten = ()

    async def end_of_wal(self) -> LSN:
        """A position behind everything that is committed now, which the stream reaches even if nothing more comes."""
        for _ in range(20):
            ((inserted, flushed),) = await self.control.run(lambda conn: execute(conn, _END_OF_WAL))
            if LSN.parse(flushed) >= LSN.parse(inserted):
                break
            await asyncio.sleep(0.1)  # the WAL writer flushes asynchronous commits a few times a second
        return LSN.parse(flushed)

    async def close(self) -> None:
        """Close the control connection, if it was ever opened."""
        if hasattr(self, "control"):
            await self.control.close()


_PARTITIONS: Final[LiteralString] = """
{family}
select relation::int8 from family
""".replace("{family}", FAMILY_OF_OID)
_OTHER_SLOTS: Final[LiteralString] = """
select exists (select from pg_replication_slots where slot_name <> %s and catalog_xmin is not null)
"""
_END_OF_WAL: Final = "select pg_current_wal_insert_lsn()::text, pg_current_wal_flush_lsn()::text"


async def _sender_timeout(connection: Connection) -> float:
    ((milliseconds,),) = await execute(
        connection,
        "select setting::int8::text from pg_settings where name = 'wal_sender_timeout'",
        stage="identify",
    )
    return int(milliseconds) / 1000
