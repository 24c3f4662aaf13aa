"""What the relay is doing, for logs, probes and pages: one state at a time, with its reason in words."""

from __future__ import annotations

import enum
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cdc_outbox import log

if TYPE_CHECKING:
    from cdc_outbox.errors import CdcOutboxError

_log = log.get(__name__)


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


@dataclass(slots=True)
class Status:
    """The state now, since when (seconds since the epoch), and the last ten errors."""

    slot: str
    state: State = State.CONNECTING
    reason: str = ""
    since: float = field(default_factory=time.time)
    beat: float = field(default_factory=time.monotonic)
    errors: deque[Trouble] = field(default_factory=lambda: deque(maxlen=10))

    def change(self, state: State, reason: str = "") -> None:
        """Enter a state; one log line for each change of it."""
        if state is not self.state:
            self.since = time.time()
            _log.info("state", state=state.value, reason=reason, slot=self.slot)
        self.state = state
        self.reason = reason

    def trouble(self, error: CdcOutboxError) -> None:
        """Remember an error for the status page."""
        self.errors.append(Trouble(time.time(), str(error), error.next))
