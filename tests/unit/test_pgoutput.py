"""pgoutput messages, byte by byte: golden values as the documentation lays them out, and each refusal."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import pgoutput
from cdc_outbox.postgres.pgoutput import (
    AnyMessage,
    Begin,
    Column,
    Commit,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Unchanged,
    Unknown,
    Update,
)
from cdc_outbox.postgres.protocol import EPOCH_US, XLOG_HEADER

HEADER = b"w" + bytes(XLOG_HEADER - 1)

GOLDEN: list[tuple[bytes, AnyMessage]] = [
    (
        b"B" + bytes.fromhex("00000016b374d848 00000000000f4240 fffffffe"),
        Begin(LSN.parse("16/B374D848"), EPOCH_US + 1_000_000, 2**32 - 2),
    ),
    (
        b"C" + bytes.fromhex("00 0000000000000010 0000000000000040 ffffffffffffffff"),
        Commit(0, LSN(16), LSN(64), EPOCH_US - 1),
    ),
    (b"O" + bytes.fromhex("0000000000000010") + b"upstream\0", Origin(LSN(16), "upstream")),
    (
        b"M" + bytes.fromhex("01 0000000000000010") + b"heartbeat\0" + bytes.fromhex("00000003") + b"a\0b",
        Message(True, LSN(16), "heartbeat", b"a\0b"),
    ),
    (
        b"R"
        + bytes.fromhex("00004001")
        + b"public\0Out box\0d"
        + bytes.fromhex("0002")
        + b"\x01id\0"
        + bytes.fromhex("00000b86 ffffffff")
        + b"\x00n\xc3\xa4me\0"
        + bytes.fromhex("00000413 00000104"),
        Relation(
            0x4001,
            "public",
            "Out box",
            "d",
            (Column("id", 2950, -1, True), Column("näme", 1043, 260, False)),
        ),
    ),
    (
        b"R" + bytes.fromhex("00004001") + b"\0t\0n" + bytes.fromhex("0000"),
        Relation(0x4001, "", "t", "n", ()),
    ),
    (b"Y" + bytes.fromhex("00004002") + b"app\0mood\0", Type(0x4002, "app", "mood")),
    (
        b"I" + bytes.fromhex("00004001") + b"N" + bytes.fromhex("0003") + b"t\0\0\0\x02hint\0\0\0\0",
        Insert(0x4001, [b"hi", None, b""]),
    ),
    (b"I" + bytes.fromhex("ffffffff") + b"N" + bytes.fromhex("0000"), Insert(2**32 - 1, [])),
    (
        b"U" + bytes.fromhex("00004001") + b"N" + bytes.fromhex("0003") + b"t\0\0\0\x01xun",
        Update(0x4001, None, False, [b"x", Unchanged.UNCHANGED, None]),
    ),
    (
        b"U"
        + bytes.fromhex("00004001")
        + b"K"
        + bytes.fromhex("0001")
        + b"t\0\0\0\x01x"
        + b"N"
        + bytes.fromhex("0001")
        + b"t\0\0\0\x01y",
        Update(0x4001, [b"x"], True, [b"y"]),
    ),
    (
        b"U"
        + bytes.fromhex("00004001")
        + b"O"
        + bytes.fromhex("0001")
        + b"n"
        + b"N"
        + bytes.fromhex("0001")
        + b"n",
        Update(0x4001, [None], False, [None]),
    ),
    (
        b"D" + bytes.fromhex("00004001") + b"K" + bytes.fromhex("0001") + b"t\0\0\0\x01x",
        Delete(0x4001, [b"x"], True),
    ),
    (b"D" + bytes.fromhex("00004001") + b"O" + bytes.fromhex("0001") + b"n", Delete(0x4001, [None], False)),
    (b"T" + bytes.fromhex("00000002 03 00004001 00004002"), Truncate(3, (0x4001, 0x4002))),
    (b"A", Unknown(ord("A"))),
]


@pytest.mark.parametrize(("data", "message"), GOLDEN)
def test_messages_byte_by_byte(data: bytes, message: AnyMessage):
    assert pgoutput.decode(data) == message
    assert pgoutput.decode(memoryview(data)) == message
    assert message.encode() == data


def test_positions_come_out_as_lsn():
    begin, commit = pgoutput.decode(GOLDEN[0][0]), pgoutput.decode(GOLDEN[1][0])
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    assert {type(begin.final_lsn), type(commit.commit_lsn), type(commit.end_lsn)} == {LSN}


def test_values_are_copies_that_outlive_the_frame():
    frame = bytearray(Insert(1, [b"abc"]).encode())
    message = pgoutput.decode(memoryview(frame))
    frame[-3:] = b"xyz"
    assert message == Insert(1, [b"abc"])


def test_the_hot_helpers_read_from_the_whole_frame():
    at = XLOG_HEADER
    begin, commit = Begin(LSN(16), EPOCH_US + 5, 7), Commit(0, LSN(16), LSN(64), EPOCH_US + 5)
    insert = Insert(0x4001, [b"hi", None, b""])
    assert pgoutput.begin_at(HEADER + begin.encode(), at) == (16, EPOCH_US + 5, 7)
    assert pgoutput.commit_at(HEADER + commit.encode(), at) == (16, 64, EPOCH_US + 5)
    assert pgoutput.insert_relation_at(HEADER + insert.encode(), at) == 0x4001
    assert pgoutput.insert_values_at(HEADER + insert.encode(), at) == [b"hi", None, b""]


def test_a_stray_stream_abort_is_unknown_whatever_follows_it():
    assert pgoutput.decode(b"A" + bytes(8)) == Unknown(ord("A"))


def test_a_row_has_as_many_columns_as_a_table_may_have():
    insert = Insert(1, [b"x", None] * 800)
    assert pgoutput.decode(insert.encode()) == insert


def test_flags_that_have_no_meaning_yet_are_passed_over():
    assert pgoutput.decode(b"M\x02" + bytes(8) + b"p\0" + bytes(4)) == Message(False, LSN(0), "p", b"")
    assert pgoutput.decode(b"M\x03" + bytes(8) + b"p\0" + bytes(4)) == Message(True, LSN(0), "p", b"")


def test_names_that_are_not_utf8_can_be_printed():
    message = pgoutput.decode(b"Y" + bytes(4) + b"app\0caf\xe9\0")
    assert message == Type(0, "app", "caf\\xe9")
    str(message).encode()


def row(*values: bytes, count: int | None = None) -> bytes:
    """An insert with these raw values, and any count of them."""
    number = len(values) if count is None else count
    return b"I\0\0\0\x01N" + number.to_bytes(2, "big") + b"".join(values)


@pytest.mark.parametrize(
    "insert",
    [
        pytest.param(row(b"t\0\0\0\x03ab"), id="last value cut"),
        pytest.param(row(b"t\0\0\0\x03ab", b"n"), id="value reaches into the next, which is missing"),
        pytest.param(row(b"t\xff\xff\xff\xffab"), id="length of -1"),
        pytest.param(row(b"t\x80\0\0\0ab"), id="most negative length"),
        pytest.param(row(b"t\x7f\xff\xff\xffab"), id="greatest length"),
        pytest.param(row(b"t\xff\xff\xff\xfb", b"n"), id="length that points back at its own tag"),
        pytest.param(row(b"t\0\0"), id="length cut"),
        pytest.param(row(b"t"), id="length missing"),
        pytest.param(row(b"n", count=2), id="value missing"),
        pytest.param(row(b"n", count=0xFFFF), id="count far beyond the values"),
        pytest.param(row(b"n", b"n", count=1), id="value too many"),
        pytest.param(row(b"n") + b"\0", id="byte behind the end"),
        pytest.param(row(b"u"), id="unchanged value"),
        pytest.param(row(b"b\0\0\0\x01x"), id="binary value"),
        pytest.param(row(b"x"), id="value of unknown kind"),
        pytest.param(b"I\0\0\0\x01O\0\0", id="old row"),
        pytest.param(b"I\0\0\0\x01N\0", id="count cut"),
        pytest.param(b"I\0\0\0\x01N", id="count missing"),
        pytest.param(b"I\0\0\0\x01", id="row missing"),
        pytest.param(b"I\0\0\0", id="oid cut"),
        pytest.param(b"I", id="tag only"),
    ],
)
def test_an_insert_that_lies_is_refused(insert: bytes):
    with pytest.raises(ProtocolViolation):
        pgoutput.decode(insert)
    with pytest.raises(ProtocolViolation):
        pgoutput.insert_values_at(HEADER + insert, XLOG_HEADER)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"R\0\0\0\x01public", id="name without its end"),
        pytest.param(b"R\0x\0\0", id="name missing, with the end of one before it"),
        pytest.param(b"R\0\0\0\x01\0t\0d\xff\xff", id="columns missing"),
        pytest.param(b"M\x01" + bytes(8) + b"p\0\xff\xff\xff\xff", id="content of length -1"),
        pytest.param(b"T\xff\xff\xff\xff\0", id="relations missing"),
        pytest.param(b"U\0\0\0\x01X\0\0", id="update of unknown kind"),
        pytest.param(b"U\0\0\0\x01K\0\0X\0\0", id="update without a new row"),
        pytest.param(b"U\0\0\0\x01N\0\x01b\0\0\0\x01x", id="binary value in an update"),
        pytest.param(b"D\0\0\0\x01N\0\0", id="delete with a new row"),
    ],
)
def test_other_messages_that_lie_are_refused(data: bytes):
    with pytest.raises(ProtocolViolation):
        pgoutput.decode(data)


@pytest.mark.parametrize("helper", [pgoutput.begin_at, pgoutput.commit_at, pgoutput.insert_values_at])
@pytest.mark.parametrize("data", [b"", b"B", HEADER, HEADER[:10]])
def test_the_hot_helpers_refuse_a_frame_without_a_message(
    helper: Callable[[bytes, int], object], data: bytes
):
    with pytest.raises(ProtocolViolation):
        helper(data, XLOG_HEADER)


@pytest.mark.parametrize(
    "data",
    [row(b"t\0\0\0\xffsecret"), b"Y\0\0\0\x01secret", row(b"t\0\0\0\x06secret") + b"secret"],
    ids=["too short", "unfinished", "too long"],
)
def test_the_error_never_tells_content(data: bytes):
    with pytest.raises(ProtocolViolation) as caught:
        pgoutput.decode(data)
    assert "secret" not in str(caught.value) + caught.value.next
    assert caught.value.__cause__ is None
