"""The first slot of a name: no row falls between what was in the table before and what comes from the slot.

The slot is made first, as `<slot>_pending`, and the rows are counted after it, in a new snapshot, under the slot's
advisory lock, once all that was committed before it can be seen (`pending.everything_visible`).

The configured name appears last. The order is: a note of the publication, pending slot, count, witness row, copy to
its name, failover, end of the pending slot. A crash leaves one of these, and the next `init` goes on from there:

| left behind | what it proves | what `init` does |
|---|---|---|
| a note alone | nothing | writes it anew, makes the slot |
| pending slot, note | nothing was decided yet | keeps it, counts the rows again |
| the same, but the WAL is lost, or the publication isn't that of the note | rows may be missing | nothing: 78 |
| pending slot, witness row at its start | the rows were counted, given up or published | copies it to its name |
| both slots | the same | failover, drops the pending one; so does `start` |
| witness row alone | a slot that was in use is gone | nothing: 78, events may be missing |

Where rows may be unsent the pending slot stays without a witness row: nothing is decided, and `backfill` publishes
them and goes the rest of the way. A `backfill` that was killed leaves one of the first four as well, and either
command goes on from there; from the third only `backfill`, for it reads the table. The pending slot is never moved
forward, so that rows which come and go meanwhile are behind it.

The witness row comes before the copy, so that a slot that can be streamed from always has one: were it the
other way round, a slot that was dropped and made again after a crash at that place would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cdc_outbox.errors import CdcOutboxError, MappingError, MissingRight, SetupError
from cdc_outbox.postgres import heirs, outbox, slip, slot, table_wanted, whole
from cdc_outbox.postgres.blocker import Blocker
from cdc_outbox.postgres.catalogue import NoMark
from cdc_outbox.postgres.connection import Connection, end_with_us
from cdc_outbox.postgres.named_words import require_words
from cdc_outbox.postgres.pending import decide, decided, everything_visible, require_complete, witness_row
from cdc_outbox.postgres.pending_note import note
from cdc_outbox.postgres.server import Server
from cdc_outbox.postgres.slot import Slot
from cdc_outbox.postgres.steps import InitOptions
from cdc_outbox.postgres.unsent import COUNT_LIMIT, count_unsent, see_whole, unsent_by_value
from cdc_outbox.table.compiler import bookkeeping
from cdc_outbox.table.own_words import is_told
from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.sent import Bookkeeping

if TYPE_CHECKING:
    from typing import TypeVar

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

    Answer = TypeVar("Answer")


class Uncounted(MissingRight):
    """The rows can't be counted: nothing that the SQL of a step would mend."""


