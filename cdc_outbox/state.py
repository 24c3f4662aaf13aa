"""What the relay is doing, for logs, probes and pages: one state at a time, with its reason in words.

Who watches looks here, and never into a session: what can be seen of one is gathered while it lasts, and what is worth
keeping of it stays when it ends.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.lsn import ZERO
from cdc_outbox.repeats import Repeats
from cdc_outbox.settlement import IDLE_STEP
from cdc_outbox.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc_outbox.acknowledge import Ledger
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.intake import Intake
    from cdc_outbox.lsn import LSN
    from cdc_outbox.mark import Marks
    from cdc_outbox.postgres.admission import Admission
    from cdc_outbox.postgres.stream import ReplicationStream
    from cdc_outbox.publisher import Publisher

_log = log.get(__name__)

LASTING: Final = 30.0
"""Seconds of a state whose change was held back from the log until it is said after all."""


class State(enum.Enum):
    """The relay's states."""

    CONNECTING = "connecting"
    STANDBY = "standby"
    STREAMING = "streaming"
    HELD = "held"
    BLOCKED = "blocked"
    DRAINING = "draining"
    STOPPED = "stopped"

    @property
    def ready(self) -> bool:
        """Whether the relay does its duty: it streams, or stands by for the one that does."""
        return self in (State.STREAMING, State.STANDBY)


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error as the status page shows it: when (seconds since the epoch), what, and the next step."""

    at: float
    error: str
    next: str


@dataclass(frozen=True, slots=True)
class Live:
    """The parts of a session whose stream has started."""

    stream: ReplicationStream
    ledger: Ledger
    publisher: Publisher
    intake: Intake


@dataclass(slots=True)
class Status:
    """The state now, since when (seconds since the epoch), the last ten errors, and the numbers."""

    slot: str
    state: State = State.CONNECTING
    reason: str = ""
    since: float = field(default_factory=time.time)
    beat: float = field(default_factory=time.monotonic)
    errors: deque[Trouble] = field(default_factory=lambda: deque(maxlen=10))
    tally: Tally = field(default_factory=Tally)
    mapping: Callable[[], dict[str, str]] = dict
    """Each table's plan in words, as far as it is known by now."""
    marks: Marks | None = None
    """Rows that are marked as sent, where that was asked for."""
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is a control connection."""
    admitted: bool = False
    """Whether a session was admitted yet: until then slot and publication may be wrong names, and none of ours."""
    repeats: Repeats = field(default_factory=Repeats)
    """For what each of many short sessions would say anew."""
    system_identifier: str | None = None
    """PostgreSQL's own, as `pg_control_system()` tells it; None before the first sample."""
    clock_ahead: float = 0.0
    """Seconds by which PostgreSQL's clock is ahead of ours, as far as that was seen."""
    _unsaid: bool = False
    _admission: Admission | None = None
    _live: Live | None = None
    _waiting_since_us: int = 0
    _received: LSN = ZERO
    _confirmable: LSN = ZERO
    _confirmed: LSN = ZERO
    _owing: tuple[LSN, float] | None = None
    """What PostgreSQL was told to forget, and since when it has yet to hear of more."""

    def change(self, state: State, reason: str = "") -> None:
        """Enter a state; one log line for each change of it, as long as they don't come too often."""
        changed = state is not self.state
        self.state = state
        self.reason = reason
        if changed:
            self.since = time.time()
            said = self.repeats.say(_log.info, "state", state.value, **self._told())
            self._unsaid = not said
        if state is State.STANDBY:
            self._waiting_since_us = 0  # what waited here is delivered by the relay that has the slot

    def remind(self) -> None:
        """Say the state, if its change was held back from the log and it lasts. To be called every few seconds."""
        if self._unsaid and time.time() - self.since >= LASTING:
            self.repeats.insist(_log.info, "state", self.state.value, **self._told())
            self._unsaid = False

    def _told(self) -> dict[str, str]:
        return {"state": self.state.value, "reason": self.reason, "slot": self.slot}

    def trouble(self, error: CdcOutboxError) -> None:
        """Remember an error for the status page."""
        self.errors.append(Trouble(time.time(), str(error), error.next))

    def connect(self, admission: Admission) -> None:
        """A session begins: there is a control connection."""
        self._admission = admission
        self.connected.set()

    def stream(self, live: Live, position: LSN | None = None) -> None:
        """The session's stream has started. `position`: where the slot stood by then."""
        self._live = live
        self._confirmed = max(self._confirmed, position or ZERO)

    def leave(self) -> None:
        """The session is over: keep what it counted, and since when something waits."""
        self.connected.clear()
        self._admission = None
        live = self._live
        if live is None:
            return
        self._waiting_since_us = self.waiting_since_us
        self._received, self._confirmable, self._confirmed = (
            self.received,
            self.confirmable,
            self.confirmed,
        )
        self._live = None
        live.intake.count()
        self.tally.received += live.intake.received
        self.tally.skipped.update(live.intake.skipped)
        self.tally.keepalives += live.stream.keepalives
        self.tally.status_updates += live.stream.status_updates

    def forget(self, beyond: LSN = ZERO) -> None:
        """No position beyond that is one of the server's any more. To be called between two sessions."""
        self._received, self._confirmable, self._confirmed = (
            min(each, beyond) for each in (self._received, self._confirmable, self._confirmed)
        )

    @property
    def admission(self) -> Admission | None:
        """The session's admission with its control connection, while there is one."""
        return self._admission

    @property
    def waiting_since_us(self) -> int:
        """Commit time of the oldest event that is known and not acknowledged by the bus; 0 without one.

        In microseconds since the epoch, by PostgreSQL's clock. What waited when a session ended waits until the
        next one knows better.
        """
        live = self._live
        if live is not None and (live.ledger.complete or live.ledger.in_transaction):
            return live.intake.waiting_since_us
        return self._waiting_since_us

    def oldest_unacknowledged(self) -> float:
        """Seconds since the commit of the oldest event that isn't acknowledged, 0 with nothing waiting."""
        since = self.waiting_since_us
        return max(0.0, time.time() + self.clock_ahead - since / 1_000_000) if since else 0.0

    @property
    def oldest_known(self) -> float | None:
        """The same, but None while nothing is read here: what waits nobody knows then, or another relay."""
        return self.oldest_unacknowledged() if self._live is not None or self._waiting_since_us else None

    @property
    def received(self) -> LSN:
        """Up to where the stream has come."""
        return max(self._received, self._live.ledger.complete) if self._live else self._received

    @property
    def confirmable(self) -> LSN:
        """Up to where Kafka has confirmed everything, so that only PostgreSQL is yet to be told."""
        live = self._live
        return max(self._confirmable, live.ledger.confirmable) if live else self._confirmable

    def notice(self) -> None:
        """Notice since when PostgreSQL has yet to hear of what Kafka has. To be called every second.

        What isn't worth a confirmation by itself may wait for as long as nothing more comes, and is none of it.
        """
        confirmable, confirmed = self.confirmable, self.confirmed
        if confirmable.bytes_since(confirmed) < IDLE_STEP:
            self._owing = None
        elif self._owing is None or self._owing[0] != confirmed:
            self._owing = confirmed, time.time()

    @property
    def confirmable_since(self) -> float | None:
        """Since when `confirmable` is ahead of `confirmed` by what has to be confirmed; None where it isn't.

        In seconds since the epoch, a second late at most.
        """
        self.notice()
        return None if self._owing is None else self._owing[1]

    @property
    def acknowledged_at(self) -> float | None:
        """When the bus last confirmed something, seconds since the epoch; None before the first time.

        Where PostgreSQL has yet to hear of it, what comes from the bus says nothing of the slot: then it is since when
        that is so.
        """
        since = self.confirmable_since
        return self.tally.last_acknowledged if since is None else since

    @property
    def confirmed(self) -> LSN:
        """Up to where PostgreSQL was told to forget."""
        return max(self._confirmed, self._live.stream.confirmed) if self._live else self._confirmed

    @property
    def inflight(self) -> tuple[int, int]:
        """Events and bytes that were read and are not acknowledged."""
        if self._live is None:
            return 0, 0
        return self._live.publisher.inflight_events, self._live.publisher.inflight_bytes

    @property
    def events_received(self) -> int:
        """Rows of our tables, since the process began; those that were left out are among them."""
        return self.tally.received + (self._live.intake.received if self._live else 0)

    @property
    def events_skipped(self) -> Counter[str]:
        """What was left out, by reason."""
        return self.tally.skipped + Counter(self._live.intake.skipped) if self._live else self.tally.skipped

    @property
    def keepalives(self) -> int:
        """Keepalives that PostgreSQL has sent."""
        return self.tally.keepalives + (self._live.stream.keepalives if self._live else 0)

    @property
    def status_updates(self) -> int:
        """Status updates that were sent to it."""
        return self.tally.status_updates + (self._live.stream.status_updates if self._live else 0)
