"""What an error means depends on what was met before, and on how far the relay had come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdc_outbox import setback
from cdc_outbox.errors import (
    CdcOutboxError,
    ConfigError,
    DecodingFailed,
    Held,
    KafkaUnavailable,
    MissingRight,
    PoisonEvent,
    PostgresUnavailable,
    PublicationUnseen,
    PublicationWrong,
)
from cdc_outbox.publisher import BusRefused
from cdc_outbox.setback import Setbacks
from cdc_outbox.state import State, Status

HIDES = PublicationWrong("publication outbox_pub lacks table public.outbox", next="add it")
UNREADABLE = ConfigError("the TLS files of [kafka.client] can't be used", next="check ssl.key.location")
REFUSED = BusRefused("Kafka refuses us", next="check sasl.*")
POISON = PoisonEvent("bad", next="mend it", reason="no_key")


def met(
    error: CdcOutboxError, *, admitted: bool = False, began: bool = False, flowed: bool = False
) -> State | None:
    """The state until the next try; None where there is none."""
    status = Status("outbox_slot", admitted=admitted)
    may = Setbacks(status, blocks=False).may_go_on(error, began=began, flowed=flowed)
    return status.state if may else None


def test_what_is_wrong_at_the_start_is_the_end_and_holds_later() -> None:
    assert (met(HIDES), met(HIDES, admitted=True)) == (None, State.HELD)
    assert (met(REFUSED), met(REFUSED, began=True)) == (None, State.HELD)
    assert (met(UNREADABLE), met(UNREADABLE, began=True)) == (None, State.HELD)
    assert met(MissingRight("no", next="grant it"), admitted=True, began=True) is None


def test_an_outage_connects_anew_and_a_failed_delivery_holds() -> None:
    assert met(PostgresUnavailable("gone", next="wait")) is State.CONNECTING
    assert met(KafkaUnavailable("gone", next="wait")) is State.CONNECTING
    assert met(KafkaUnavailable("unknown", next="wait"), flowed=True) is State.HELD
    assert met(Held("a right is missing", next="grant it")) is State.HELD


@pytest.mark.parametrize("blocks", [True, False])
def test_poison_is_tried_again_only_where_it_blocks(blocks: bool) -> None:
    assert Setbacks(Status("outbox_slot"), blocks=blocks).may_go_on(POISON, began=True, flowed=True) is blocks


def test_the_same_place_again_is_no_outage_any_more() -> None:
    status = Status("outbox_slot", admitted=True)
    setbacks = Setbacks(status, blocks=False)
    unread = DecodingFailed("PostgreSQL failed to decode its WAL: (at 0/1)", next="update it")
    states = []
    for _ in range(2):
        assert setbacks.may_go_on(unread, began=True, flowed=True)
        states.append(status.state)
    assert states == [State.CONNECTING, State.HELD]
    unseen = PublicationUnseen("the stream reached rows of a time without it (at 0/2)", next="recover")
    assert setbacks.may_go_on(unseen, began=True, flowed=True)
    assert not setbacks.may_go_on(unseen, began=True, flowed=True)


def test_an_error_that_lasts_is_told_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(setback, "time", SimpleNamespace(monotonic=lambda: now))
    setbacks = Setbacks(Status("outbox_slot"), blocks=False)
    for seconds in (0, 30, 59, 60, 100, 121):
        now = 1000.0 + seconds
        setbacks.say(PostgresUnavailable("gone", next="check the server"))
    assert [record.getMessage() for record in caplog.records] == ["waiting", "still waiting", "still waiting"]
    assert caplog.records[0].__dict__["fields"]["next"] == "check the server; the relay goes on trying"
