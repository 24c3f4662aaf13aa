"""A table with words of its own: what `[outbox.status]` and `outbox.columns.sent_at` say outranks all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.errors import ConfigError, MappingError
from cdc_outbox.settings import StatusSettings, load
from cdc_outbox.table.sent import Bookkeeping
from tests.unit.mapped import BOOL, INT4, INT8, JSONB, TABLE_A, TEXT, TIMESTAMPTZ, UUID, Mapped

OWN = {
    "event_uuid": UUID,
    "seq": INT8,
    "customer_id": INT8,
    "kind": TEXT,
    "body": JSONB,
    "state": TEXT,
    "created": TIMESTAMPTZ,
    "published_at": TIMESTAMPTZ,
}
ROW = {"event_uuid": "3f2b8a54-9c1d-4f0e-8b7a-1234567890ab", "customer_id": "7", "body": "{}"}
STATUS = StatusSettings(column="state", sent=("DISPATCHED",), given_up=("GIVEN_UP",))


def own(table: dict[str, int] = OWN, /, **changes: Any) -> Mapped:
    roles = {"id": "event_uuid", **changes.pop("columns", {})}
    return Mapped(table, row=ROW, topic="orders", key="customer_id", **{"columns": roles, **changes})


def book_of(mapped: Mapped) -> Bookkeeping:
    return mapped.plan.bookkeeping


def test_the_words_that_are_named_count() -> None:
    mapped = own(status=STATUS, columns={"created_at": "created", "sent_at": "published_at"})
    book = book_of(mapped)
    assert book.sent is not None
    assert (book.sent.field.name, book.sent.by) == ("state", "word")
    assert book.sent.words == {"dispatched"}
    assert book.failed is not None
    assert book.failed.given_up == {"given_up"}
    assert [(mark.field.name, mark.words) for mark in book.marks] == [
        ("state", ("DISPATCHED",)),
        ("published_at", ()),
    ]
    assert mapped.plan.optional["created_at"].name == "created"
    assert mapped.result(state="DISPATCHED") == "sent"
    assert mapped.result(state="NEW", published_at="2024-01-17 13:14:10+00") != "sent"
    assert "sent from state: sent DISPATCHED, given_up GIVEN_UP (configured)" in mapped.plan.describe()


def test_a_meaning_of_which_nothing_is_said_keeps_its_usual_words() -> None:
    book = book_of(Mapped(TABLE_A, status=StatusSettings(given_up=("failed",)), row={}))
    assert book.sent is not None
    assert "sent" in book.sent.words
    assert book.failed is not None
    assert book.failed.given_up == {"failed"}
    assert "failed" not in book.failed.retried
    assert book.taken is not None
    assert book.taken.since is not None


def test_a_time_that_is_named_decides_unless_words_for_sent_are() -> None:
    book = book_of(own({**OWN, "status": TEXT}, columns={"sent_at": "published_at"}))
    assert book.sent is not None
    assert (book.sent.field.name, book.sent.by) == ("published_at", "time")
    beside = book_of(
        own(status=StatusSettings("state", given_up=("GIVEN_UP",)), columns={"sent_at": "published_at"})
    )
    assert beside.sent is not None
    assert beside.sent.by == "time"
    assert beside.failed is not None
    assert beside.failed.given_up == {"given_up"}
    assert [mark.field.name for mark in beside.marks] == ["published_at"]


def test_a_boolean_is_told_apart_as_stream_and_table_spell_it() -> None:
    mapped = own({**OWN, "state": BOOL}, status=StatusSettings("state", sent=("true",), waiting=("false",)))
    assert mapped.result(state="t") == "sent"
    assert mapped.result(state="f") != "sent"
    sent = book_of(mapped).sent
    assert sent is not None
    assert "false" in sent.waiting


def test_letters_beyond_a_to_z_are_those_of_the_row_by_stream_and_account_alike() -> None:
    mapped = own(status=StatusSettings("state", sent=("ÜBERTRAGEN",)))
    sent = book_of(mapped).sent
    assert sent is not None
    for text, means_sent in (("ÜBERTRAGEN", True), ("Übertragen", True), ("übertragen", False)):
        assert sent.says(text, None) is means_sent
        assert (mapped.result(state=text) == "sent") is means_sent


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"status": StatusSettings("stat")}, "has no column 'stat', which outbox.status.column names"),
        ({"status": StatusSettings("body")}, "column body of public.outbox can't be the status"),
        ({"status": StatusSettings(sent=("X",))}, "no column that is recognised as a status"),
        ({"status": StatusSettings("state", ("X",), ("x",))}, "both sent and failed"),
        ({"columns": {"sent_at": "state"}}, "can't be the sent_at"),
        ({"columns": {"sent_at": "gone"}}, "has no column 'gone'"),
        ({"columns": {"created_at": "kind"}}, "can't be the created_at"),
    ],
)
def test_what_can_not_be_is_refused_with_a_step(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(MappingError, match=error) as refused:
        own(**changes)
    assert "--" in refused.value.next or "name" in refused.value.next or "leave" in refused.value.next


def test_file_variables_and_flags_name_them(tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text(
        '[outbox.status]\ncolumn = "state"\nsent = "DONE"\ngiven_up = ["GIVEN_UP", 9]\n', encoding="utf-8"
    )
    flags = {"status": ["sent=DISPATCHED", "sent=2"]}
    loaded = load("start", flags, {"CDC_OUTBOX_OUTBOX_STATUS_TAKEN": "BUSY"}, tmp_path)
    assert loaded.outbox.status == StatusSettings(
        "state", sent=("DISPATCHED", "2"), given_up=("GIVEN_UP", "9"), taken=("BUSY",)
    )
    shown = {one.key: one.value for one in loaded.shown}
    assert (shown["outbox.status.column"], shown["outbox.status.sent"]) == ("state", ["DISPATCHED", "2"])
    (tmp_path / "cdc-outbox.toml").write_text('[outbox.status]\nsend = ["X"]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"unknown key 'outbox.status.send'"):
        load("start", {}, {}, tmp_path)


def test_an_integer_is_a_word_too() -> None:
    mapped = own({**OWN, "state": INT4}, status=StatusSettings("state", sent=("2",), waiting=("0",)))
    assert mapped.result(state="2") == "sent"
    assert mapped.result(state="0") != "sent"
