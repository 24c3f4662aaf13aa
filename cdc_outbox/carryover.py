"""What one session leaves to the next: what has arrived on the bus, what PostgreSQL has taken of it, what is in doubt.

By it the next session sends nothing twice, and a stop between two sessions knows whether it is a clean end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.errors import DrainExceeded
from cdc_outbox.lsn import LSN, ZERO
from cdc_outbox.postgres.admission import Admission, Memory
from cdc_outbox.publisher import Deliveries
from cdc_outbox.state import State, Status

if TYPE_CHECKING:
    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.postgres.server import Server
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.publisher import Publisher


class Carryover:
    """The memory of a process beyond its sessions. Where `status` stands decides what may still be confirmed."""

    def __init__(self, status: Status) -> None:
        self._status = status
        self.deliveries = Deliveries()
        self.memory = Memory()
        self.server: Server | None = None
        """The server of the last stream; None before the first."""
        self.bus_took_us = False
        """Whether the bus took us as we are, in any session."""
        self.suspect: tuple[int, int] | None = None
        """What `Flow.suspect` was at the end of the session before."""
        self.doubtful = ZERO
        """Final LSN up to which the bus may have rows or not, as a session broke; ZERO where all is known."""
        self.cut_short = False
        """What `Flow.cut_short` was at the end of the session before."""

    @property
    def has_begun(self) -> bool:
        """Whether this is no start any more, after which what the bus has against us may pass: a hot standby may never
        have streamed, but the bus had taken it.
        """
        return self.server is not None or self.bus_took_us

    @property
    def owes(self) -> bool:
        """Whether PostgreSQL would send again what the bus has confirmed to us, though it may be confirmed there.

        Not while another relay has the slot, nor while we are held: then nothing may be confirmed. A transaction of
        which a part has arrived may be when the rest has, which an outage keeps back, but neither poison nor the bus.
        """
        taken, state = self.memory.taken, self._status.state
        whole = self._status.confirmable > taken and state not in (State.STANDBY, State.HELD)
        comes = state in (State.CONNECTING, State.STREAMING) or (
            state is State.DRAINING and not self.cut_short
        )
        cut = comes and self.suspect is None
        return (whole or cut) and self.deliveries.beyond(taken)

    @property
    def until(self) -> LSN:
        """Up to where a stream has to be read for all of that to be confirmed.

        A transaction of which something has arrived is read on to its commit, which ends behind its final LSN.
        """
        return max(self._status.confirmable, LSN(max(self.deliveries.until, int(self.doubtful)) + 1))

    @property
    def is_even(self) -> bool:
        """Whether an outage costs nothing: PostgreSQL has taken all that the last session may have sent to the bus."""
        outage, taken = self._status.state is State.CONNECTING, self.memory.taken
        return outage and not self.doubtful and not self.deliveries.beyond(taken)

    def require_clean(self) -> None:
        """Raise DrainExceeded where the next start sends again what the bus has, though we are held, or may have.

        Where a publication hides rows nothing may be confirmed, and what was delivered just before comes again.
        """
        if self.doubtful:
            raise DrainExceeded(
                f"Kafka didn't say before the stream broke whether it has all rows up to {self.doubtful}",
                next="nothing is lost: what wasn't confirmed is sent again by the next start",
            )
        held = self._status.state is State.HELD and not self.memory.watch.bars
        if held and self.deliveries.beyond(self.memory.taken):
            delivered, reason = LSN(self.deliveries.until), self._status.reason
            raise DrainExceeded(
                f"what Kafka has up to {delivered} could not be confirmed to PostgreSQL: {reason}",
                next="nothing is lost: what wasn't confirmed is sent again by the next start",
            )

    def add(self, stream: ReplicationStream, ledger: Ledger, publisher: Publisher) -> None:
        """A session has ended: what the bus had yet to answer for, and what PostgreSQL is known to have taken."""
        if publisher.unanswered:
            self.doubtful = max(self.doubtful, ledger.begun)
        elif ledger.confirmable > self.doubtful:
            self.doubtful = ZERO
        if stream.taken:
            self.memory.taken = max(self.memory.taken, stream.confirmed)

    def cede(self) -> None:
        """Another relay streams: the witness row and what was in doubt are its matter."""
        self.memory.row, self.doubtful = None, ZERO

    def meet(self, admission: Admission) -> bool:
        """Forget what was delivered where the stream may send other rows at the same places; whether all of it.

        So it is on another server or timeline, and on one that was set back, which keeps its timeline. One that was
        restarted may have been set back to a moment after the last witness row, and have written on past what was
        delivered then: of that only what the row covers is sure.
        """
        before, now = self.server, admission.server
        self.server = now
        elsewhere = before is not None and (
            before.system_identifier != now.system_identifier or before.timeline != now.timeline
        )
        if elsewhere or admission.was_set_back(self.deliveries.until):
            self.doubtful = ZERO
            self.deliveries.forget()
            self._status.forget()
            return True
        if before is not None and before.started != now.started:
            self.deliveries.forget_beyond(self.memory.proven)
            self._status.forget(self.memory.proven)
        return False
