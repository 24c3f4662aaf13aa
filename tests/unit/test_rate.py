"""The rate limit, by a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cdc_outbox import rate
from cdc_outbox.rate import RateLimit


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(rate, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def test_without_a_limit_there_is_none() -> None:
    limit = RateLimit(None)
    assert limit.rows() > 1 << 60
    limit.took(10_000_000)
    assert limit.wait == 0.0


def test_a_tenth_of_a_second_at_once_and_then_by_the_clock(clock: Clock) -> None:
    limit = RateLimit(100)
    assert limit.rows() == 10
    limit.took(10)
    assert limit.rows() == 0
    assert limit.wait == pytest.approx(0.01)
    clock.now += 0.0501
    assert limit.rows() == 5
    clock.now += 60
    assert limit.rows() == 10


@pytest.mark.parametrize("per_second", [0.1, 1.0, 5.0])
def test_a_slow_limit_lets_one_row_at_a_time_pass(per_second: float, clock: Clock) -> None:
    limit = RateLimit(per_second)
    assert limit.rows() == 1
    limit.took(1)
    assert limit.wait == pytest.approx(1 / per_second)
    clock.now += limit.wait + 1e-6
    assert limit.rows() == 1


@pytest.mark.parametrize("per_second", [0.5, 7, 100, 12_345.6, 1_000_000])
def test_over_time_it_is_the_rate_and_never_more(per_second: float, clock: Clock) -> None:
    limit, taken, began = RateLimit(per_second), 0, clock.now
    for _ in range(500):
        rows = limit.rows()
        limit.took(rows)
        taken += rows
        clock.now += limit.wait or 0.001
    passed = clock.now - began
    assert taken <= passed * per_second + max(1.0, per_second / 10)
    assert taken >= passed * per_second * 0.95 - 1
