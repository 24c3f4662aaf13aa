"""The judge of the storms and of the soak sees what it must see."""

from __future__ import annotations

import pytest

from tests.chaos.rig import Judgement, Kill, blame
from tests.chaos.soak import objections
from tests.chaos.tally import Again, Books

TRUTH = {"a": [1, 2, 4], "b": [1]}
GOOD = [("a", 1, 0), ("b", 1, 1), ("a", 2, 0), ("a", 4, 0)]


def books(records: list[tuple[str, int, int]]) -> Books:
    """Records of (key, counter, partition), appended a second after each other."""
    made = Books()
    for offset, (key, n, partition) in enumerate(records):
        made.take(key, n, partition, offset, 1000 * offset)
    return made


def test_what_arrived_as_it_was_written_is_good() -> None:
    made = books([*GOOD, ("a", 2, 0), ("a", 4, 0)])
    assert made.compare(TRUTH) == []
    assert (made.records, made.distinct) == (6, 4)
    assert made.again == [Again("a", 2, 2000, 4000), Again("a", 4, 3000, 5000)]


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        (GOOD[1:], "a: 1 missing, the first 1"),
        (GOOD[:-1], "a: 1 missing, the first 4"),
        ([GOOD[0], *GOOD[2:]], "b: 1 missing, the first 1"),
        ([*GOOD, ("a", 3, 0)], "a: 1 never committed, the first 3"),
        ([*GOOD, ("c", 1, 0)], "c: 1 never committed, the first 1"),
        ([GOOD[2], GOOD[0], GOOD[1], GOOD[3]], "a: 1 at 0/1 comes after 2"),
        ([*GOOD[:-1], ("a", 4, 1)], "a 4 is in partition 1, others in 0"),
    ],
)
def test_loss_invention_and_disorder_are_seen(records: list[tuple[str, int, int]], fault: str) -> None:
    assert fault in books(records).compare(TRUTH)


def test_each_second_delivery_is_laid_to_the_first_kill_after_the_first() -> None:
    again = [
        Again("a", 1, 9_000, 12_000),
        Again("a", 2, 9_900, 12_000),
        Again("a", 3, 10_100, 12_000),  # on its way when the relay died
        Again("a", 4, 19_000, 31_500),  # two kills between: it should have been confirmed before the second
        Again("a", 5, 15_000, 15_100),
        Again("a", 6, 16_000, 17_500),
    ]
    kills, restarted, unexplained = blame([10_000, 20_000, 30_000], again, [9_500, 17_000])
    assert kills == (Kill(10_000, 3, 1_000), Kill(20_000, 1, 1_000), Kill(30_000, 0, 0))
    assert (restarted, unexplained) == (1, 1)


def test_the_soak_objects_to_what_kills_do_not_explain() -> None:
    def judgement(*, oldest_ms: int, unexplained: int) -> Judgement:
        return Judgement(10, 12, 2, 0, unexplained, (Kill(1, 2, oldest_ms),), ())

    assert objections(judgement(oldest_ms=1_900, unexplained=0), strict=True) == []
    assert len(objections(judgement(oldest_ms=2_100, unexplained=3), strict=True)) == 2
    assert objections(judgement(oldest_ms=2_100, unexplained=3), strict=False) == []
