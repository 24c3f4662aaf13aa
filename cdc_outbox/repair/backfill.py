"""Rows that were in the table before the slot: published from the table, and only then the slot gets its name.

No row is lost between the two. The pending slot is made first, the table is read afterwards, under one snapshot, once
all that was committed before the slot's position can be seen (`pending.everything_visible`): that is in the snapshot,
what was committed after the position comes from the slot, and what lies between comes twice. Nothing is overtaken
either, for the stream begins when all of it was confirmed. And none of it depends on what an earlier run has done:
after a kill the next one reads the table anew.

The order is: no row in the old relay's hands, a broker that answers, a note of the publication, pending slot, all
before it visible, snapshot, publish, confirmed by the broker, witness row, copy of the slot to its name, failover, end
of the pending slot. The last four are those of `postgres/pending.py` and `slot.hand_over`, shared with `init`; whoever
finds them half done goes on.
All of it happens under the slot's advisory lock, and its loss is noticed before anything is decided: the lock's own
session writes the witness row.

Beside the passage somebody looks after the database, which comes first: the pending slot keeps WAL, so its room is told
and its loss ends us; and a session that waits to have the table to itself makes the application's inserts wait behind
it, so we step aside. That is looked for from the first read on, and who waits is given a moment to give up by himself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cdc_outbox import faults, log
from cdc_outbox.ended import ended
from cdc_outbox.errors import (
    CdcOutboxError,
    MissingRight,
    PublicationReplaced,
    SetupError,
    SlotLost,
    SlotMissing,
)
from cdc_outbox.postgres import (
    heirs,
    outbox,
    pending,
    pending_note,
    publication,
    slip,
    slot,
    table_rows,
    table_wanted,
    whole,
)
from cdc_outbox.postgres.catalogue import required
from cdc_outbox.postgres.connection import Connection, connect_control
from cdc_outbox.postgres.peek import holding
from cdc_outbox.postgres.publication_identity import Change, compare
from cdc_outbox.postgres.server import identity, require_able, require_one_database, require_primary
from cdc_outbox.postgres.slot import WAIT, Slot
from cdc_outbox.postgres.waiting_rows import Choice, Waiting, waiting
from cdc_outbox.repair.old_relay import require_at_rest
from cdc_outbox.repair.passage import Passage
from cdc_outbox.repair.room import Room
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine
    from typing import TypeVar

    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.postgres.publication_identity import Identity
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan

    Answer = TypeVar("Answer")

_log = log.get(__name__)

Parts: TypeAlias = "tuple[whole.Rows, dict[str, int]]"
"""The rows of a table and its parts, as `whole` has them."""

APPLICATION_NAME: Final = "cdc-outbox backfill"

STALE: Final = 300.0
"""Seconds after which a row in the old relay's hands is taken for one that it has dropped."""


@dataclass(frozen=True, slots=True)
class Options:
    """`overlap`: go on though the slot exists. `stale`: see STALE; with 0 nothing is in the old relay's hands.

    `failover` and `wait` are for making the slot.
    """

    choice: Choice = field(default_factory=Choice)
    overlap: bool = False
    stale: float = STALE
    failover: bool = True
    wait: float = WAIT


@dataclass(frozen=True, slots=True)
class Report:
    """What was done. `published` are confirmed events; `left_out` rows by reason.

    `finished_before`: an earlier run had published all rows, and only the slot's name was left to give.
    """

    slot: Slot
    rows: int = 0
    published: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    finished_before: bool = False


@dataclass(slots=True)
class Listener:
    """Who hears of the progress. `agree` is shown what will be read, and says whether to go on."""

    agree: Callable[[Sequence[Waiting]], bool]
    blocked: Callable[[Sequence[Blocker]], None] = lambda blockers: None
    begun: Callable[[int], None] = lambda total: None
    moved: Callable[[int], None] = lambda confirmed: None


