"""Where is my event: in the table, in the slot, at Kafka.

The table has the row, or hasn't. What the slots of the table have proven says whether it was delivered; where they
haven't yet, a relay at work is given a moment, and a slot that nobody reads from is read, without consuming anything,
until the event comes or all that it has is seen. Where the event goes at Kafka follows from the row, and so does what
keeps it from going there; whether it is there is looked up when asked for.

A row doesn't hold its position in the stream. It is known while the row waits in the slot, and not afterwards.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdc_outbox.ended import ended
from cdc_outbox.errors import CdcOutboxError, PoisonEvent, SlotBusy, UsageError
from cdc_outbox.postgres import peek, rows_by_id, slot, table_wanted, whole, witness
from cdc_outbox.postgres.acknowledged import acknowledged
from cdc_outbox.postgres.catalogue import required
from cdc_outbox.postgres.connection import connect_control, end_with_us
from cdc_outbox.postgres.outbox import indexed
from cdc_outbox.postgres.standing import standing
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.repair import at_kafka
from cdc_outbox.repair.books import Reader, ids_placed
from cdc_outbox.repair.planned import planned
from cdc_outbox.repair.whereabouts import AFTER_ALL, ROWS, SEARCH, Delivery, Event, InSlot, told_by_row
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.rows_by_id import Stored
    from cdc_outbox.postgres.streamed_rows import Row
    from cdc_outbox.repair.books import IdFrom
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan

APPLICATION_NAME: Final = "cdc-outbox find"

PATIENCE: Final = 5.0
"""Seconds that a relay at work has to prove the event: two of its rounds, of a second each when nothing slows it."""

POLL: Final = 0.25

ELSEWHERE: Final = "the table marks it as sent by another relay"
BEHIND: Final = (
    "a row with its key was there before the slot, and was left out of what is sent, as by --no-backfill or "
    "--failed skip"
)


async def find(
    settings: Settings,
    event_id: str,
    *,
    in_topic: bool = False,
    ids_from: Sequence[IdFrom] = (),
    told: Callable[[str], None] = lambda what: None,
) -> list[Event]:
    """All that is known of the events with this id, in each of the tables; empty where there is none.

    `in_topic`: look for them at Kafka too, by the header `id`, by one that the settings fill with the id, or by
    `ids_from`. `told` hears what makes it slow, and of what can't be known. Raises UsageError for what
    can't be an id, SetupError, MissingRight, PostgresUnavailable.
    """
    placing = asyncio.create_task(at_kafka.placement(settings.kafka, told))
    try:
        relay = await connect_control(settings.postgres, application_name=APPLICATION_NAME)
        try:
            owner = await connect_control(settings.postgres, application_name=APPLICATION_NAME, admin=True)
            try:
                search = _Search(settings, event_id, relay, owner, told)
                events = await search.events()
            finally:
                await owner.close()
        finally:
            await relay.close()
        placement = await placing
        events = [at_kafka.stuck(await at_kafka.placed(event, placement)) for event in events]
    finally:
        await ended(placing)
    if in_topic:
        events = [
            at_kafka.concluded(
                await at_kafka.sought(settings.kafka, event, [*ids_from, *search.ids_from[event.table]]),
                event_id,
                _replay(settings.outbox.tables, event.table, event_id),
            )
            for event in events
        ]
    return events


class _Search:
    """The search for one id."""

    def __init__(
        self,
        settings: Settings,
        event_id: str,
        relay: Connection,
        owner: Connection,
        told: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._slot = settings.postgres.slot
        self._id = event_id
        self._relay = relay
        self._owner = owner
        self._told = told
        self._unindexed: set[TableName] = set()
        self.ids_from: dict[TableName, tuple[IdFrom, ...]] = {}
        """Where the settings put the id of each table's events, beside the header `id`."""

    async def events(self) -> list[Event]:
        """The rows of all tables, and what waits in the slot alone, in the order of the tables."""
        events: list[Event] = []
        unproven: list[tuple[Plan, Acknowledged, Stored]] = []
        refused: dict[TableName, UsageError] = {}
        tables = self._settings.outbox.tables
        for table in tables:
            plan = await planned(self._settings, self._owner, table)
            self.ids_from[table] = ids_placed(plan)
            proven = await acknowledged(self._relay, self._owner, self._slot, table)
            if not await indexed(self._owner, table, plan.layout.id.name):
                self._told(f"column {plan.layout.id.name} of {table} has no index: the whole table is read")
                self._unindexed.add(table)
            try:
                rows = await self._find(plan, proven)
            except UsageError as error:
                refused[table] = error
                continue
            left = any(row.delivered for row in rows) and await self._is_left_behind(plan, proven)
            events += [self._delivered(plan, proven, row, left=left) for row in rows if row.delivered]
            unproven += [(plan, proven, row) for row in rows if not row.delivered]
        if len(refused) == len(tables):
            raise next(iter(refused.values()))
        there = {event.table for event in events} | {plan.table for plan, _, _ in unproven}
        events += await self._undelivered(unproven, set(tables) - there - refused.keys())
        return sorted(events, key=lambda event: tables.index(event.table))

    async def _find(self, plan: Plan, proven: Acknowledged) -> list[Stored]:
        """The rows with the id; raise TableWanted where somebody comes to wait for a table that is read as a whole."""
        if plan.table not in self._unindexed:
            return await rows_by_id.find(self._owner, plan, proven, self._id)
        await end_with_us(self._owner)
        pid = self._owner.info.backend_pid
        async with table_wanted.watched(
            self._relay, lambda: pid, next=lambda: "let it be done, then look again"
        ) as looking:
            return await table_wanted.unless(looking, rows_by_id.find(self._owner, plan, proven, self._id))

    async def _undelivered(
        self, rows: list[tuple[Plan, Acknowledged, Stored]], absent: set[TableName]
    ) -> list[Event]:
        """Rows of which it isn't proven that they were delivered; and those of tables that lack them by now.

        The latter were deleted since they were inserted, and wait in a slot that nobody reads from.
        """
        found = await slot.inspect(self._relay, self._slot)
        wanted = {plan.table for plan, _, _ in rows} | (absent if found is not None else set())
        if not wanted:
            return []
        if found is not None and found.active:
            return [await self._awaited(*each) for each in rows]
        try:
            waiting = await self._in_slot(wanted)
        except SlotBusy:
            return [await self._awaited(*each) for each in rows]
        except CdcOutboxError as error:
            if not rows:
                self._told(f"the slot {self._slot} was not searched: {error}")
            return [
                told_by_row(plan, row.values, row, Delivery.UNKNOWN, str(error), error.next)
                for plan, _, row in rows
            ]
        if absent and None in waiting:
            self._told(
                f"only the first {waiting[None][0].before + 1} rows of the slot {self._slot} were searched"
            )
        return [
            *(self._waiting(plan, proven, row, waiting) for plan, proven, row in rows),
            *(
                self._in_the_slot(row, None, here)
                for table, (here, row) in waiting.items()
                if table in absent and row is not None
            ),
        ]

    def _waiting(
        self,
        plan: Plan,
        proven: Acknowledged,
        row: Stored,
        waiting: dict[TableName | None, tuple[InSlot, Row | None]],
    ) -> Event:
        """A row whose slot nobody reads from."""
        here, streamed = waiting.get(plan.table, (None, None))
        if here is not None and streamed is not None:
            event = self._in_the_slot(streamed, row, here)
            created = plan.created_us(row.values, 0) or None
            return replace(event, texts=plan.raw(row.values), created_us=created)
        if None in waiting:
            said = f"waits behind more than the first {ROWS} rows of the slot {self._slot}, or isn't in it"
            return told_by_row(plan, row.values, row, Delivery.UNKNOWN, said, self._start)
        if self._sent_elsewhere(plan, row):
            return self._delivered(plan, proven, row)
        said = (
            f"the slot {self._slot} has nothing of it any more: it was delivered and that isn't proven yet, or"
            " it is older than the slot"
        )
        remedy = f"cdc-outbox find --in-topic {shlex.quote(self._id)}"
        return told_by_row(plan, row.values, row, Delivery.PASSED, said, remedy)

    def _in_the_slot(self, streamed: Row, row: Stored | None, here: InSlot) -> Event:
        """What becomes of it is told from what the slot has: an UPDATE of the row since changes nothing about that."""
        why = "and no relay streams from it" if row is not None else "and is not in the table any more"
        said = f"waits in the slot {self._slot}, {why}"
        event = told_by_row(streamed.plan, streamed.values, row, Delivery.WAITING, said, self._start)
        return replace(event, in_slot=here)

    @property
    def _start(self) -> str:
        return f"cdc-outbox start --slot {self._slot}"

    async def _is_left_behind(self, plan: Plan, proven: Acknowledged) -> bool:
        """Whether the row was there before the slots, and a person has left it out of what they send."""
        outbox = self._settings.outbox
        of = await whole.rows(self._owner, outbox, plan.table, plan.shape)
        column = plan.layout.id.name
        for proof in proven.proofs:
            if not await whole.is_left_behind(self._relay, self._owner, proof.slot, of, column, self._id):
                return False
        return bool(proven.proofs)

    def _delivered(self, plan: Plan, proven: Acknowledged, row: Stored, *, left: bool = False) -> Event:
        if left:
            look = f"cdc-outbox find --in-topic {shlex.quote(self._id)}"
            again = _replay(self._settings.outbox.tables, plan.table, self._id)
            remedy = f"where keys are used again, as after TRUNCATE … RESTART IDENTITY: {look}; {AFTER_ALL}: {again}"
            return told_by_row(plan, row.values, row, Delivery.LEFT_OUT, BEHIND, remedy)
        if self._sent_elsewhere(plan, row):
            event = told_by_row(plan, row.values, row, Delivery.DELIVERED, ELSEWHERE)
            return replace(event, sent_elsewhere=True)
        slots = ", ".join(proof.slot for proof in proven.proofs)
        return told_by_row(
            plan, row.values, row, Delivery.DELIVERED, f"proven by the witness of slot {slots}"
        )

    def _sent_elsewhere(self, plan: Plan, row: Stored) -> bool:
        """Whether the table calls the row sent, where this relay writes no marks."""
        return self._settings.outbox.mark != "update" and Reader.of(plan).sent(row.values)

    async def _awaited(self, plan: Plan, proven: Acknowledged, row: Stored) -> Event:
        """A relay is at work: give it a moment. What is confirmed beyond the end of WAL as it is now has the row."""
        end = await rows_by_id.end_of_wal(self._owner)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            await asyncio.sleep(POLL)
            proven = await acknowledged(self._relay, self._owner, self._slot, plan.table)
            alone = len(proven.proofs) == 1 and proven.horizon is not None
            found = await witness.read(self._relay, self._slot)
            if alone and isinstance(found, Witness) and found.position >= end:
                return self._delivered(plan, proven, row)
            now = await self._find(plan, proven)
            if any(each.values == row.values and each.delivered for each in now):
                return self._delivered(plan, proven, row)
        problems = await standing(self._relay, proven)
        said = "; ".join(problem for problem, _ in problems)
        remedy = "; ".join(dict.fromkeys(step for _, step in problems))
        event = told_by_row(plan, row.values, row, Delivery.UNCONFIRMED, f"not confirmed yet: {said}", remedy)
        return event if event.poison is not None else await self._streamed(event, row)

    async def _streamed(self, event: Event, row: Stored) -> Event:
        """With the reason why a relay can't send it though a replay could: it is due later, and a stream can't wait."""
        settings, now_us = self._settings, time.time_ns() // 1000
        mapping = Mapping(settings.outbox, self._slot)
        plan = await required(self._owner, mapping, event.table, settings.postgres.publication)
        try:
            plan.encode(row.values, 0, 0, max(now_us, event.created_us or 0))
        except PoisonEvent as poison:
            return replace(event, poison=poison, message=None)
        return event

    async def _in_slot(self, wanted: set[TableName]) -> dict[TableName | None, tuple[InSlot, Row | None]]:
        """Where the id comes first in each of the tables; under None how far the search got, if not to the end."""
        mapping = Mapping(self._settings.outbox, self._slot)
        found: dict[TableName | None, tuple[InSlot, Row | None]] = {}
        count, until = 0, time.monotonic() + SEARCH
        async with peek.upcoming(self._settings, mapping) as rows:
            async for row in rows:
                table = row.plan.table
                here = InSlot(row.lsn, row.seq, row.commit_us, count)
                if table in wanted and table not in found and row.plan.event_id(row.values) == self._id:
                    found[table] = (here, row)
                    if found.keys() == wanted:
                        break
                count += 1
                if count >= ROWS or time.monotonic() > until:
                    found[None] = (here, None)
                    break
        return found


def _replay(tables: Sequence[TableName], table: TableName, event_id: str) -> str:
    """The command that sends a row of the table again: with `tables`, all that were named, it has to name the one."""
    named = f" --table {shlex.quote(str(table))}" if len(tables) > 1 else ""
    return f"cdc-outbox replay{named} --id {shlex.quote(event_id)}"
