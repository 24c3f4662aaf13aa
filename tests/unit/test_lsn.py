"""A position in the WAL: its spelling, its order, and the arithmetic that it refuses."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.lsn import LSN, ZERO

any_lsn = st.integers(0, 2**64 - 1).map(LSN)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0/0", 0),
        ("0/1", 1),
        ("1/0", 2**32),
        ("16/B374D848", 0x16_B374D848),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
    ],
)
def test_reads_and_prints_as_postgresql_does(text: str, number: int):
    assert LSN.parse(text) == number
    assert str(LSN(number)) == text
    assert repr(LSN(number)) == f"LSN({text})"


def test_reads_lower_case_and_leading_zeros():
    assert LSN.parse("0016/0b374d8a") == 0x16_0B374D8A


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "0",
        "0/",
        "/0",
        "1/2/3",
        "G/0",
        "-1/0",
        "+1/0",
        "0x1/0",
        " 1/0",
        "1/0 ",
        "1/0\n",
        "1_0/0",
        "\u0661/0",
        "123456789/0",
        "0/123456789",
    ],
)
def test_refuses_any_other_spelling(text: str):
    with pytest.raises(ValueError, match="not an LSN"):
        LSN.parse(text)


@given(any_lsn)
def test_what_is_printed_reads_back(lsn: LSN):
    assert LSN.parse(str(lsn)) == lsn


@given(any_lsn, any_lsn)
def test_order_is_that_of_the_positions(one: LSN, other: LSN):
    assert (one < other) == (int(one) < int(other))
    assert one.bytes_since(other) == max(0, int(one) - int(other))


def test_is_a_number_to_dictionaries_and_formats():
    assert {LSN(7): "x"}[7] == "x"  # type: ignore[index]  # what callers with plain ints do
    assert f"{LSN(255):016x}" == "00000000000000ff"
    assert pickle.loads(pickle.dumps(LSN(7))) == LSN(7)
    assert ZERO == 0


def test_refuses_to_be_computed():
    with pytest.raises(TypeError, match="never computed"):
        LSN(1) + 1
    with pytest.raises(TypeError, match="never computed"):
        1 + LSN(1)
    with pytest.raises(TypeError, match="never computed"):
        sum([LSN(1), LSN(2)])
