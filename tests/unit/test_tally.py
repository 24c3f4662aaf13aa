"""The tally: histograms that lose and invent nothing, and words and topics that stay few."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.errors import KafkaUnavailable, PostgresShutdown, SetupError
from cdc_outbox.tally import SECONDS, TOPICS, Histogram, Tally, by_topic, quantile, reason

seconds = st.floats(0, 1e5)


@given(st.lists(st.tuples(seconds, seconds, st.integers(1, 5000)), max_size=20))
def test_what_is_spread_is_neither_lost_nor_invented(batches: list[tuple[float, float, int]]) -> None:
    histogram = Histogram(SECONDS)
    for one, other, weight in batches:
        before = list(histogram.counts)
        histogram.spread(min(one, other), max(one, other), weight)
        assert all(now >= then for now, then in zip(histogram.counts, before, strict=True))
    assert sum(histogram.counts) == sum(weight for _, _, weight in batches)
    assert histogram.sum == pytest.approx(sum((a + b) / 2 * weight for a, b, weight in batches))


@given(seconds, st.integers(1, 1000))
def test_equal_ends_are_one_value(value: float, weight: int) -> None:
    spread, observed = Histogram(SECONDS), Histogram(SECONDS)
    spread.spread(value, value, weight)
    observed.observe(value, weight)
    assert spread.counts == observed.counts


def test_values_between_two_ends_are_even() -> None:
    histogram = Histogram((1.0, 2.0, 4.0))
    histogram.spread(0.5, 4.5, 80)
    assert histogram.counts == [10, 20, 40, 10]


def test_a_bound_belongs_to_the_interval_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(1.0)
    histogram.observe(2.1, 3)
    assert histogram.counts == [1, 0, 3]


@pytest.mark.parametrize(("part", "value"), [(0.5, 1.5), (0.25, 1.25), (1.0, 2.0)])
def test_a_quantile_lies_evenly_in_its_interval(part: float, value: float) -> None:
    assert quantile((1.0, 2.0, 3.0), [0, 100, 0, 0], part) == pytest.approx(value)


@given(st.floats(0.001, 600.0), st.sampled_from([0.5, 0.99]))
def test_a_quantile_of_equal_durations_is_within_a_factor_of_two(value: float, part: float) -> None:
    histogram = Histogram(SECONDS)
    histogram.observe(value, 100)
    told = quantile(SECONDS, histogram.counts, part)
    assert told is not None
    assert value / 2 <= told <= value * 2


def test_a_quantile_of_nothing_is_none_and_of_what_is_beyond_the_last_bound() -> None:
    assert quantile((1.0, 2.0), [0, 0, 0], 0.5) is None
    assert quantile((1.0, 2.0), [0, 0, 7], 0.5) == 2.0


def test_a_confirmed_batch_counts_with_its_weight() -> None:
    tally = Tally()
    now = time.time_ns() // 1000
    tally.confirmed(
        "orders", 40, 9000, since=time.monotonic() - 0.004, commits_us=(now - 400_000, now - 350_000)
    )
    tally.confirmed("orders", 2, 500, since=time.monotonic(), commits_us=(now + 60_000_000, now + 60_000_000))
    assert tally.first is not None
    topic, latency = tally.first
    assert topic == "orders"
    assert latency == pytest.approx(0.4, abs=0.3), "that of its oldest row"
    assert tally.published == {"orders": 42}
    assert tally.bytes == {"orders": 9500}
    assert sum(tally.latency.counts) == 42
    assert sum(tally.latency.counts[: SECONDS.index(0.3) + 1]) == 2, (
        "a clock behind the server's: no time at all"
    )
    assert sum(tally.publish_duration.counts) == 2
    assert tally.last_acknowledged == pytest.approx(time.time(), abs=5)


def test_without_a_commit_time_there_is_no_latency() -> None:
    tally = Tally()
    tally.confirmed("orders", 40, 9000, since=time.monotonic(), commits_us=(0, 0))
    assert sum(tally.latency.counts) == 0
    assert tally.published.total() == 40
    assert tally.first == ("orders", None)
    tally.first = None  # somebody has told it
    tally.confirmed("orders", 1, 9, since=time.monotonic(), commits_us=(0, 0))
    assert tally.first is None


def test_the_ends_of_sessions_are_told_apart() -> None:
    tally = Tally()
    tally.ended(KafkaUnavailable("away", next="wait"), streamed=False)
    tally.ended(PostgresShutdown("down", next="wait"), streamed=True)
    tally.ended(SetupError("no", next="mend it"), streamed=True)
    assert tally.reconnects == {("kafka", "kafka_unavailable"): 1, ("postgres", "postgres_shutdown"): 1}
    assert tally.restarts == {"postgres_shutdown": 1, "setup": 1}


def test_an_errors_word_is_its_classs() -> None:
    class UnknownTopicOrPartitionError(Exception):
        pass

    assert reason(UnknownTopicOrPartitionError()) == "unknown_topic_or_partition"


def test_topics_beyond_the_first_hundred_are_one() -> None:
    counts = Counter({f"topic-{number}": number for number in range(TOPICS + 20)})
    shown = by_topic(counts)
    assert len(shown) == TOPICS + 1
    assert sum(shown.values()) == counts.total()
    few = Counter({"a": 1, "other": 2})
    assert by_topic(few) == {"a": 1, "other": 2}
