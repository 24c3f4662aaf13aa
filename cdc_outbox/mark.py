"""Marks: the table itself says what was sent, in the columns in which a polling relay would say it (`outbox.mark`).

Dashboards, partial indexes and clean-up jobs that read these columns stay right, and so would the polling relay itself.
A row is marked only after its position was confirmed: Kafka has it, and the witness says so. Here is what waits for
that, and what is to be done then; `marker.py` does it.

What waits is bounded in bytes. While a lock on the table lasts, keys are dropped and counted, and the rows are found
later by a search of the table; so are those that a killed relay left unmarked. A search runs once after each start, and
after keys were dropped.

A key may be used again. What is marked a moment after its confirmation is the row that was delivered; later, and after
a lock or a failure, the row has to be one of a transaction that is known to be delivered, as in a search.

A row that can't be marked (a constraint, a trigger) fails the whole statement. Keys that were refused are halved until
it stands alone, and it is given up alone; what was confirmed later goes first all the while.

On the hot path it costs little (`mark_keys.py`). Nothing of it is there while `outbox.mark` is `none`.
"""

from __future__ import annotations

import time
from asyncio import Event
from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from cdc_outbox import clock, log
from cdc_outbox.errors import CdcOutboxError, Unmarked
from cdc_outbox.mark_keys import Noted, joined, noting
from cdc_outbox.postgres.guard import ProvenSnapshot
from cdc_outbox.postgres.marking import BATCH, concerns_rows
from cdc_outbox.tally import reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.lsn import LSN
    from cdc_outbox.mark_keys import Chunk, Encode
    from cdc_outbox.postgres.marking import Marking, Outcome
    from cdc_outbox.table.mapping import Plan

_log = log.get(__name__)

BUDGET: Final = 8 * 1024 * 1024
"""Bytes of keys that wait, about: of 200 000 rows with a uuid."""

LOCKED_PAUSE: Final = 2.0
"""Seconds until rows that somebody had locked are tried again."""

LOCKED_TRIES: Final = 30
"""How often they are tried before they are left to a search."""

PROVEN_TRIES: Final = 3
"""Tries in which a proof comes that a row was delivered, unless somebody keeps it back."""

REFUSED_TRIES: Final = 3
"""How often a row that can't be marked is tried, with others or alone."""

REFUSED_TOLD: Final = 60.0
"""Seconds between two lines of the log about such rows, at least."""

FRESH: Final = 5.0
"""Seconds after its confirmation in which a key is taken for that of the row that was delivered."""

ROW_REFUSED: Final = "row_refused"


def failure(error: BaseException) -> str:
    """How an attempt that failed is counted: by the error's class, but for a row that can't be marked."""
    return ROW_REFUSED if concerns_rows(error) else reason(error)


