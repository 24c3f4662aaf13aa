"""A trial beside the old relay: rows as they are committed, and what the old relay then writes into them.

The rows come by a temporary slot that ends with the trial; nothing is consumed, published or written. What the old
relay did is read from the table by short queries, a fifth of the time at most.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.ended import ended
from cdc_outbox.errors import SetupError
from cdc_outbox.postgres import catalogue, lookup, outbox, peek
from cdc_outbox.postgres.connection import reach_operators
from cdc_outbox.postgres.table_locked import TableLocked
from cdc_outbox.postgres.unseen import Unseen
from cdc_outbox.repair.comparison import Comparison
from cdc_outbox.repair.old_book import Book
from cdc_outbox.repair.trial import attempt

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.kafka.placement import Placement
    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.lookup import Lookup
    from cdc_outbox.postgres.streamed_rows import Row
    from cdc_outbox.repair.trial import Trial
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Mapping

    Shown = Callable[[Trial], Awaitable[None]]

_log = log.get(__name__)

LINGER: Final = 1.0
"""Seconds that are read on, so that the stream brings what the table had when it was searched."""

ROUND: Final = 0.5
"""Seconds between looks at the rows that wait for their mark."""

REST: Final = 4
"""Times as long as a query took is rested after it."""

TOLD: Final = 10.0
"""Seconds between lines of progress."""

_TURN: Final = 100
"""Rows after which others get their turn."""


async def compare(
    settings: Settings,
    mapping: Mapping,
    seconds: float,
    *,
    deleted: bool,
    placing: Awaitable[Placement],
    waiting: Callable[[Sequence[Blocker]], None],
    shown: Shown,
    stopped: asyncio.Event,
) -> Comparison:
    """Compare what is committed in so many seconds, then give the old relay time for the last of it.

    `deleted`: rows that vanish are sent, and nothing else says so. `shown` is told of each row that ours doesn't
    leave out. `stopped` brings the account at once: what was just committed is undecided then.

    Raises SetupError where the table doesn't say what was sent, MissingRight where it may not be read, and what
    `peek.arriving` raises.
    """
    async with lookup.connected(settings.postgres, peek.APPLICATION_NAME) as conn:
        books, lookups = await _tables(conn, settings, mapping, deleted=deleted)
        trial = _Trial(Comparison(settings.outbox), books, lookups, stopped)
        async with peek.arriving(settings, mapping, waiting=waiting) as rows:
            placement = await placing
            trial.comparison.placed = placement.reached
            await trial.begin(conn)
            _log.info(
                "following", tables=[str(table) for table in settings.outbox.tables], seconds=round(seconds)
            )
            looking = asyncio.create_task(trial.look_on(seconds), name="looking")
            try:
                await trial.read(rows, placement, shown, seconds, looking)
            except BaseException:
                await ended(looking)
                raise
        await looking
    return trial.comparison


async def _tables(
    conn: Connection, settings: Settings, mapping: Mapping, *, deleted: bool
) -> tuple[dict[TableName, Book], dict[TableName, Lookup]]:
    books: dict[TableName, Book] = {}
    lookups: dict[TableName, Lookup] = {}
    for table in settings.outbox.tables:
        await outbox.columns(conn, table)
        plan = await catalogue.required(conn, mapping, table, settings.postgres.publication)
        keeping = plan.bookkeeping
        if keeping.sent is None and not (keeping.deleted or deleted):
            raise SetupError(
                f"nothing in a row of {table} says that it was sent: it has neither a status nor a time of sending "
                "that is recognised",
                next="name its status column and words under [outbox.status], or its time with --column sent_at=NAME; "
                "if the old relay deletes what it has sent, add --deleted-is-sent; "
                "or look without a comparison: cdc-outbox peek --follow",
            )
        books[table] = Book.of(plan)
        await reach_operators(conn, plan.layout.id.type_oid)
        lookups[table] = lookup.Lookup(
            conn, table, plan.layout.id.name, books[table].columns, books[table].written
        )
        await lookups[table].require()
    return books, lookups


class _Trial:
    """The two sides of a comparison: the stream, and the table."""

    def __init__(
        self,
        comparison: Comparison,
        books: dict[TableName, Book],
        lookups: dict[TableName, Lookup],
        stopped: asyncio.Event,
    ) -> None:
        self.comparison = comparison
        self._books = books
        self._lookups = lookups
        self._stopped = stopped
        self._time_up = asyncio.Event()
        self._searched = asyncio.Event()
        self._all_read = asyncio.Event()
        self._now_us = 0
        self._arrived = time.monotonic()
        self._last_us = 0
        self._unseen: dict[TableName, Unseen | None] = {}
        self._sent: dict[TableName, frozenset[str] | None] = {}

    async def begin(self, conn: Connection) -> None:
        """Note what is unsent now that the slot is made: what the old relay sends of it had its INSERT before."""
        for table, book in self._books.items():
            if book.keeping.sent is not None:
                self._unseen[table] = await Unseen.begin(conn, table, book)

    async def read(
        self,
        rows: AsyncIterator[Row],
        placement: Placement,
        shown: Shown,
        seconds: float,
        looking: asyncio.Task[None],
    ) -> None:
        """Take rows for so many seconds, or until stopped. Raises what either side raises."""
        reading = asyncio.create_task(self._take(rows, placement, shown), name="reading")
        stop = asyncio.create_task(self._stopped.wait(), name="stop")
        searched = asyncio.create_task(self._searched.wait(), name="searched")
        try:
            await asyncio.wait({reading, looking, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, looking):
                if task.done():
                    task.result()
            self._time_up.set()
            await asyncio.wait({searched, looking}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({reading, looking}, timeout=LINGER, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, looking):
                if task.done():
                    task.result()
        finally:
            await ended(reading, stop, searched)
        self._account_for_updates()
        self._all_read.set()

    def _account_for_updates(self) -> None:
        """Tell of what was sent without an INSERT, as far as the stream was read to where the table was searched."""
        caught_up = self._last_us >= self._now_us or time.monotonic() - self._arrived >= LINGER
        for table, sent in self._sent.items():
            self.comparison.add_unseen(table, sent if caught_up else None)

    async def _search(self) -> None:
        for table, unseen in self._unseen.items():
            self._sent[table] = None if unseen is None else await unseen.sent_since()
        self._now_us = max(self._now_us, (await next(iter(self._lookups.values())).moment()).at_us)
        self._searched.set()

    async def _take(self, rows: AsyncIterator[Row], placement: Placement, shown: Shown) -> None:
        taken = 0
        async for row in rows:
            trial = await attempt(row, placement)
            self.comparison.add(trial)
            self._arrived, self._last_us = time.monotonic(), row.commit_us
            if trial.left_out is None:
                await shown(trial)
            taken += 1
            if taken % _TURN == 0:
                await asyncio.sleep(0)

    async def look_on(self, seconds: float) -> None:
        """Look at what the old relay did, until all rows are read and it had its time for the last of them."""
        began = told = time.monotonic()
        while True:
            last = self._all_read.is_set()
            if self._time_up.is_set() and not self._searched.is_set():
                await self._search()
            await self._round()
            if last and (self._stopped.is_set() or not self.comparison.young(self._now_us)):
                break
            now = time.monotonic()
            if now - told >= TOLD:
                told = now
                self._tell(began + seconds - now)
            await asyncio.sleep(ROUND)
        self.comparison.finish(self._now_us, self._books)

    async def _round(self) -> None:
        """One look at every row that waits."""
        comparison = self.comparison
        for table, ids in [*comparison.waiting()] or [(next(iter(self._lookups)), [])]:
            asked = self._lookups[table]
            book = self._books[table]
            moment = await asked.moment()
            self._now_us = moment.at_us
            for at in range(0, len(ids), lookup.MOST):
                some = ids[at : at + lookup.MOST]
                began = time.monotonic()
                try:
                    found = await asked.find(some)
                except TableLocked:
                    continue
                for id_ in some:
                    rows = found.get(id_)
                    if rows:
                        texts = next((row.texts for row in rows if not book.sent(row.texts)), rows[-1].texts)
                        comparison.heed(
                            (table, id_),
                            sent=book.sent(texts),
                            status=book.status(texts),
                            at_us=rows[-1].at_us,
                            sent_us=book.sent_us(texts),
                            texts=texts,
                            digests=rows[-1].digests,
                        )
                    elif moment.ended(comparison.transaction((table, id_))):
                        comparison.heed((table, id_), sent=True, status="", at_us=moment.at_us, sent_us=None)
                if not self._stopped.is_set():
                    await asyncio.sleep(REST * (time.monotonic() - began))

    def _tell(self, left: float) -> None:
        account = self.comparison
        _log.info(
            "comparing",
            events=account.events,
            same=account.same,
            awaited=account.awaited,
            different=account.different,
            seconds_left=max(0, round(left)),
        )
