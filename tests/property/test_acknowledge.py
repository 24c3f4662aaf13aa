"""F4: confirmations in any order. The ledger against a model that keeps everything and computes from scratch."""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cdc_outbox.acknowledge import Ledger, Pin
from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN

LANES = 3
steps = st.integers(min_value=0, max_value=1 << 33)


@dataclass
class Batch:
    """What the model knows of a pin: the transactions, by number, that its rows are of."""

    pin: Pin
    rows_of: set[int] = field(default_factory=set)
    settled: bool = False


class Acknowledgement(RuleBasedStateMachine):
    """A walsender, a publisher with a few lanes, and a broker that confirms in any order.

    The model: each position that was received between transactions has the number of transactions before it. It may
    be confirmed when no row of those transactions is in an unsettled batch.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.wal = 0
        self.in_transaction = False
        self.transactions = 0
        self.positions: list[tuple[int, int]] = [(0, 0)]
        self.open: dict[int, Batch] = {}
        self.batches: list[Batch] = []
        self.confirmed = LSN(0)

    def expected(self) -> int:
        return max(
            position
            for position, before in self.positions
            if not any(
                number < before for batch in self.batches if not batch.settled for number in batch.rows_of
            )
        )

    @precondition(lambda self: not self.in_transaction)
    @rule(step=steps)
    def begin(self, step: int) -> None:
        self.wal += step
        self.ledger.begin(self.wal)
        self.in_transaction = True

    @precondition(lambda self: self.in_transaction)
    @rule(lane=st.integers(min_value=0, max_value=LANES - 1))
    def row(self, lane: int) -> None:
        batch = self.open.get(lane)
        if batch is None:
            batch = self.open[lane] = Batch(self.ledger.pin())
            self.batches.append(batch)
        batch.rows_of.add(self.transactions)

    @precondition(lambda self: self.in_transaction)
    @rule(step=steps)
    def commit(self, step: int) -> None:
        self.wal += step + 1
        self.ledger.commit(self.wal)
        self.in_transaction = False
        self.transactions += 1
        self.positions.append((self.wal, self.transactions))

    @rule(step=steps, back=st.booleans())
    def keepalive(self, step: int, back: bool) -> None:
        position = max(0, self.wal - step) if back else self.wal + step
        self.ledger.idle(position)
        if not self.in_transaction:
            self.wal = max(self.wal, position)
            if position >= self.positions[-1][0]:
                self.positions.append((position, self.transactions))

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """A batch leaves; the lane's next row opens another."""
        del self.open[data.draw(st.sampled_from(sorted(self.open)))]

    @precondition(lambda self: any(not batch.settled for batch in self.sent))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        batch = data.draw(st.sampled_from([batch for batch in self.sent if not batch.settled]))
        self.ledger.settle(batch.pin)
        batch.settled = True

    @property
    def sent(self) -> list[Batch]:
        still_open = [id(batch) for batch in self.open.values()]
        return [batch for batch in self.batches if id(batch) not in still_open]

    @precondition(lambda self: self.in_transaction)
    @rule(step=steps)
    def begin_within(self, step: int) -> None:
        self.refused("begin", self.wal + step)

    @precondition(lambda self: not self.in_transaction)
    @rule(step=steps)
    def commit_without_begin(self, step: int) -> None:
        self.refused("commit", self.wal + step)

    def refused(self, what: str, position: int) -> None:
        try:
            getattr(self.ledger, what)(position)
        except ProtocolViolation:
            return
        raise AssertionError(f"{what} at {position} was taken")

    @invariant()
    def confirms_what_the_model_does_and_never_less_than_before(self) -> None:
        now = self.ledger.confirmable
        assert now == self.expected()
        assert now >= self.confirmed
        assert now in {position for position, _ in self.positions}
        assert self.ledger.in_transaction == self.in_transaction
        self.confirmed = now

    @invariant()
    def settled_means_everything_received(self) -> None:
        if all(batch.settled for batch in self.batches):
            assert self.ledger.unsettled == 0
            assert self.ledger.confirmable == self.ledger.complete


Acknowledgement.TestCase.settings = settings(max_examples=300, stateful_step_count=60, deadline=None)
TestAcknowledgement = Acknowledgement.TestCase
