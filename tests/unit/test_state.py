"""The status: one line in the log for each change of state, the last ten errors, when it began,
and the numbers that outlive a session."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.repeats import FEW
from cdc_outbox.settlement import IDLE_STEP
from cdc_outbox.state import State, Status

LOT = IDLE_STEP


def test_a_change_is_one_line_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    status = Status("outbox_slot")
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        status.change(State.STREAMING)
        status.change(State.STREAMING)
        status.change(State.HELD, "no topic orders")
        status.change(State.HELD, "no right on topic orders")
    lines = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "state"]
    assert [(line["state"], line["reason"]) for line in lines] == [
        ("streaming", ""),
        ("held", "no topic orders"),
    ]
    assert {line["slot"] for line in lines} == {"outbox_slot"}
    assert status.reason == "no right on topic orders"


def test_a_state_that_comes_and_goes_fills_no_log_and_is_said_when_it_lasts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server answers for a moment every five seconds, for ten minutes; then it stays."""
    now = 1000.0
    monkeypatch.setattr("cdc_outbox.state.time.time", lambda: now)
    monkeypatch.setattr("cdc_outbox.repeats.time.monotonic", lambda: now)
    status = Status("outbox_slot")
    with caplog.at_level(logging.INFO, "cdc_outbox"):
        for number in range(120):
            status.change(State.STREAMING)
            status.change(State.CONNECTING, f"process {number} has the slot")
            now += 5
            status.remind()
        flapping = len(caplog.records)
        status.change(State.STREAMING)
        for _ in range(10):
            now += 10
            status.remind()
    assert flapping <= 2 * (FEW + 10)
    (last,) = [record.__dict__["fields"] for record in caplog.records[flapping:]]
    assert last["state"] == "streaming"
    assert last["held_back"] > 0


def test_since_is_the_last_change_of_the_state_not_of_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    status = Status("outbox_slot", since=1.0)
    monkeypatch.setattr("cdc_outbox.state.time.time", lambda: 5.0)
    status.change(State.HELD, "one")
    monkeypatch.setattr("cdc_outbox.state.time.time", lambda: 9.0)
    status.change(State.HELD, "two")
    assert status.since == 5.0


def test_the_last_ten_errors_are_kept() -> None:
    status = Status("outbox_slot")
    for number in range(15):
        status.trouble(KafkaUnavailable(f"error {number}", next="wait"))
    assert [trouble.error for trouble in status.errors] == [f"error {number}" for number in range(5, 15)]
    assert {trouble.next for trouble in status.errors} == {"wait"}


def test_states_are_the_words_of_the_contract() -> None:
    assert {state.value for state in State} == {
        "connecting",
        "standby",
        "streaming",
        "held",
        "blocked",
        "draining",
        "stopped",
    }
    assert [state for state in State if state.ready] == [State.STANDBY, State.STREAMING]


def a_session(status: Status, *, waiting_since_us: int = 0, complete: int = 0x100) -> SimpleNamespace:
    session = SimpleNamespace(
        stream=SimpleNamespace(keepalives=2, status_updates=5, confirmed=LSN(0x80)),
        ledger=SimpleNamespace(complete=LSN(complete), confirmable=LSN(complete), in_transaction=False),
        publisher=SimpleNamespace(inflight_events=4, inflight_bytes=500),
        intake=SimpleNamespace(
            received=7, skipped={"bus": 1}, waiting_since_us=waiting_since_us, count=lambda: None
        ),
    )
    status.connect(cast(Any, object()))
    status.stream(cast(Any, session))
    return session


def counted(status: Status) -> tuple[object, ...]:
    return status.events_received, status.events_skipped["bus"], status.keepalives, status.status_updates


def test_counts_outlive_their_session_and_nothing_counts_twice() -> None:
    status = Status("outbox_slot")
    assert counted(status) == (0, 0, 0, 0)
    for sessions in (1, 2, 3):
        a_session(status)
        assert counted(status) == (7 * sessions, sessions, 2 * sessions, 5 * sessions)
        assert status.inflight == (4, 500)
        status.leave()
        assert counted(status) == (7 * sessions, sessions, 2 * sessions, 5 * sessions)
        assert status.inflight == (0, 0)
    assert (status.received, status.confirmed) == (0x100, 0x80)


def test_a_session_that_never_streamed_leaves_nothing() -> None:
    status = Status("outbox_slot")
    status.connect(cast(Any, object()))
    assert status.connected.is_set()
    status.leave()
    assert not status.connected.is_set()
    assert status.admission is None
    assert counted(status) == (0, 0, 0, 0)


