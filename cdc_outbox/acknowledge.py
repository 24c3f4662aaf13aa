"""What may be confirmed to PostgreSQL: the place where relays lose data.

A confirmed LSN tells the server to forget. So a position is confirmable only when every row of every
transaction up to it is settled: confirmed by the broker, left out by rule, or set aside durably. Batches settle in
any order; the prefix grows only from the left.

Each batch of rows has a `Pin` from its first row on. The pin remembers the *floor*: the last position that was
complete before that row. As long as it is in its place, nothing beyond its floor is confirmable. Rows of a transaction
that is still under way have pins whose floor lies before it, so it needs no case of its own.

The ledger belongs to one connection and knows only positions received on it, unchanged: a commit's end LSN, or
the position of a keepalive that arrived between transactions. Hence nothing can be confirmed that was never
received (PostgreSQL would accept that, and then skip events to come).
https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

from collections import deque
from typing import Final

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN

_NEVER: Final = -1


class Pin:
    """Rows that are on their way. Until they are settled, nothing beyond `floor` may be confirmed.

    `committed_us`: when the first of them was committed, in microseconds since the epoch; 0 where not known.
    """

    __slots__ = ("committed_us", "floor", "settled")

    def __init__(self, floor: int, committed_us: int = 0) -> None:
        self.floor = floor
        self.committed_us = committed_us
        self.settled = False


class Ledger:
    """The order of commits on one connection, and which of them are settled."""

    __slots__ = ("_begun", "_complete", "_pins")

    def __init__(self) -> None:
        self._complete = 0
        self._begun = _NEVER
        self._pins: deque[Pin] = deque()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is under way on the wire: its BEGIN came, its COMMIT did not."""
        return self._begun >= self._complete

    @property
    def begun(self) -> LSN:
        """Where the commit record of the last transaction that was begun lies; 0 before the first."""
        return LSN(max(self._begun, 0))

    @property
    def unsettled(self) -> int:
        """The number of pins from the oldest on that isn't settled."""
        return len(self._pins)

    @property
    def oldest_us(self) -> int:
        """When the first row of the oldest pin was committed; 0 without one."""
        return self._pins[0].committed_us if self._pins else 0

    @property
    def complete(self) -> LSN:
        """The last position up to which everything was received."""
        return LSN(self._complete)

    @property
    def confirmable(self) -> LSN:
        """The position up to which everything is settled; never falls."""
        return LSN(self._pins[0].floor if self._pins else self._complete)

    def begin(self, final_lsn: int) -> None:
        """A BEGIN came; `final_lsn` is where its commit record lies.

        Raises ProtocolViolation if a transaction is under way, or if this one should have come earlier.
        """
        if self._begun >= self._complete or final_lsn < self._complete:
            raise ProtocolViolation(
                f"BEGIN at {LSN(final_lsn)} after {LSN(self._complete)} is out of order",
                next="this is a fault of the server or of cdc-outbox: please report it with both versions",
            )
        self._begun = final_lsn

    def commit(self, end_lsn: int) -> None:
        """The COMMIT of the transaction under way came; `end_lsn` is its end LSN.

        Raises ProtocolViolation if there was no BEGIN, or the end lies before it.
        """
        if self._begun < self._complete or end_lsn <= self._begun:
            raise ProtocolViolation(
                f"COMMIT at {LSN(end_lsn)} doesn't belong to a BEGIN",
                next="this is a fault of the server or of cdc-outbox: please report it with both versions",
            )
        self._complete = end_lsn

    def idle(self, position: int) -> None:
        """A keepalive came: between transactions, everything before `position` was received."""
        if self._begun < self._complete < position:
            self._complete = position

    def pin(self, committed_us: int = 0) -> Pin:
        """Hold everything back that is not complete yet, until the pin is settled."""
        pin = Pin(self._complete, committed_us)
        self._pins.append(pin)
        return pin

    def settle(self, pin: Pin) -> None:
        """All rows of the pin are settled."""
        pin.settled = True
        pins = self._pins
        while pins and pins[0].settled:
            pins.popleft()
