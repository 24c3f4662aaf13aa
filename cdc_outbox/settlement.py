"""Confirming, in four steps that never change places: position, guard, witness, status update.

The position is taken first: it is what the guard then vouches for. A publication that hides rows looks like an idle
server, so nothing is confirmed before a look at it that began after the position was received. The witness is
written before the status update, so that the slot is never beyond it by our doing. And no confirmation passes the
witness, not even in a shutdown.

One round a guard interval, from beginning to beginning: under load it confirms what a second has brought; when idle it
lets the slot follow the WAL of others, but writes nothing for less than 64 KiB of it, once the last rows are proven.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cdc_outbox import faults, log
from cdc_outbox.ended import ended
from cdc_outbox.errors import (
    DrainExceeded,
    OtherServer,
    PostgresGone,
    PostgresShutdown,
    PostgresUnavailable,
)
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.guard import ProvenSnapshot, guard, unended
from cdc_outbox.repeats import Repeats
from cdc_outbox.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import TypeVar

    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.event import TableName
    from cdc_outbox.intake import Intake
    from cdc_outbox.mark import Marks
    from cdc_outbox.postgres.admission import Admission
    from cdc_outbox.postgres.guard import GuardReport
    from cdc_outbox.postgres.stream import ReplicationStream

    Answer = TypeVar("Answer")

_log = log.get(__name__)

FIRST: Final = 0.25
"""Seconds until a session's first round: what was delivered in the session before is passed over at once, and may have
waited long for its confirmation."""

PROVING: Final = 5.0
"""Seconds that the proof may take behind the target: the next row may be held for ever."""

QUERIES: Final = 3
"""In a round under load: two of the guard, and the witness row."""

PUT_OFF: Final = 0.5
"""Part of the interval by which others put a round off at most: each table of a publication that has all of them may be
asked for, again and again."""

IDLE_STEP: Final = 64 * 1024
"""Bytes of foreign WAL that are worth a witness row."""

GUARD_ANSWER: Final = 5.0
"""Seconds that the server has for each of the guard's queries: a frozen one is noticed by them while nobody reads."""

CONTROL_GRACE: Final = 10.0
"""Seconds for which the stream is kept while the control connection is away."""

UNSEEN: Final = 0.01
"""Seconds until a transaction of the stream is looked for again among those that have ended, at first."""

CONTROL_PAUSE: Final = 0.5
"""Seconds between attempts to have one again."""


