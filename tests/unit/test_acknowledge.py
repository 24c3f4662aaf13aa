"""The ledger on the cases that cost relays their users' events. The state machine in tests/property has the rest."""

from __future__ import annotations

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_nothing_was_received_yet(ledger: Ledger) -> None:
    assert ledger.confirmable == LSN(0)
    assert not ledger.in_transaction
    assert ledger.unsettled == 0


def test_a_transaction_is_confirmable_by_its_end_and_not_before_its_commit(ledger: Ledger) -> None:
    ledger.begin(100)
    under_way = ledger.in_transaction
    ledger.settle(ledger.pin())
    assert ledger.confirmable == 0
    ledger.commit(108)
    assert (under_way, ledger.in_transaction) == (True, False)
    assert ledger.confirmable == 108
    assert isinstance(ledger.confirmable, LSN)


def test_an_open_batch_holds_its_commit_and_all_after_it(ledger: Ledger) -> None:
    ledger.begin(100)
    pin = ledger.pin()
    ledger.commit(108)
    ledger.begin(200)
    ledger.settle(ledger.pin())
    ledger.commit(208)
    ledger.idle(300)
    assert ledger.confirmable == 0
    assert ledger.complete == 300
    ledger.settle(pin)
    assert ledger.confirmable == 300


def test_a_batch_of_several_transactions_holds_from_its_first_row(ledger: Ledger) -> None:
    ledger.begin(100)
    ledger.commit(108)
    ledger.begin(200)
    pin = ledger.pin()
    ledger.commit(208)
    ledger.begin(300)
    ledger.commit(308)
    assert ledger.confirmable == 108
    ledger.settle(pin)
    assert ledger.confirmable == 308


def test_a_keepalive_within_a_transaction_proves_nothing(ledger: Ledger) -> None:
    ledger.begin(100)
    ledger.idle(500)
    assert ledger.confirmable == 0
    ledger.commit(108)
    assert ledger.confirmable == 108


def test_a_keepalive_never_takes_the_position_back(ledger: Ledger) -> None:
    ledger.idle(100)
    ledger.idle(50)
    assert ledger.confirmable == 100


def test_a_batch_of_an_earlier_transaction_holds_a_keepalive(ledger: Ledger) -> None:
    ledger.idle(50)
    ledger.begin(100)
    pin = ledger.pin()
    ledger.commit(108)
    ledger.idle(1000)
    assert ledger.confirmable == 50
    ledger.settle(pin)
    assert ledger.confirmable == 1000


@pytest.mark.parametrize(
    ("done", "wrong"),
    [
        ([], ("commit", 108)),
        ([("begin", 100)], ("begin", 200)),
        ([("begin", 100), ("commit", 108)], ("begin", 107)),
        ([("begin", 100), ("commit", 108)], ("commit", 208)),
        ([("begin", 100)], ("commit", 100)),
        ([("begin", 100)], ("commit", 99)),
        ([("idle", 500)], ("begin", 499)),
    ],
)
def test_what_is_out_of_order_is_refused_and_changes_nothing(
    ledger: Ledger, done: list[tuple[str, int]], wrong: tuple[str, int]
) -> None:
    for name, position in done:
        getattr(ledger, name)(position)
    before = (ledger.confirmable, ledger.complete, ledger.in_transaction)
    with pytest.raises(ProtocolViolation) as refused:
        getattr(ledger, wrong[0])(wrong[1])
    assert str(LSN(wrong[1])) in str(refused.value)
    assert (ledger.confirmable, ledger.complete, ledger.in_transaction) == before


def test_a_transaction_may_begin_where_the_last_one_ended(ledger: Ledger) -> None:
    ledger.begin(100)
    ledger.commit(108)
    ledger.begin(108)
    assert ledger.in_transaction
    ledger.commit(116)
    assert ledger.confirmable == 116