def test_what_waited_when_a_session_ended_waits_until_the_next_one_knows_better() -> None:
    status = Status("outbox_slot")
    assert status.oldest_unacknowledged() == 0
    long_ago = time.time_ns() // 1000 - 90_000_000
    a_session(status, waiting_since_us=long_ago)
    status.leave()
    assert status.oldest_unacknowledged() == pytest.approx(90, abs=5)
    session = a_session(status, complete=0)
    assert status.oldest_unacknowledged() == pytest.approx(90, abs=5), "nothing has come yet"
    session.ledger.complete = LSN(0x100)
    assert status.oldest_unacknowledged() == 0


def test_what_waited_is_the_business_of_the_relay_that_has_the_slot() -> None:
    status = Status("outbox_slot")
    a_session(status, waiting_since_us=time.time_ns() // 1000 - 90_000_000)
    status.leave()
    status.change(State.STANDBY, "walsender 7 streams from the slot")
    assert status.oldest_unacknowledged() == 0


def test_what_the_bus_says_counts_for_the_slot_only_where_nothing_is_left_to_confirm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 2000.0
    monkeypatch.setattr("cdc_outbox.state.time.time", lambda: now)
    status = Status("outbox_slot")
    status.tally.last_acknowledged = 1000.0
    said = [status.acknowledged_at]
    session = a_session(status, complete=LOT - 1)
    session.stream.confirmed = LSN(0)
    said.append(status.acknowledged_at)
    session.ledger.confirmable = LSN(LOT)
    said.append(status.acknowledged_at)
    now += 100
    said.append(status.acknowledged_at)
    status.leave()
    session = a_session(status, complete=0)
    session.stream.confirmed = LSN(0)
    said.append(status.acknowledged_at)
    session.ledger.confirmable = LSN(LOT + 1)
    session.stream.confirmed = LSN(1)  # a step, and not all of it
    said.append(status.acknowledged_at)
    session.stream.confirmed = LSN(2)  # and yet a large transaction may be under way
    assert [*said, status.acknowledged_at] == [1000.0, 1000.0, 2000.0, 2000.0, 2000.0, 2100.0, 1000.0]


@pytest.mark.parametrize("seconds", [1, 4, 400], ids=lambda each: f"confirmed after {each} s")
def test_a_transaction_that_took_long_is_no_stall_when_it_is_delivered(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """Until its commit nothing could be confirmed: only what comes after that counts."""
    now = 1000.0
    monkeypatch.setattr("cdc_outbox.state.time.time", lambda: now)
    status = Status("outbox_slot")
    session = a_session(status)
    session.stream.confirmed = LSN(session.ledger.confirmable - 1)
    for _ in range(600):
        now += 1
        status.tally.last_acknowledged = now
        status.notice()
        assert status.acknowledged_at == now
    session.ledger.complete = session.ledger.confirmable = LSN(2 * LOT)
    delivered = now
    for _ in range(seconds):
        status.notice()
        assert status.acknowledged_at == delivered
        now += 1
    session.stream.confirmed = LSN(2 * LOT)
    assert status.acknowledged_at == status.tally.last_acknowledged


def test_a_commit_that_lies_in_the_future_is_no_negative_age() -> None:
    status = Status("outbox_slot")
    a_session(status, waiting_since_us=time.time_ns() // 1000 + 90_000_000)
    assert status.oldest_unacknowledged() == 0


def test_positions_never_fall() -> None:
    status = Status("outbox_slot")
    a_session(status)
    status.leave()
    a_session(status, complete=0)
    assert (status.received, status.confirmed) == (0x100, 0x80)


def test_positions_of_another_server_or_timeline_mean_nothing() -> None:
    status = Status("outbox_slot")
    session = a_session(status)
    session.stream.confirmed = LSN(0x100)
    status.leave()
    status.forget(LSN(0x90))
    assert (status.received, status.confirmable, status.confirmed) == (0x90, 0x90, 0x90)
    status.forget()
    session = a_session(status, complete=0x30)
    session.stream.confirmed = LSN(0x20)
    assert (status.received, status.confirmable, status.confirmed) == (0x30, 0x30, 0x20)


def test_what_the_slot_has_at_the_start_is_confirmed() -> None:
    """An idle server may have nothing to confirm for long."""
    status = Status("outbox_slot")
    live = a_session(status, complete=2 * LOT)
    assert status.confirmable_since is not None
    status.leave()
    status.stream(cast(Any, live), LSN(2 * LOT - 1))
    assert status.confirmed == 2 * LOT - 1
    assert status.confirmable_since is None
