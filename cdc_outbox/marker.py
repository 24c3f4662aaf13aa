"""The task that marks rows as sent, on a connection of its own, for the time of one session.

It is in nobody's way: what fails here is counted, told once, and tried again after a pause, and neither the reader nor
the settlement ever waits for it. A row that can't be marked is singled out, so that all others are marked. What was
confirmed last comes first; a search of the table runs in what time is left, a few blocks at once, and rests as long as
it works.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.ended import ended
from cdc_outbox.errors import SetupError
from cdc_outbox.mark import failure
from cdc_outbox.postgres import marking
from cdc_outbox.postgres.marking import PLACES, WIDTH, Delivered, Marking, tid
from cdc_outbox.table.doubt import remedy

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.event import TableName
    from cdc_outbox.mark import Marks
    from cdc_outbox.postgres.admission import Admission
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.postgres.whole import Whole
    from cdc_outbox.settings import PostgresSettings, Settings
    from cdc_outbox.table.mapping import Mapping

_log = log.get(__name__)

PAUSES: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
"""Seconds until a failure is tried again: after the first, the second, …"""

REST: Final = 1.0
"""How long a search rests after a statement, in times of what that took."""

REFUSED_PAUSE: Final = 0.1
"""Seconds until smaller parts are tried of rows of which one can't be marked."""

REFUSED_IN_A_ROW: Final = 20
"""Refusals without a success between them, after which it is a failure like others. One row takes 13 at most."""

SINGLED_OUT: Final = 100
"""Rows that a search singles out; after so many it passes over the blocks in which there are more."""

SEARCH_EVERY: Final = 60.0
"""Seconds between two searches, at least, unless the second can be the last."""


@dataclass(slots=True)
class Search:
    """How far a search has come: the table, the next place in it, and of how many.

    `width`: places of a statement, fewer than `WIDTH` around a row that can't be marked; `refused`: such rows so far.
    """

    delivered: Delivered
    tables: list[Marking]
    place: int = 0
    places: int | None = None
    width: int = WIDTH
    found: int = 0
    refused: int = 0

    def go_on(self) -> None:
        """Nothing is left at these places."""
        self.place += self.width
        self.width = min(2 * self.width, WIDTH)

    def narrow(self) -> bool:
        """One of the rows can't be marked. Returns whether it is passed over now, else it is looked for in a half."""
        if self.width > 1 and self.refused < SINGLED_OUT:
            self.width //= 2
            return False
        self.refused += 1
        self.place += self.width
        self.width = 1 if self.refused < SINGLED_OUT else WIDTH
        return True


