"""The judge of a cut-over sees what it must see."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.polling.books import Books, Delivery, Entry, judge
from tests.servers.ledger import Record

BOOKS = Books(
    committed={
        "a1": Entry("a", 1, 0.0),
        "a2": Entry("a", 2, 0.0),
        "a3": Entry("a", 3, 0.0),
        "b1": Entry("b", 1, 0.0),
    },
    rolled_back={"a9"},
    elsewhere={"r1"},
)
GOOD = [("a1", "old"), ("b1", "old"), ("a2", "backfill"), ("a3", "stream")]
IDS = {event: f"id-{event}" for event in BOOKS.committed}
HEADERS = {"old": ("sent-by", b"old"), "backfill": ("cdc.source", b"backfill"), "stream": ("type", b"x")}


def record(offset: int, event: str, sender: str, partition: int = 0, key: str = "") -> Record:
    entry = BOOKS.committed.get(event, Entry("a", 9, 0.0))
    value = json.dumps({"event_id": event, "n": entry.n}).encode()
    headers = (("id", f"id-{event}".encode()), HEADERS[sender])
    return Record("orders", partition, offset, (key or entry.key).encode(), value, headers, 0, 1)


def excuse(_event: str, _entry: Entry, first: Delivery, again: Delivery) -> str | None:
    return "of the overlap" if (first.sender, again.sender) == ("old", "stream") else None


def verdict(sent: Sequence[tuple[str, str]], **options: frozenset[str]):
    records = [record(offset, event, sender) for offset, (event, sender) in enumerate(sent)]
    return judge(BOOKS, records, ids=IDS, excuse=excuse, **options)


def test_a_cut_over_without_a_fault_says_who_sent_what_first() -> None:
    found = verdict([*GOOD, ("a1", "stream")]).require()
    assert (found.committed, found.records) == (4, 5)
    assert found.first == {"old": 2, "backfill": 1, "stream": 1}
    assert found.twice == {"of the overlap": 1}


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (GOOD[1:], "a: 1 is missing"),
        ([*GOOD, ("a9", "stream")], "a9 at orders/0/4 by stream was rolled back"),
        ([*GOOD, ("r1", "stream")], "r1 at orders/0/4 by stream belongs to another bus"),
        ([*GOOD, ("x", "stream")], "x at orders/0/4 by stream was never written"),
    ],
)
def test_loss_and_invention_are_seen(sent: list[tuple[str, str]], fault: str) -> None:
    assert fault in verdict(sent).faults


def test_first_deliveries_out_of_order_are_seen_and_later_ones_are_not() -> None:
    (fault,) = verdict([GOOD[0], GOOD[1], GOOD[3], GOOD[2]]).out_of_order
    assert fault.startswith("a: 2 by ")
    assert not verdict([*GOOD, ("a1", "stream")]).out_of_order


def test_what_nothing_explains_is_a_fault() -> None:
    assert len(verdict([*GOOD, ("a2", "stream")]).unexplained) == 1


def test_what_was_not_to_be_sent_must_not_come() -> None:
    kept_back = frozenset({"b1"})
    assert [fault for fault in verdict(GOOD, undelivered=kept_back).faults if "was not to be sent" in fault]
    assert not verdict([each for each in GOOD if each[0] != "b1"], undelivered=kept_back).faults


def test_a_key_in_two_partitions_and_a_foreign_id_are_seen() -> None:
    records = [record(0, "a1", "old"), record(1, "a2", "stream", partition=1), record(2, "a3", "stream")]
    records += [record(3, "b1", "old", key="c")]
    found = judge(BOOKS, records, ids={**IDS, "a1": "other"}, excuse=excuse)
    assert [text.split(" ")[0] for text in found.wrong] == ["a1", "b1", "a"]
