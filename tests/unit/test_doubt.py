"""Columns that look as if they said what became of a row: found by name and type, and nothing is concluded of them."""

from __future__ import annotations

import pytest

from cdc_outbox.settings import StatusSettings
from cdc_outbox.table.doubt import doubtful, remedy, unmarked
from cdc_outbox.table.values import Field
from tests.unit.mapped import BOOL, DEFAULT, INT4, JSONB, TABLE_A, TABLE_B, TABLE_C, TEXT, TIMESTAMPTZ, Mapped


def found(columns: dict[str, int], **changes: object) -> Field | None:
    plan = Mapped(columns, row={}, **changes).plan
    return doubtful(plan.shape, plan.ignored, plan.bookkeeping)


@pytest.mark.parametrize("columns", [DEFAULT, TABLE_A])
def test_a_table_whose_columns_are_all_known_leaves_no_doubt(columns: dict[str, int]) -> None:
    assert found(columns) is None


@pytest.mark.parametrize("columns", [TABLE_B, TABLE_C])
def test_what_is_recognised_is_in_no_doubt(columns: dict[str, int]) -> None:
    assert found(columns, key="topic") is None


@pytest.mark.parametrize(
    ("name", "type_oid", "doubted"),
    [
        ("state", TEXT, True),
        ("delivery_status", INT4, True),
        ("is_published", BOOL, True),
        ("dispatchedAt", TIMESTAMPTZ, True),
        ("state", JSONB, False),
        ("region", TEXT, False),
    ],
)
def test_names_and_types_that_look_like_a_mark(name: str, type_oid: int, *, doubted: bool) -> None:
    assert (found({**DEFAULT, name: type_oid}) is not None) == doubted


def test_words_come_before_a_time_and_each_has_its_remedy() -> None:
    field = found({**DEFAULT, "dispatched": TIMESTAMPTZ, "state": TEXT})
    assert field is not None
    assert remedy(field).startswith("--status column=state")
    field = found({**DEFAULT, "dispatched": TIMESTAMPTZ})
    assert field is not None
    assert remedy(field) == "--column sent_at=dispatched"


def test_a_column_that_is_named_is_in_no_doubt() -> None:
    columns = {**DEFAULT, "state": TEXT}
    assert found(columns, status=StatusSettings("state", sent=("DONE",))) is None
    assert found(columns, only={"state": ("NEW",)}) is None


def test_a_mark_of_the_time_alone_leaves_a_status_behind() -> None:
    behind = unmarked(Mapped({**DEFAULT, "state": TEXT, "sent_at": TIMESTAMPTZ}).plan)
    assert behind is not None
    assert behind.name == "state"
    assert unmarked(Mapped({**DEFAULT, "status": TEXT, "state": TEXT}).plan) is None
