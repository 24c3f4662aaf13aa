"""The account of a trial: what is the same beside the old relay, and what would be different."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cdc_outbox.cli.account import PARTITIONER, lines
from cdc_outbox.event import TableName
from cdc_outbox.kafka.placement import Obstacle
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.lookup import Moment
from cdc_outbox.postgres.streamed_rows import Row
from cdc_outbox.repair import comparison
from cdc_outbox.repair.comparison import Comparison
from cdc_outbox.repair.old_book import Book
from cdc_outbox.repair.trial import Trial, attempt
from tests.unit.mapped import (
    DEFAULT,
    TABLE_A,
    TABLE_B,
    TABLE_C,
    TEXT,
    Mapped,
    settings,
)
from tests.unit.scripted import COMMIT_US

TABLE = TableName("public", "outbox")
NOW = COMMIT_US + 3_600_000_000
ROW_A = {
    "aggregate_type": "order",
    "aggregate_id": "7",
    "topic": "orders",
    "payload": "{}",
    "status": "pending",
}
ROW_B = {"bus": "kafka", "topic": "orders", "payload": "{}", "status": "pending"}


class Nowhere:
    """Kafka was not reached."""

    async def of(self, *_: object) -> None:
        return None

    async def obstacle(self, *_: object) -> None:
        return None


class Seen:
    """A comparison, the rows that came to it, and what the table says of them."""

    def __init__(self, columns: dict[str, int], row: dict[str, str], **changes: object) -> None:
        self.mapped = Mapped(columns, row=row, **changes)
        self.comparison = Comparison(settings(**changes))
        self.book = Book.of(self.mapped.plan)

    def add(self, commit_us: int = COMMIT_US, obstacle: Obstacle | None = None, **cells: str | None) -> Trial:
        row = Row(LSN(1), 0, commit_us, 77, self.mapped.plan, self.mapped.values(**cells))
        trial = asyncio.run(attempt(row, Nowhere()))  # type: ignore[arg-type]  # has what is asked of it
        if obstacle is not None:
            trial = Trial(row, trial.event, obstacle=obstacle)
        self.comparison.add(trial)
        return trial

    def says(self, id_: str, *texts: str | None, at_us: int = NOW) -> None:
        self.comparison.heed(
            (TABLE, id_),
            sent=self.book.sent(texts),
            status=self.book.status(texts),
            at_us=at_us,
            sent_us=self.book.sent_us(texts),
        )

    def finish(self, now_us: int = NOW) -> dict[str, Any]:
        self.comparison.finish(now_us, {TABLE: self.book})
        return self.comparison.document()


def test_what_the_old_relay_sent_is_the_same_and_its_delay_is_told():
    seen = Seen(TABLE_A, ROW_A)
    assert seen.book.columns == ("status", "sent_at")
    for number in range(100):
        seen.add(id=str(number))
        seen.says(str(number), "sent", f"2024-01-17 13:14:{10 + (number == 99) * 40}.500999+00")
    document = seen.finish()
    assert (document["events"], document["same"], document["different"]) == (100, 100, 0)
    assert document["old_relay_delay_seconds"] == {"p50": 0.25, "p99": 0.25, "max": 40.25, "at_most": False}
    assert lines(document)[-1] == "100 events: nothing would be different"
    assert "note: Kafka was not reached, so nobody knows whether it would take them" in lines(document)


@pytest.mark.parametrize("time", ["infinity", "2024-01-17 13:14:10.25+00", None])
def test_a_time_that_can_not_be_counts_as_when_it_was_seen(time: str | None):
    seen = Seen(TABLE_A, ROW_A)
    seen.add(id="1")
    seen.says("1", "sent", time, at_us=COMMIT_US + 500_000)
    assert seen.finish()["old_relay_delay_seconds"] == {"p50": 0.5, "p99": 0.5, "max": 0.5, "at_most": True}


def test_what_it_has_not_sent_is_told_by_status_with_a_step():
    seen = Seen(TABLE_A, ROW_A)
    for id_, status in enumerate(["pending", "processing", "failed", "dead", "draft", "draft"]):
        seen.add(id=str(id_))
        seen.says(str(id_), status, None)
    document = seen.finish()
    assert document["different"] == 6
    assert {each["what"]: each["ids"] for each in document["differences"]} == {
        "status draft": ["4", "5"],
        "status pending": ["0"],
        "status processing": ["1"],
        "status failed": ["2"],
        "status dead": ["3"],
    }
    assert document["differences"][0]["what"] == "status draft"
    assert "nobody has said what this word of status means" in document["differences"][0]["error"]
    assert "--status sent=draft (or failed, given_up" in document["differences"][0]["next"]
    assert PARTITIONER in lines(document)
    assert "6 of 6 events would be different" in lines(document)


def test_a_status_beside_a_time_is_told_of_where_nobody_has_named_it():
    columns = {**TABLE_C, "state": TEXT}
    seen = Seen(columns, {"topic": "orders", "payload": "{}"}, key="none")
    assert seen.book.columns == ("sent_at", "state")
    for id_, state in enumerate(["NEW", "GIVEN_UP"]):
        seen.add(id=str(id_))
        seen.says(str(id_), None, state)
    remedies = {each["what"]: each["next"] for each in seen.finish()["differences"]}
    assert "see whether the old relay runs" in remedies["status NEW"]
    assert "--status column=state --status sent=GIVEN_UP (or failed, given_up" in remedies["status GIVEN_UP"]


def test_rows_that_are_inserted_before_they_are_due_are_told_of():
    seen = Seen(TABLE_A, ROW_A)
    for id_, status in (("1", "pending"), ("2", "draft")):
        seen.add(id=id_, status=status)
        seen.says(id_, "sent", None)
    document = seen.finish()
    assert (document["different"], document["inserted_as"]) == (0, {"pending": 1, "draft": 1})
    assert any(line.startswith("note: rows are inserted with several statuses") for line in lines(document))


def test_what_was_just_committed_is_undecided():
    seen = Seen(TABLE_C, {"topic": "orders", "payload": "{}"}, key="none")
    seen.add(id="1")
    seen.add(id="2", commit_us=NOW - 1_000_000)
    seen.says("1", None)
    assert seen.comparison.young(NOW)
    document = seen.finish()
    assert (document["different"], document["undecided"]) == (1, 1)
    assert document["differences"][0]["what"] == "not marked"


def test_a_slow_relay_has_more_time():
    seen = Seen(TABLE_A, ROW_A)
    seen.add(id="1")
    seen.says("1", "sent", "2024-01-17 13:14:30.250999+00")
    assert seen.comparison.grace == 40
    seen.add(id="2")
    seen.says("2", "sent", "2024-01-17 13:24:30+00")
    assert seen.comparison.grace == comparison.LONGEST_GRACE


def test_rows_of_another_bus_that_it_sends_would_be_missed():
    seen = Seen(TABLE_B, ROW_B, key="none")
    for id_, bus in (("1", "kafka"), ("2", "rabbit mq"), ("3", "rabbit mq"), ("4", "nats")):
        seen.add(event_id=id_, bus=bus)
    for id_ in ("1", "2", "3"):
        seen.says(id_, "sent", None)
    document = seen.finish()
    assert (document["same"], document["different"], document["neither"]) == (1, 2, 1)
    (difference,) = document["differences"]
    assert (difference["kind"], difference["what"], difference["sent"]) == ("left out", "rabbit mq", True)
    assert "--only 'bus=rabbit mq'" in difference["next"]


def test_what_the_settings_leave_out_is_no_difference():
    seen = Seen(TABLE_B, ROW_B, key="none", only={"bus": ("kafka",)})
    seen.add(event_id="1", bus="nats")
    seen.add(event_id="2", status="sent")
    seen.add(event_id="3")
    seen.says("3", "sent", None)
    document = seen.finish()
    assert (document["events"], document["different"]) == (1, 0)
    assert document["left_out"] == {"bus": 1, "sent": 1}


def test_poison_and_what_is_in_the_way_are_different_whoever_sent_it():
    seen = Seen(TABLE_A, ROW_A)
    seen.add(id="1", topic="no topic")
    seen.add(id="2", topic="no topic")
    seen.add(id="3", obstacle=Obstacle("unknown_topic", "there is no topic orders", "make it"))
    seen.says("1", "sent", None)
    seen.says("3", "sent", None)
    document = seen.finish()
    assert document["different"] == 3
    assert {(each["kind"], each["what"], each["sent"]) for each in document["differences"]} == {
        ("poison", "topic", True),
        ("poison", "topic", False),
        ("stuck", "unknown_topic", True),
    }


def test_a_row_without_an_id_can_not_be_looked_up():
    seen = Seen(DEFAULT, {"aggregate_type": "order", "aggregate_id": "7"})
    seen.add()
    document = seen.finish()
    assert [each["kind"] for each in document["differences"]] == ["no id"]


def test_one_id_twice():
    seen = Seen(TABLE_A, ROW_A)
    seen.add(id="1")
    seen.add(id="1")
    seen.says("1", "sent", None)
    document = seen.finish()
    assert (document["same"], document["different"]) == (1, 1)
    assert document["differences"][0]["kind"] == "same id"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(comparison, "WATCHED", 2)
    seen = Seen(TABLE_A, ROW_A)
    for id_ in ("1", "2", "3"):
        seen.add(id=id_)
    document = seen.finish()
    assert (document["unwatched"], document["different"]) == (1, 2)


def test_no_event_is_no_proof():
    assert lines(Seen(TABLE_A, ROW_A).finish())[-1].startswith("nothing was compared")


def test_a_transaction_that_others_do_not_see_yet_has_not_ended():
    moment = Moment.parse(0, f"{2**32 + 90}:{2**32 + 100}:{2**32 + 90},{2**32 + 95}")
    assert moment.ended(89)
    assert moment.ended(91)
    assert moment.ended(2**32 - 5)
    assert not moment.ended(95)
    assert not moment.ended(100)
    assert not moment.ended(101)