class Marks:
    """What is to be marked and what was, for the life of the process; sessions come and go.

    `marked`, `dropped`: rows since the process began; `refused`: those of the dropped ones that can't be marked.
    `failures`: attempts that failed, as `failure` has them.
    `failing`: why they fail just now. `waiting`: rows whose keys are held. `awake` is set when there may be something
    to do.
    """

    def __init__(self) -> None:
        self.marked = 0
        self.dropped = 0
        self.refused = 0
        self.failures: Counter[str] = Counter()
        self.failing: str | None = None
        self.waiting = 0
        self.awake = Event()
        self.search_wanted = True
        self.target: int | None = None
        """A search has seen all that it was wanted for when transactions below this one are known to be delivered."""
        self.horizon: int | None = None
        """Transactions below this one are delivered, as far as they are this slot's."""
        self._noted: dict[TableName, Noted] = {}
        self._on_the_way: deque[Chunk] = deque()
        self._ready: deque[Chunk] = deque()
        self._suspect: deque[Chunk] = deque()
        self._locked: deque[tuple[float, Chunk]] = deque()
        self._unseen: deque[tuple[int, Chunk]] = deque()
        self._in_hand = 0
        self._bytes = 0
        self._proven = ProvenSnapshot()
        self._dropping = False
        self._refusal_told: float | None = None
        self.searches = 0
        """Searches that came to their end since one was wanted."""

    def begin(self, markings: Sequence[Marking]) -> None:
        """A session begins: what isn't confirmed comes again."""
        self._release(*self._on_the_way)
        self._on_the_way.clear()
        self._noted = {each.how.table: Noted(each) for each in markings}
        self._rebind()
        self._proven, self.horizon, self.target = ProvenSnapshot(), None, None
        self.searches = 0

    def _rebind(self) -> None:
        """What waits is marked as its table is now; a search does it where that has another key, or isn't ours."""
        for chunk in self._delivered():
            noted = self._noted.get(chunk.marking.how.table)
            if noted is None or noted.marking.how.key != chunk.marking.how.key:
                return self.forget()
            chunk.marking = noted.marking
        return None

    def _delivered(self) -> list[Chunk]:
        """Everything that may be marked, now or later."""
        return [*self._ready, *self._suspect, *(chunk for _, chunk in (*self._locked, *self._unseen))]

    def forget(self) -> None:
        """The server may have other rows under the same keys now."""
        self._release(*self._delivered())
        self._ready.clear()
        self._suspect.clear()
        self._locked.clear()
        self._unseen.clear()
        self.search()

    def search(self) -> None:
        """Have the table searched for rows that are delivered and not marked."""
        self.search_wanted, self.target, self.searches = True, None, 0

    @property
    def markings(self) -> list[Marking]:
        """How each table is marked."""
        return [noted.marking for noted in self._noted.values()]

    @property
    def unmarked(self) -> int:
        """Rows that could be marked now."""
        return sum(chunk.count for chunk in (*self._ready, *self._suspect)) + self._in_hand

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do, or nothing that could be done.

        A search that others' open transactions keep from being the last one isn't waited for, nor are rows that stay
        locked.
        """
        soon = self.unmarked or any(chunk.tries <= PROVEN_TRIES for _, chunk in self._locked)
        return self.failing is not None or not (soon or (self.search_wanted and not self.searches))

    def require(self, slot: str) -> None:
        """Raise Unmarked at the end of a relay of this slot that has delivered all, where rows stay unmarked."""
        if (left := self._left) is not None:
            raise Unmarked(
                f"all is delivered, and rows stay unmarked: {left}",
                next="when nothing is in the way any more, have them found and marked: "
                f"cdc-outbox start --mark update --until-caught-up --slot {slot}",
            )

    @property
    def _left(self) -> str | None:
        """Why delivered rows may stay unmarked, were this the end; None where none does, as far as is known."""
        if self.failing is not None:
            return self.failing
        if self.search_wanted and not self.searches:
            return "the table wasn't searched to its end"
        rows = self.unmarked + sum(chunk.count for _, chunk in self._locked)
        return f"somebody keeps {rows} of them locked, or has just changed them" if rows else None

    @property
    def next_try(self) -> float | None:
        """When rows that were locked are tried again, on the monotonic clock; None without any."""
        return self._locked[0][0] if self._locked else None

    def fail(self, error: Exception) -> None:
        """Something failed, and is tried again. Told once, until it is `well`."""
        self.failures[failure(error)] += 1
        if self.failing is None:
            step = error.next if isinstance(error, CdcOutboxError) else "please report it"
            _log.warning("rows can't be marked as sent", error=str(error), next=step)
        self.failing = str(error)

    def well(self) -> None:
        """It works."""
        if self.failing is not None:
            self.failing = None
            _log.info("rows are marked as sent again", waiting=self.waiting)

    # What the stream brings

    def noting(self, plan: Plan) -> tuple[Encode, frozenset[int]]:
        """The plan's function, which also notes the key of each row that is sent; and the places of what is read."""
        noted, names = self._noted.get(plan.table), plan.shape.names
        if noted is None:
            return plan.encode, plan.read
        key = [column.name for column in noted.marking.how.key]
        if not set(key) <= set(names):
            self.search()  # rows from before a column had its name
            return plan.encode, plan.read
        places = tuple(names.index(name) for name in key)
        return noting(plan.encode, places, noted.rows), plan.read | frozenset(places)

    def cut(self, lsn: int) -> None:
        """What was noted since the last cut is delivered when a position beyond `lsn` is confirmed."""
        for noted in self._noted.values():
            if noted.rows:
                for chunk in noted.chunks(lsn):
                    self._hold(chunk)

    def _hold(self, chunk: Chunk) -> None:
        if self._bytes + chunk.size <= BUDGET:
            self._on_the_way.append(chunk)
            self._bytes += chunk.size
            self.waiting += chunk.count
            return
        self.dropped += chunk.count
        self.search()
        if not self._dropping:
            self._dropping = True
            _log.warning("marks are put off to a search of the table", waiting=self.waiting)

    def _release(self, *chunks: Chunk) -> None:
        for chunk in chunks:
            self._bytes -= chunk.size
            self.waiting -= chunk.count

    # What is delivered

    def confirmed(self, position: LSN) -> None:
        """Everything up to `position`, the end of a commit, is confirmed."""
        while self._on_the_way and self._on_the_way[0].lsn < position:
            chunk = self._on_the_way.popleft()
            chunk.until = clock.passing() + FRESH
            self._ready.append(chunk)
        if self._ready or self.search_wanted:
            self.awake.set()

    def proven(self, position: LSN, snapshot: str, ends: LSN | None) -> None:
        """Nothing of ours up to `position` is unconfirmed.

        `snapshot`: a pg_snapshot as text, taken a moment ago, after which the WAL ended at `ends`.
        """
        proven = self._proven.advance(position)
        if proven is not None:
            self.horizon = int(proven.partition(":")[0])
        self._proven.offer(snapshot, ends)
        ended = int(snapshot.partition(":")[0])
        while self._unseen and self._unseen[0][0] <= ended:
            _, chunk = self._unseen.popleft()
            chunk.visible = True
            self._ready.append(chunk)

    def take(self) -> Chunk | None:
        """The next keys that may be marked: of one table, at most `BATCH`."""
        now, awake = clock.passing(), time.monotonic()
        while self._locked and self._locked[0][0] <= awake:
            self._ready.append(self._locked.popleft()[1])
        if not self._ready and not self._suspect:
            return None
        some = [(self._ready or self._suspect).popleft()]
        first, count = some[0], some[0].count
        while self._ready and first.goes_with(self._ready[0], now) and count + self._ready[0].count <= BATCH:
            some.append(self._ready.popleft())
            count += some[-1].count
        chunk = first if len(some) == 1 else joined(some, count)
        chunk.below = None if chunk.until > now else self.horizon or 0
        self._bytes += chunk.size - sum(each.size for each in some)
        self._in_hand = count
        return chunk

    def put_back(self, chunk: Chunk) -> None:
        """What became of it isn't known: it is marked again."""
        self._in_hand = 0
        chunk.until = 0.0
        self._ready.appendleft(chunk)

    def refuse(self, chunk: Chunk, error: Exception) -> None:
        """One of its rows can't be marked: it is looked for in the halves. Alone it is given up after some tries."""
        self._in_hand = 0
        chunk.until = 0.0
        chunk.tries += 1
        if chunk.count > 1:
            halves = chunk.halves()
            self._bytes += sum(half.size for half in halves) - chunk.size
            self._suspect.extendleft(reversed(halves))
        elif chunk.tries < REFUSED_TRIES:
            chunk.suspect = True
            self._locked.append((time.monotonic() + LOCKED_PAUSE, chunk))
        else:
            self._release(chunk)
            self.give_up(chunk.marking, error, key=chunk.shown())

    def give_up(self, marking: Marking, error: Exception, **where: str) -> None:
        """A row can't be marked, and stays as it is. Told with the number of all such rows, now and then."""
        self.refused += 1
        self.dropped += 1
        now = time.monotonic()
        if self._refusal_told is None or now - self._refusal_told >= REFUSED_TOLD:
            self._refusal_told = now
            _log.warning(
                "a row can't be marked as sent, and stays as it is",
                table=str(marking.how.table),
                **where,
                error=str(error),
                next="mend what refuses its UPDATE, then restart the relay; all other rows are marked",
                rows=self.refused,
            )

    def settle(self, chunk: Chunk, outcome: Outcome) -> None:
        """It is marked, but for rows that somebody has locked, or that aren't seen: the chunk is tried again.

        A commit is in the stream once it is flushed, and visible a moment later; where it waits for a synchronous
        standby, only when that has answered. So what isn't there is looked for once more, when all transactions that
        have begun by now have ended.
        """
        self._in_hand = 0
        chunk.until = 0.0
        self.marked += outcome.marked
        if outcome.locked and chunk.tries < LOCKED_TRIES:
            chunk.tries += 1
            self._locked.append((time.monotonic() + LOCKED_PAUSE, chunk))
        elif outcome.unseen is not None and not chunk.visible:
            self._unseen.append((outcome.unseen, chunk))
        else:
            self._release(chunk)
            if outcome.locked:
                self.search()

    def searched(self, horizon: int | None) -> None:
        """A search came to its end, for transactions below `horizon`; None: there can't be one."""
        self.searches += 1
        if horizon is None or (self.target is not None and horizon >= self.target):
            self.search_wanted, self.target, self._dropping = False, None, False