async def backfill(settings: Settings, options: Options, listener: Listener) -> Report | None:
    """Publish the rows that wait in the tables, and give the pending slot its name. None where nobody agreed.

    Raises SetupError and its kin for what a person must mend; SlotBusy for another process at the same work, and while
    rows are in the old relay's hands; PoisonEvent; SlotLost; TableWanted; PostgresUnavailable, KafkaUnavailable.
    Whatever is raised, the slot keeps its pending name and the next run starts anew.
    """
    faults.warn()
    name = settings.postgres.slot
    async with AsyncExitStack() as stack:
        owner = await connect_control(settings.postgres, application_name=APPLICATION_NAME, admin=True)
        stack.push_async_callback(owner.close)
        relay = await connect_control(settings.postgres, application_name=APPLICATION_NAME)
        stack.push_async_callback(relay.close)
        server = await identity(relay)
        require_primary(server)
        await require_one_database(owner, relay)
        await table_rows.patient(owner)
        await require_able(relay)
        await stack.enter_async_context(slot.lock(relay, name, within=options.wait))
        return await _Backfill(settings, options, listener, owner, relay, server).run()


class _Backfill:
    """One run. `owner` reads the tables, `relay` has the lock and what is the slot's."""

    def __init__(
        self,
        settings: Settings,
        options: Options,
        listener: Listener,
        owner: Connection,
        relay: Connection,
        server: Server,
    ) -> None:
        self.settings = settings
        self.options = options
        self.listener = listener
        self.owner = owner
        self.relay = relay
        self.server = server
        self.name = settings.postgres.slot
        self.began = time.monotonic()
        self.whole: dict[str, whole.Keys] = {}
        """The parts of the tables of which is known which rows are left behind, once the rows are read."""

    async def run(self) -> Report | None:
        there, waits = await slot.inspect_both(self.relay, self.name)
        if there is not None and waits is not None:
            return await self.name_it()
        if there is not None and not self.options.overlap:
            slot.usable(there)
            await self.require_tables()
            raise SetupError(
                f'the slot "{self.name}" exists: what was in the table before it was published or left out by then',
                next=f"cdc-outbox start --slot {self.name}; or, to publish rows of the table again with the relay "
                f"stopped: cdc-outbox backfill --overlap --slot {self.name}",
            )
        state = await self.publication()
        gap: pending_note.Gap | None = None
        if there is None and waits is not None:
            slot.usable(waits)
            row = await pending.witness_row(self.relay, self.owner, self.name)
            done = pending.decided(row, waits, self.server)
            gap = await pending.gap(
                self.relay, self.owner, waits, row, self.server, self.settings.postgres.publication, state
            )
            if done and gap is None:
                return await self.name_it()
            if gap is not None:
                self.tell_of(gap, waits)
        elif there is None:
            pending.decided(await pending.witness_row(self.relay, self.owner, self.name), None, self.server)
        chosen = await self.watched(self.chosen())
        if not self.listener.agree(chosen):
            return None
        await self.watched(self.require_at_rest(chosen))
        passage = Passage(self.settings, [each.plan for each in chosen], moved=self.listener.moved)
        await passage.reach()
        if there is not None:
            await self.overlap(passage, chosen)
            return self.report(slot.require(there, self.name), passage)
        made = waits
        if made is None or (gap is not None and not gap.passable):
            made = await self.pending_slot(waits, state)
        faults.backfill_held("slot")
        await pending.everything_visible(
            self.owner, made, self.name, within=self.options.wait, waiting=self.listener.blocked
        )
        parts = await self.parts(chosen)
        try:
            ended = await pending_note.ended(self.relay, self.owner, made, self.server)
            placed = [each.in_order_with(made, ended) for each in chosen]
            await self.publish(passage, made.name, placed, parts)
        except (SlotLost, SlotMissing):
            raise
        except BaseException:
            _log.warning(
                "the slot keeps WAL until the rows are published",
                slot=made.name,
                next=f"run this again; or to give the slot up: cdc-outbox drop --slot {self.name}",
            )
            raise
        faults.backfill_held("published")
        await self.decide(made, state)
        report = await self.name_it()
        return self.report(report.slot, passage)

    async def publication(self) -> Identity | None:
        """The publication as it is; it has to be there before the slot.

        Raises PublicationWrong; SetupError where it has a table that we aren't told of: its rows would be left behind.
        """
        postgres = self.settings.postgres
        tables = self.settings.outbox.tables
        state = await slip.look(self.relay, postgres, tables)
        state.require()
        besides = await publication.passed_over(self.relay, postgres.publication, tables, self.name)
        if besides is not None and not besides.fed:
            raise besides.refusal(self.name, tables, "backfill")
        return state.identity

    async def require_tables(self) -> None:
        """Raise SetupError for a table that there isn't."""
        for table in self.settings.outbox.tables:
            if await outbox.columns(self.owner, table) is None:
                raise await slip.no_table(self.owner, table, self.settings.outbox.tables)

    async def plans(self) -> list[Plan]:
        """How the rows of each table become messages. Raises SetupError, MappingError."""
        settings = self.settings
        mapping = Mapping(settings.outbox, self.name, source="backfill")
        plans = []
        for table in settings.outbox.tables:
            plan = await required(self.owner, mapping, table, settings.postgres.publication)
            await heirs.tell(self.owner, table, settings.outbox.tables)
            if mapping.is_news(plan):
                _log.info("mapping", mapping={str(table): plan.describe()})
            plans.append(plan)
        return plans

    async def watched(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do what reads the tables over the owner's connection; raise TableWanted where somebody waits for one."""
        pid = self.owner.info.backend_pid
        async with table_wanted.watched(
            self.relay, lambda: pid, next=lambda: "let it be done, then run this again: nothing was sent"
        ) as looking:
            return await table_wanted.unless(looking, work)

    async def chosen(self) -> list[Waiting]:
        """The rows of each table. Raises what is wrong with them or with what a person says of them."""
        return [await waiting(self.owner, plan, self.options.choice) for plan in await self.plans()]

    async def require_at_rest(self, chosen: Sequence[Waiting]) -> None:
        """Raise SlotBusy while the old relay has rows in hand, unless a person says that it is gone."""
        if not self.options.stale:
            return
        anyway = f"cdc-outbox backfill --stale-after 0s --slot {self.name}"
        for each in chosen:
            await require_at_rest(self.owner, each.plan, stale=self.options.stale, anyway=anyway)

    def tell_of(self, gap: pending_note.Gap, waits: Slot) -> None:
        """Say which rows nobody has any more, where the application deletes what it has written."""
        _log.warning(
            "rows may be missing from the pending slot: those of them that were deleted by now are not published",
            slot=waits.name,
            committed_after=str(waits.confirmed_flush_lsn),
            why=gap.why,
            made_anew=not gap.passable,
            next="where the application deletes rows of its outbox, have it write the events of that time again",
        )

    async def pending_slot(self, unfit: Slot | None, state: Identity | None) -> Slot:
        """A new slot whose position the rows come before, in place of one that can't be used."""
        if unfit is not None:
            row = await pending.witness_row(self.relay, self.owner, self.name)
            await pending.discard(self.relay, self.owner, self.name, unfit, row)
        await pending_note.note(self.relay, self.owner, self.name, self.server, state)
        faults.backfill_held("noted")
        return await slot.create(
            self.relay,
            slot.pending_name(self.name),
            failover=self.options.failover,
            watcher=self.owner,
            within=self.options.wait,
            waiting=self.listener.blocked,
        )

    async def overlap(self, passage: Passage, chosen: Sequence[Waiting]) -> None:
        """Publish beside a slot that is there; it is ours meanwhile, so that no relay streams past the rows."""
        mapping = Mapping(self.settings.outbox, self.name)
        async with holding(self.settings, mapping, application_name=APPLICATION_NAME, tell=False) as held:
            await self.publish(passage, self.name, chosen, None, held.lost)

    async def publish(
        self,
        passage: Passage,
        kept: str,
        chosen: Sequence[Waiting],
        parts: Sequence[Parts] | None,
        *lost: asyncio.Future[CdcOutboxError],
    ) -> None:
        """Read all tables under one snapshot and publish the rows, until the bus has confirmed all of them.

        `kept` is the slot that keeps WAL meanwhile; `parts` are those of each table, where what is left behind in them
        is to be known; `lost` resolve to a reason to end.
        """
        tables = [each.table for each in chosen]
        async with (
            table_rows.snapshot(
                self.settings.postgres,
                tables,
                application_name=APPLICATION_NAME,
                like=self.owner,
                own=self.options.choice.where is not None,
            ) as reader,
            self.looking_after(kept, reader.info.backend_pid) as looking,
        ):
            moving = asyncio.create_task(self.move(passage, reader, chosen, parts), name="passage")
            ends: set[asyncio.Future[Any]] = {moving, looking, *lost}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                for reason in lost:
                    if reason.done():
                        raise reason.result()
                if looking.done():
                    looking.result()
                await moving
            finally:
                await ended(moving)

    async def move(
        self, passage: Passage, reader: Connection, chosen: Sequence[Waiting], parts: Sequence[Parts] | None
    ) -> None:
        """Count the rows, and publish them."""
        counts = [await self.counted(each, reader) for each in chosen]
        if parts is not None:
            await self.note_left_behind(reader, chosen, parts)
        self.listener.begun(sum(counts))
        for each, count in zip(chosen, counts, strict=True):
            _log.info("publishing", table=str(each.table), rows=count, which=each.rule, order=each.ordered)
            if restored := await each.count_restored(reader):
                _log.warning(
                    "left out, and published all the same: the stream would bring them after newer ones",
                    table=str(each.table),
                    rows=restored,
                )
        await passage.run(_portions(reader, chosen))

    async def counted(self, each: Waiting, reader: Connection) -> int:
        try:
            return await each.count(reader)
        except MissingRight as error:
            raise MissingRight(
                f"the rows of {each.table} can't be read: {error}",
                next="name a role that may read all rows of the table with --admin-dsn",
            ) from error

    def looking_after(self, kept: str, reader: int) -> AbstractAsyncContextManager[asyncio.Task[None]]:
        """A task that ends with an error only: the slot is lost, or someone waits for the table."""
        room = Room(kept)

        async def look() -> None:
            room.look(await slot.inspect(self.relay, kept))

        return table_wanted.watched(
            self.owner,
            lambda: reader,
            next=lambda: (
                "let it be done, then run this again: it starts anew, and rows that were sent come twice"
            ),
            also=look,
        )

    async def parts(self, chosen: Sequence[Waiting]) -> list[Parts]:
        """The parts of each table, before the snapshot: what is attached later may hold rows that nobody publishes."""
        found = []
        for each in chosen:
            of = await whole.rows(self.owner, self.settings.outbox, each.table, each.plan.shape)
            found.append((of, await whole.parts(self.owner, of)))
        return found

    async def note_left_behind(
        self, reader: Connection, chosen: Sequence[Waiting], parts: Sequence[Parts]
    ) -> None:
        """Know which rows are not going to be published, for a relay that marks rows as sent."""
        for each, (of, names) in zip(chosen, parts, strict=True):
            if (missed := each.missed) is None:
                self.whole |= {name: [] for name in names}
                continue
            room = whole.LIMIT - sum(map(len, self.whole.values()))
            self.whole |= await whole.left_behind(
                reader, of, names, missed, room=room, within=table_rows.COUNT_LIMIT
            )

    async def decide(self, made: Slot, before: Identity | None) -> None:
        """The rows are published. From the snapshot on everything has to be behind the slot."""
        now = await self.publication()
        if before is None or now is None or compare(before, now) is Change.MADE_AGAIN:
            raise PublicationReplaced(
                f"the publication {self.settings.postgres.publication} was made again meanwhile: rows of that time "
                "may not be behind the slot",
                next="run this again: it reads the table anew",
            )
        await pending.decide(self.relay, self.owner, self.name, self.server, made, before, self.whole)
        faults.backfill_held("decided")

    async def name_it(self) -> Report:
        """Give the slot its name; the work before that is done."""
        named, _ = await slot.hand_over(self.relay, self.settings.postgres)
        return Report(slot.require(named, self.name), finished_before=True)

    def report(self, named: Slot, passage: Passage) -> Report:
        left_out = dict(passage.left_out)
        return Report(
            named,
            rows=passage.taken,
            published=passage.taken - sum(left_out.values()),
            left_out=left_out,
            seconds=time.monotonic() - self.began,
        )


async def _portions(reader: Connection, chosen: Sequence[Waiting]) -> AsyncIterator[tuple[Plan, Chunk]]:
    for each in chosen:
        async for chunk in each.rows(reader):
            yield each.plan, chunk