@dataclass(slots=True)
class FirstSlot:
    """One try at it. `relay` makes the slot, `owner` reads the tables; `unfit` is why a table has no mapping as yet."""

    settings: Settings
    options: InitOptions
    owner: Connection
    relay: Connection
    unfit: Sequence[MappingError]
    waiting: Callable[[Sequence[Blocker]], None] | None
    parts: dict[str, whole.Keys] = field(default_factory=dict)
    """Those of the tables of which is known which rows are left behind, unless the slot is refused."""

    @property
    def name(self) -> str:
        """The slot's own."""
        return self.settings.postgres.slot

    async def named(self, server: Server) -> Slot:
        """The slot under its name, from whatever an earlier run left; the caller holds the lock."""
        there, pending = await slot.inspect_both(self.relay, self.name)
        if there is not None:
            there, _ = await slot.hand_over(self.relay, self.settings.postgres) if pending else (there, None)
            return slot.require(there, self.name)
        state = await slip.look(self.relay, self.settings.postgres, self.settings.outbox.tables)
        state.require()
        row = await witness_row(self.relay, self.owner, self.name)
        done = decided(row, pending, server)
        if pending is not None:
            await require_complete(self.relay, self.owner, self.name, pending, row, server, state)
        else:
            await note(self.relay, self.owner, self.name, server, state.identity)
        if not done:
            made = await self.counted_slot(pending)
            try:
                await decide(self.relay, self.owner, self.name, server, made, state.identity, self.parts)
            except MissingRight:
                if pending is None:
                    await slot.drop(self.relay, made.name)
                raise
        named, _ = await slot.hand_over(self.relay, self.settings.postgres)
        return slot.require(named, self.name)

    async def counted_slot(self, pending: Slot | None) -> Slot:
        """The pending slot, made if there is none, with no row before it that may be unsent, or with leave to go on.

        Rows that may be unsent are an error, and the slot stays, for `backfill` to go on from, unless the mapping has
        to be mended first, for then nobody can publish them yet; so does one before which not everything is visible in
        time. On any other failure one that was made here is dropped: an abandoned slot
        fills the disk.
        """
        made = pending or await slot.create(
            self.relay,
            slot.pending_name(self.name),
            failover=self.options.failover,
            watcher=self.owner,
            within=self.options.wait,
            waiting=self.waiting,
        )
        await everything_visible(self.owner, made, self.name, within=self.options.wait, waiting=self.waiting)
        try:
            if not self.options.backfill:
                self.parts = await self.watched(self.left_behind())
                return made
            self.parts = {name: [] for of in await self.rows() for name in await whole.parts(self.owner, of)}
            counted = await self.watched(self.counted())
        except BaseException:
            if pending is None:
                with suppress(CdcOutboxError):
                    await slot.drop(self.relay, made.name)
            raise
        held = {table: found for table, found in counted.items() if found[0]}
        if held and self.unfit:
            if pending is None:
                await slot.drop(self.relay, made.name)
            raise self.unfit_for_backfill(held)
        if held:
            raise self.backfill_needed(made, held)
        return made

    async def watched(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        """Do what reads the tables over the owner's connection; raise TableWanted where somebody waits for one."""
        await end_with_us(self.owner)
        pid = self.owner.info.backend_pid
        async with table_wanted.watched(
            self.relay, lambda: pid, next=lambda: "let it be done, then run the same init again"
        ) as looking:
            return await table_wanted.unless(looking, work)

    async def counted(self) -> dict[TableName, tuple[int, str]]:
        """The rows of each table that may be unsent."""
        return {table: await self.unsent(table) for table in self.settings.outbox.tables}

    async def rows(self) -> list[whole.Rows]:
        """The rows of the tables that are sent, as far as the tables fit."""
        settings, found = self.settings.outbox, []
        for table in settings.tables:
            with suppress(MappingError):
                shape = Shape(await outbox.columns(self.owner, table) or ())
                found.append(await whole.rows(self.owner, settings, table, shape))
        return found

    async def left_behind(self) -> dict[str, whole.Keys]:
        """The rows that a person leaves out, by the parts of the tables; no parts where they can't be read in time."""
        found: dict[str, whole.Keys] = {}
        for of in await self.rows():
            there = await whole.parts(self.owner, of)
            room = whole.LIMIT - sum(map(len, found.values()))
            with suppress(CdcOutboxError):
                await see_whole(self.owner)
                found |= await whole.left_behind(self.owner, of, there, room=room, within=COUNT_LIMIT + 5)
        return found

    async def unsent(self, table: TableName) -> tuple[int, str]:
        """How many rows of the table may be unsent, and how many of each value that tells of them, in words."""
        columns = await outbox.columns(self.owner, table) or ()
        settings = self.settings.outbox
        shape = Shape(columns)
        try:
            known = bookkeeping(settings, table, shape)
        except MappingError:
            if is_told(settings):
                raise
            known = Bookkeeping()  # it is named as unfit; until it is mended each row is in doubt
        if any(isinstance(error, NoMark) and error.table == table for error in self.unfit):
            known = Bookkeeping()
        await require_words(self.owner, table, settings, known)
        await heirs.tell(self.owner, table, settings.tables)
        try:
            count = await count_unsent(self.owner, table, columns, settings, known)
            return count, await unsent_by_value(self.owner, table, shape, settings, known) if count else ""
        except MissingRight as error:
            raise Uncounted(
                f"the rows of {table} that may be unsent can't be counted: {error}",
                next="name a role that may read the table with --admin-dsn, or leave its rows out: "
                f"cdc-outbox init --no-backfill --slot {self.name}",
            ) from error

    def unfit_for_backfill(self, held: Mapping[TableName, tuple[int, str]]) -> SetupError:
        """The error for rows that nobody could publish as yet: the old relay has to go on until they can be."""
        return SetupError(
            f"{'; '.join(map(str, self.unfit))}; {_counts(held)} from before the slot that may be unpublished, "
            "and the old relay has to go on until they can be published from here",
            next=f"{'; '.join(error.next for error in self.unfit)}; then run the same init with that, which says how "
            "these rows are published",
        )

    def backfill_needed(self, pending: Slot, held: Mapping[TableName, tuple[int, str]]) -> SetupError:
        by_value = "".join(f"; {table} {words}" for table, (_, words) in held.items() if words)
        old = "stop the old relay" if by_value else "stop what else sends these rows, if anything does"
        return SetupError(
            f"{_counts(held)} from before the slot that may be unpublished; what is written from now on is kept "
            f'behind the slot "{pending.name}"{by_value}',
            next=f"{old}, then publish them: cdc-outbox backfill --slot {self.name}; or leave them out: "
            f"cdc-outbox init --no-backfill --slot {self.name}",
        )


def _counts(held: Mapping[TableName, tuple[int, str]]) -> str:
    return " and ".join(
        f"{table} holds {count} {'row' if count == 1 else 'rows'}" for table, (count, _) in held.items()
    )
