"""Which rows are left out, under which word, and which can't wait."""

from __future__ import annotations

import pytest

from cdc_outbox.errors import PoisonEvent
from cdc_outbox.event import TableName
from cdc_outbox.settings.model import StatusSettings
from cdc_outbox.table.compiler import selected
from cdc_outbox.table.recognise import Shape
from tests.unit.mapped import (
    BOOL,
    DEFAULT,
    ENUM,
    INT4,
    INT8,
    TABLE_A,
    TABLE_B,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    Mapped,
    relation,
    settings,
)

ROW_A = {"id": "1", "topic": "orders", "aggregate_id": "o-1", "payload": "{}"}


def test_rows_for_another_bus_are_left_out_and_each_bus_is_told_once():
    mapped = Mapped(TABLE_B, key="none", row={"topic": "t", "payload": "{}"})
    mapped.encode(bus="kafka")
    for bus in ("nats", "nats", None, "Kafka", ""):
        assert mapped.result(bus=bus) == "bus"
    assert list(mapped.plan.other_buses) == ["nats", "NULL", "Kafka", ""]
    mapped.plan.other_buses.clear()
    assert mapped.result(bus="nats") == "bus"
    assert not mapped.plan.other_buses


def test_only_changes_which_bus_is_ours():
    mapped = Mapped(
        TABLE_B, key="none", row={"topic": "t", "payload": "{}"}, only={"Bus": ("events", "kafka")}
    )
    mapped.encode(bus="events")
    mapped.encode(bus="kafka")
    assert mapped.result(bus="nats") == "bus"


def test_a_row_for_another_bus_is_never_poison():
    mapped = Mapped({**DEFAULT, "bus": TEXT})
    assert mapped.result(bus="nats", aggregate_id=None, aggregate_type="a b") == "bus"


def test_only():
    mapped = Mapped(
        {**DEFAULT, "region": TEXT, "live": BOOL}, only={"region": ("eu", "us"), "live": ("true",)}
    )
    mapped.encode(region="eu", live="t")
    mapped.encode(region="us", live="t")
    assert mapped.result(region="asia", live="t") == "only"
    assert mapped.result(region=None, live="t") == "only"
    assert mapped.result(region="eu", live="f") == "only"


@pytest.mark.parametrize("word", ["sent", "published", "processed", "delivered", "done", "completed", "SENT"])
def test_a_status_that_means_sent(word: str):
    timeless = {name: oid for name, oid in TABLE_A.items() if name != "sent_at"}
    for columns in (timeless, timeless | {"status": ENUM}):
        assert Mapped(columns, row=ROW_A).result(status=word) == "sent"
    assert Mapped(TABLE_A, row=ROW_A).result(status=word, sent_at="2024-01-17 13:14:10+00") == "sent"


def test_a_time_that_is_null_beside_the_status_speaks_against_all_words_but_its_own_verb():
    """`completed` may be the order's, and the old relay goes by `sent_at`: then nobody would send the row."""
    mapped = Mapped(TABLE_A, row=ROW_A)
    assert mapped.result(status="Sent", sent_at=None) == "sent"
    assert mapped.plan.inserted_sent == {"status": None}
    for word in ("published", "processed", "delivered", "done", "completed"):
        mapped.encode(status=word, sent_at=None)
    processed = {name: oid for name, oid in TABLE_A.items() if name != "sent_at"} | {"processedAt": TIMESTAMP}
    mapped = Mapped(processed, row=ROW_A)
    assert mapped.result(status="processed", processedAt=None) == "sent"
    mapped.encode(status="sent", processedAt=None)


def test_a_status_that_is_named_is_believed_without_its_time():
    named = StatusSettings(column="status")
    assert Mapped(TABLE_A, row=ROW_A, status=named).result(status="completed", sent_at=None) == "sent"
    mapped = Mapped(TABLE_A, row=ROW_A, columns={"sent_at": "sent_at"})
    mapped.encode(status="completed", sent_at=None)


def test_a_time_that_is_named_for_what_it_is_says_nothing_of_the_sending():
    mapped = Mapped({**DEFAULT, "published_at": TIMESTAMPTZ}, columns={"created_at": "published_at"})
    mapped.encode(published_at="2024-01-17 13:14:10+00")
    assert mapped.plan.bookkeeping.sent is None


