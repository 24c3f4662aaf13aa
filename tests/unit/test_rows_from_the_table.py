"""Rows that are read from the table: COPY's text format, and the messages they become."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.errors import PoisonEvent
from cdc_outbox.postgres.table_rows import Chunk, reader
from cdc_outbox.table.mapping import Mapping, Plan
from tests.unit.mapped import DEFAULT, EVENT, relation, settings

ESCAPES = {9: b"\\t", 10: b"\\n", 13: b"\\r", 8: b"\\b", 12: b"\\f", 11: b"\\v", 92: b"\\\\"}


def copied(values: list[bytes | None]) -> bytes:
    """A row as COPY … TO writes it. https://www.postgresql.org/docs/current/sql-copy.html"""

    def field(value: bytes | None) -> bytes:
        if value is None:
            return b"\\N"
        return b"".join(ESCAPES.get(byte, bytes([byte])) for byte in value)

    return b"\t".join(map(field, values)) + b"\n"


VALUES = st.none() | st.binary() | st.text("\\Nntrbfv\t\n\r\b\f\v").map(str.encode)


@given(st.lists(VALUES, min_size=1, max_size=6))
def test_a_line_gives_the_values_that_were_written(row: list[bytes | None]) -> None:
    assert reader(len(row), range(len(row)))(copied(row)) == row


def test_columns_that_were_not_asked_for_are_null() -> None:
    assert reader(4, [1, 3])(b"a\t\\N\n") == [None, b"a", None, None]


def test_a_chunk_can_be_gone_through_again() -> None:
    chunk = Chunk([b"1\n", b"2\n"], 4, reader(1, [0]))
    assert len(chunk) == 2
    assert list(chunk) == list(chunk) == [[b"1"], [b"2"]]


def plan(columns: dict[str, int] = DEFAULT, **changes: object) -> Plan:
    return Mapping(settings(**changes), "s", source="backfill").plan(relation(columns))


def row(**cells: str) -> list[bytes | None]:
    return [(EVENT | cells).get(name, "").encode() or None for name in DEFAULT]


def test_the_source_is_the_last_header_and_there_is_no_provenance() -> None:
    made = plan(provenance=True, static_headers=(("from", "here"),)).encode(
        row(headers='{"a": "b"}'), 0, 7, 5000
    )
    assert not isinstance(made, str)
    assert made[4] == 5
    assert [name for name, _ in made[5]] == ["id", "type", "version", "a", "from", "cdc.source"]
    assert made[5][-1] == ("cdc.source", b"backfill")


def test_a_row_is_not_left_out_for_what_it_says_of_its_sending() -> None:
    columns = DEFAULT | {"status": 25, "next_run_at": 1184}
    values = [*row(), b"sent", b"2999-01-01 00:00:00+00"]
    assert not isinstance(plan(columns).encode(values, 0, 1, 0), str)


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("2024-01-17 13:14:10.25+00", 1_705_497_250_250_000),
        ("infinity", 42),
        ("1969-12-31 00:00:00+00", 42),
        ("", 42),
    ],
)
def test_the_time_is_the_rows_own_if_kafka_takes_it(written: str, us: int) -> None:
    made = plan()
    assert made.created_us(row(created_at=written), 42) == us
    assert made.optional["created_at"].at in made.read


def test_a_poison_row_is_named_without_a_position() -> None:
    with pytest.raises(
        PoisonEvent, match=r"event 3f2b.* in the table, row 9 in order, can't be published: it has no"
    ):
        plan().encode(row(aggregate_id=""), 0, 9, 0)
