"""The backoff: it doubles to its limit, with a jitter that only shortens."""

from __future__ import annotations

import pytest

from cdc_outbox.backoff import Backoff
from cdc_outbox.settings.model import RetrySettings


def waits(backoff: Backoff, count: int) -> list[float]:
    return [backoff.seconds() for _ in range(count)]


def test_it_doubles_to_the_limit_and_stays_there() -> None:
    for wait, full in zip(
        waits(Backoff(RetrySettings(0.2, 2.0)), 8), [0.2, 0.4, 0.8, 1.6, 2, 2, 2, 2], strict=True
    ):
        assert full / 2 <= wait <= full


def test_success_begins_anew() -> None:
    backoff = Backoff(RetrySettings(0.2, 2.0))
    waits(backoff, 5)
    backoff.reset()
    assert backoff.seconds() <= 0.2


def test_relays_that_lost_the_same_server_spread() -> None:
    first = {Backoff(RetrySettings(1.0, 2.0)).seconds() for _ in range(50)}
    assert len(first) > 40
    assert max(first) - min(first) > 0.2


@pytest.mark.parametrize("limit", [0.1, 0.2])
def test_a_limit_at_the_first_wait_or_below_is_kept(limit: float) -> None:
    assert max(waits(Backoff(RetrySettings(0.2, limit)), 5)[1:]) <= limit