@pytest.mark.parametrize("word", ["pending", "failed", "processing", "new", "", None])
def test_a_status_that_means_not_sent(word: str | None):
    Mapped(TABLE_A, row=ROW_A).encode(status=word)


def test_a_status_decides_alone():
    Mapped(TABLE_A, row=ROW_A).encode(status="pending", sent_at="2024-01-17 13:14:10+00")


@pytest.mark.parametrize("name", ["sent_at", "processed_at", "published_at"])
def test_without_a_status_a_time_means_sent(name: str):
    mapped = Mapped({**DEFAULT, name: TIMESTAMPTZ})
    assert mapped.result(**{name: "2024-01-17 13:14:10+00"}) == "sent"
    mapped.encode(**{name: None})


def test_a_status_of_a_strange_type_is_somebody_elses():
    mapped = Mapped({**DEFAULT, "status": INT4, "sent_at": TEXT})
    mapped.encode(status="1", sent_at="yes")
    assert mapped.plan.ignored == ("status", "sent_at")


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        (TIMESTAMPTZ, "2024-01-17 13:14:10.251+00"),
        (TIMESTAMP, "2024-01-17 13:14:11"),
        (TIMESTAMPTZ, "infinity"),
        (TIMESTAMPTZ, "12024-01-17 13:14:10+00"),
        (INT8, "1705497251"),
        (INT8, "1705497250251"),
    ],
)
@pytest.mark.parametrize("name", ["next_run_at", "available_at"])
def test_a_row_that_is_due_later_is_poison_or_sent_at_once(name: str, type_oid: int, text: str):
    columns = {**DEFAULT, name: type_oid}
    with pytest.raises(PoisonEvent, match=name) as caught:
        Mapped(columns).encode(**{name: text})
    assert caught.value.reason == "scheduled"
    assert 'outbox.scheduled = "ignore"' in caught.value.next
    Mapped(columns, scheduled="ignore").encode(**{name: text})


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        (TIMESTAMPTZ, "2024-01-17 13:14:10.250999+00"),
        (TIMESTAMPTZ, "-infinity"),
        (TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC"),
        (INT8, "0"),
        (TIMESTAMPTZ, None),
        (TEXT, "whenever"),
    ],
)
def test_a_row_that_is_due_goes_out(type_oid: int, text: str | None):
    Mapped({**DEFAULT, "available_at": type_oid}).encode(available_at=text)


def test_a_sent_row_may_be_scheduled():
    assert Mapped(TABLE_A, row=ROW_A).result(status="sent", next_run_at="infinity") == "sent"


# char(n), which PostgreSQL prints with blanks at the end

BPCHAR = 1042


def test_blanks_at_the_end_of_a_char_do_not_count():
    columns = {**DEFAULT, "status": BPCHAR, "bus": BPCHAR, "region": BPCHAR}
    mapped = Mapped(columns, only={"region": ("eu ",)})
    mapped.encode(status="pending  ", bus="kafka   ", region="eu   ")
    assert mapped.result(status="sent     ", bus="kafka   ", region="eu   ") == "sent"
    assert mapped.result(status="pending  ", bus="nats    ", region="eu   ") == "bus"
    assert mapped.plan.other_buses == {"nats": None}
    assert mapped.result(status="pending  ", bus="kafka   ", region="us   ") == "only"
    assert mapped.result(status="pending  ", bus="kafka   ", region=None) == "only"


def test_blanks_at_the_end_of_a_text_count():
    assert Mapped({**DEFAULT, "bus": TEXT}).result(bus="kafka ") == "bus"


def test_which_rows_are_ours_is_known_without_a_plan():
    shape = Shape(relation({**TABLE_B, "region": TEXT}).columns)
    table = TableName("public", "outbox")
    found = selected(settings(only={"region": ("eu",), "absent": ("x",)}), table, shape)
    assert [(field.name, values) for field, values in found] == [("bus", ("kafka",)), ("region", ("eu",))]
    found = selected(settings(only={"Bus": ("nats",)}), table, shape)
    assert [(field.name, values) for field, values in found] == [("bus", ("nats",))]
