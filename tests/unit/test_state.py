"""The status: one line in the log for each change of state, the last ten errors, and when it began."""

from __future__ import annotations

import logging

import pytest

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.state import State, Status


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