class Settlement:
    """The rounds of one session.

    `target`: being confirmed up to there is being caught up. `proves`: so is that the witness proves it, for then the
    relay ends, and nobody writes a proof that is one round late.
    """

    def __init__(
        self,
        admission: Admission,
        stream: ReplicationStream,
        ledger: Ledger,
        intake: Intake,
        *,
        interval: float,
        target: LSN | None = None,
        proves: bool = False,
        tally: Tally | None = None,
        repeats: Repeats | None = None,
        marks: Marks | None = None,
    ) -> None:
        self._tally = tally or Tally()
        self._repeats = repeats or Repeats()
        self._marks = marks
        self._admission = admission
        self._stream = stream
        self._ledger = ledger
        self._intake = intake
        self._interval = interval
        self._target = target
        self._guarded = admission.guarded(stream)
        row = admission.row
        self._to_prove = proves and target is not None and row is not None
        self._proven = ProvenSnapshot(row.snapshot if row is not None else None)
        self._written = self._proven.horizon
        self._owed: int | None = None
        self._marked = marks.marked if marks is not None else 0
        self._settled = admission.position or LSN(0)
        self._round = asyncio.Lock()
        self._current: asyncio.Task[None] | None = None

    async def run(self, caught_up: asyncio.Event) -> None:
        """One round an interval, until something is wrong. One that takes longer is followed by the next at once."""
        now = asyncio.get_running_loop().time
        due = now() + min(FIRST, self._interval)
        reached: float | None = None
        while True:
            await self._pause(due)
            began = now()
            # A round isn't cut in the middle: `finish` awaits its end, and `close` cuts what is left of it.
            self._current = asyncio.create_task(self._settle_with_control(), name="settlement round")
            await asyncio.shield(self._current)
            due = began + self._interval
            if self._target is not None and self._settled >= self._target:
                reached = reached or now()
                if self._to_prove and now() - reached < PROVING:
                    due = began + min(FIRST, self._interval)
                elif self._is_marked:
                    caught_up.set()

    @property
    def _is_marked(self) -> bool:
        """Whether no row is to be marked any more, as far as is known."""
        return self._marks is None or self._marks.done

    async def _pause(self, due: float) -> None:
        """Wait for the next round. What others ask meanwhile puts it off, for we ask little altogether."""
        control, now = self._admission.control, asyncio.get_running_loop().time
        asked, latest = control.asked, due + PUT_OFF * self._interval
        while not control.lost.done() and (left := due - now()) > 0:
            await asyncio.wait({control.lost}, timeout=left)
            due = min(latest, due + (control.asked - asked) * self._interval / QUERIES)
            asked = control.asked

    async def finish(self, *, within: float) -> CdcOutboxError | None:
        """The last round: whatever is settled by now is confirmed. Why that wasn't done in `within` seconds, if so."""
        try:
            async with asyncio.timeout(within):
                await self._settle_with_control(everything=True)
        except TimeoutError:
            return DrainExceeded(
                f"PostgreSQL didn't take the last confirmation within {within:.1f} s",
                next="nothing is lost: what was sent since the one before is sent again by the next start",
            )
        except PostgresUnavailable as error:
            return error
        return None

    async def ours(self, xid: int) -> dict[int, TableName]:
        """Our tables by OID, as the server's catalogue has them once a transaction is over. Raises PostgresUnavailable.

        The stream has it as soon as its commit is on disk. Others see what it did a moment later, or, where commits
        wait for a synchronous standby, when that has answered: until then nobody is shown a partition that it made.
        """
        pause = UNSEEN
        while await self._with_control(partial(self._admission.runs, xid)):
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._interval)
        return await self._with_control(self._admission.ours)

    async def close(self) -> None:
        """End the round under way."""
        if self._current is not None:
            await ended(self._current)

    async def _settle_with_control(self, *, everything: bool = False) -> None:
        """One round."""
        await self._with_control(partial(self._settle, everything=everything))

    async def _with_control(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Ask, and ask anew on another control connection when the connection was lost before or meanwhile."""
        async with self._round:
            while True:
                control = self._admission.control
                try:
                    return await ask()
                except PostgresUnavailable as error:
                    if not control.lost.done():
                        raise
                    await self._control_again(error)

    async def _control_again(self, error: PostgresUnavailable) -> None:
        """Nothing is confirmed without the control connection; a server that shuts down is not kept waiting."""
        self._repeats.say(
            _log.warning,
            "control connection lost",
            type(error).__name__,
            error=str(error),
            slot=self._guarded.slot,
        )
        deadline = time.monotonic() + CONTROL_GRACE
        while not isinstance(error, PostgresShutdown | PostgresGone | OtherServer):
            try:
                await self._admission.reconnect()
                self._tally.reconnects["postgres", "control_connection"] += 1
                return
            except PostgresUnavailable as again:
                error = again
                if time.monotonic() > deadline:
                    break
            await asyncio.sleep(CONTROL_PAUSE)
        raise error

    async def _settle(self, *, everything: bool) -> None:
        position, first = max(self._ledger.confirmable, self._settled), self._tally.first
        is_marked = self._is_marked
        marked = self._marks.marked if self._marks is not None else 0
        report = await self._look()
        await self._heed(report)
        self._admission.seen(report.confirmed)
        if faults.confirmation_held():
            return
        snapshot, rows = self._proven.advance(position), self._intake.latest >= self._settled
        # The last rows, of this session or the one before, are proven a moment later, and nothing more may ever come.
        # A row that was marked has another xmin since, which wants a proof of its own.
        if self._owed is None or marked > self._marked:
            self._owed, self._marked = unended(report.snapshot), marked
        proves = self._written < min(self._owed, self._proven.horizon)
        asked = everything or self._target is not None
        worth = asked or rows or proves or position.bytes_since(self._settled) >= IDLE_STEP
        # The row itself moves the end of the WAL on, so that the stream gets to where the snapshot was taken.
        last = self._to_prove and self._target is not None and position >= self._target
        if last or (position > self._settled and worth):
            await self._confirm(position, snapshot)
            self._to_prove = self._to_prove and not (last and self._proven.final)
            if rows:
                self._owed = unended(report.snapshot)
            if first is not None:
                self._tell_first(*first, position)
        self._proven.offer(report.snapshot, report.publication.insert_lsn, final=is_marked)
        if self._marks is not None:
            self._marks.confirmed(self._settled)
            self._marks.proven(position, report.snapshot, report.publication.insert_lsn)

    async def _confirm(self, position: LSN, snapshot: str | None) -> None:
        """Witness, then status update."""
        await self._admission.advance(position, snapshot)
        self._settled, self._written = position, self._proven.horizon
        if self._marks is not None:
            self._marks.confirmed(position)  # the witness suffices, should the stream break now
        if self._stream.confirm(position):
            self._stream.send_status()

    async def _look(self) -> GuardReport:
        checks = self._tally.guard_checks
        try:
            report = await self._admission.control.run(
                lambda conn: guard(conn, self._guarded, within=GUARD_ANSWER)
            )
        except PostgresUnavailable:
            checks["unanswered"] += 1
            raise
        checks["failed" if report.failure or report.publication.problem else "passed"] += 1
        return report

    def _tell_first(self, topic: str, latency: float | None, position: LSN) -> None:
        """Once a process: what everybody waits for after a set-up."""
        self._tally.first = None
        latency_ms = None if latency is None else round(latency * 1000, 1)
        _log.info(
            "first event confirmed", topic=topic, lsn=position, latency_ms=latency_ms, slot=self._guarded.slot
        )

    async def _heed(self, report: GuardReport) -> None:
        """End the session where something is wrong; note what was merely altered."""
        if report.failure is not None:
            raise report.failure
        if report.confirmed is not None and report.confirmed > self._settled:
            raise PostgresUnavailable(
                f"the replication slot {self._guarded.slot} stands at {report.confirmed}, and not at {self._settled}"
                " where this session began: another session moved it before it was ours",
                next="nothing to do: the relay looks at the slot again before it goes on",
            )
        watch = self._admission.watch
        finding = watch.look(report.publication, report.lsn)
        if finding.incident is not None:
            _log.warning("incident", what=finding.incident.message, slot=self._guarded.slot)
        await self._admission.note()
        if finding.problem is not None:
            raise finding.wrong(self._guarded.slot)
        watch.require(self._guarded.slot)