class Marker:
    """One session's task."""

    def __init__(self, settings: PostgresSettings, marks: Marks, control: Callable[[], Connection]) -> None:
        """`control`: the session's control connection, which leads to the server that streams."""
        self._settings = settings
        self._marks = marks
        self._control = control
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._search: Search | None = None
        self._searched_at: float | None = None
        self._told = False
        self._failed = 0
        self._refused = 0

    def start(self) -> None:
        """Begin to mark."""
        self._task = asyncio.create_task(self._run(), name="marks")

    async def close(self, *, within: float) -> None:
        """End. What may be marked now is tried once more, for `within` seconds."""
        if self._task is None:
            return
        try:
            await ended(self._task)
            if within:
                await self._finish(within)
        finally:
            if self._connection is not None:
                await self._connection.close()

    async def _finish(self, within: float) -> None:
        try:
            async with asyncio.timeout(within):
                await self._empty()
        except TimeoutError:
            pass  # the time is up, and the next line says what stays
        except Exception as error:
            self._marks.fail(error)
        if left := self._marks.unmarked:
            _log.warning("rows stay unmarked until the next start", rows=left, slot=self._settings.slot)

    async def _run(self) -> None:
        marks = self._marks
        while True:
            marks.awake.clear()
            try:
                rest = await self._turn()
            except Exception as error:
                marks.fail(error)
                self._failed += 1
                await asyncio.sleep(PAUSES[min(self._failed, len(PAUSES)) - 1])
                continue
            try:
                async with asyncio.timeout(rest):
                    await marks.awake.wait()
            except TimeoutError:
                continue

    async def _turn(self) -> float | None:
        """Mark what may be marked, then one step of a search. Returns when there is more to do, in seconds."""
        marks = self._marks
        await self._empty()
        rests = [await self._step() if marks.search_wanted else None]
        if marks.next_try is not None:
            rests.append(max(0.0, marks.next_try - time.monotonic()))
        return min((rest for rest in rests if rest is not None), default=None)

    async def _empty(self) -> None:
        """Mark what may be marked."""
        marks = self._marks
        while (chunk := marks.take()) is not None:
            try:
                conn = await self._connected()
                outcome = await chunk.marking.mark(conn, chunk.literals(), chunk.count, chunk.below)
            except BaseException as error:
                if not isinstance(error, Exception) or not marking.concerns_rows(error):
                    marks.put_back(chunk)
                    raise
                marks.refuse(chunk, error)
                self._refused += 1
                if self._refused > REFUSED_IN_A_ROW:
                    raise
                marks.failures[failure(error)] += 1
                await asyncio.sleep(REFUSED_PAUSE)
                continue
            marks.settle(chunk, outcome)
            self._well()

    async def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = await marking.connect(
                self._settings,
                application_name=f"cdc-outbox/{self._settings.slot}/mark",
                like=self._control(),
            )
        return self._connection

    async def _step(self) -> float | None:
        """One statement of the search, which begins when there is a proof of what was delivered."""
        marks = self._marks
        if self._search is None:
            self._search = await self._begun()
            if self._search is None:
                return None
        search, began = self._search, time.monotonic()
        if not search.tables:
            self._end(search)
            return None
        conn, table = await self._connected(), search.tables[0]
        if search.places is None:
            search.places = PLACES * await table.blocks(conn)
        if search.place >= search.places:
            search.tables.pop(0)
            search.place, search.places, search.width = 0, None, WIDTH
            return 0.0
        at, width = search.place, search.width
        try:
            marked, more = await table.search(conn, at, search.delivered, width)
        except Exception as error:
            if not marking.concerns_rows(error):
                raise
            marks.failures[failure(error)] += 1
            if search.narrow() and width == 1:
                marks.give_up(table, error, ctid=tid(at))
            return REFUSED_PAUSE
        marks.marked += marked
        search.found += marked
        if not more:
            search.go_on()
        self._well()
        return REST * (time.monotonic() - began)

    async def _begun(self) -> Search | None:
        """A search, where it is time for one."""
        marks = self._marks
        if marks.target is None:
            marks.target = await marking.next_transaction(await self._connected())
        horizon = marks.horizon
        if horizon is None:
            return None
        last = horizon >= marks.target
        if not last and self._searched_at is not None and time.monotonic() - self._searched_at < SEARCH_EVERY:
            return None
        # After the horizon: what the guard finds wrong is in the witness before the horizon says that rows of that time
        # are delivered.
        whole = await marking.whole_parts(await self._connected(), self._settings.slot, marks.markings)
        if whole is None or not whole.parts:
            self._tell_of_parts(whole)
            marks.searched(None)
            return None
        return Search(Delivered(horizon, whole), list(marks.markings))

    def _tell_of_parts(self, whole: Whole | None) -> None:
        """Say once why rows can't be looked for."""
        if whole is None:
            why = "the witness table has no row, or no column, that says which tables are whole"
        else:
            why = "rows that no relay has sent may be among those that wait, and none of them may be taken for sent"
        if not self._told:
            self._told = True
            _log.warning("rows that were left unmarked can't be found", why=why, slot=self._settings.slot)

    def _end(self, search: Search) -> None:
        self._search, self._searched_at = None, time.monotonic()
        if search.refused > SINGLED_OUT:
            _log.warning(
                "rows stay unmarked",
                why=f"beside {SINGLED_OUT} rows that can't be marked there are more",
                next="mend what refuses their UPDATE, then restart the relay",
                slot=self._settings.slot,
            )
        if search.found:
            _log.info("unmarked rows were found and marked", rows=search.found, slot=self._settings.slot)
        self._marks.searched(search.delivered.horizon)

    def _well(self) -> None:
        self._failed = self._refused = 0
        self._marks.well()


async def opened(
    settings: Settings, mapping: Mapping, marks: Marks, admission: Admission, *, strict: bool
) -> Marker:
    """Who marks in this session, once it is known how.

    `strict`: what forbids marks raises SetupError, MissingRight or MappingError; else it is a failure like others, and
    rows are marked as before.
    """
    postgres, known = settings.postgres, marks.markings

    async def looked_at(conn: Connection, *, table: TableName) -> Marking:
        return await marking.marking(conn, mapping, settings.outbox, table, postgres.publication)

    try:
        markings = [
            await admission.control.run(partial(looked_at, table=table)) for table in settings.outbox.tables
        ]
    except SetupError as error:
        if strict:
            raise
        marks.fail(error)
        markings = known
    if not known:
        for each in markings:
            beside = {"triggers": list(each.how.triggers)} if each.how.triggers else {}
            _log.info("marks", table=str(each.how.table), columns=str(each.how), **beside)
            if each.how.behind is not None:
                _log.warning(
                    "marks leave a column as it is that looks like a status: an old relay that goes by it would send "
                    "all rows again",
                    table=str(each.how.table),
                    column=each.how.behind.name,
                    next=f"name its words under [outbox.status], or with {remedy(each.how.behind)}",
                )
    marks.begin(markings)
    return Marker(postgres, marks, lambda: admission.control.connection)
