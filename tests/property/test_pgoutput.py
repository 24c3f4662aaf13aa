"""F18: what encodes decodes to the same, and no bytes make the decoder do anything but its job."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import inserts as made
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

HELPERS: list[Callable[[bytes, int], object]] = [
    pgoutput.begin_at,
    pgoutput.commit_at,
    pgoutput.insert_relation_at,
    pgoutput.insert_values_at,
]

oids = st.integers(0, 2**32 - 1)
bytes_of_flags = st.integers(0, 255)
lsns = st.integers(0, 2**64 - 1).map(LSN)
clocks = st.integers(-(2**63), 2**63 - 1).map(lambda us: us + EPOCH_US)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
rows = st.lists(st.none() | st.binary(max_size=20), max_size=9)
old_rows = st.lists(st.none() | st.just(Unchanged.UNCHANGED) | st.binary(max_size=20), max_size=9)
columns = st.builds(Column, names, oids, st.integers(-(2**31), 2**31 - 1), st.booleans())
updates = st.one_of(
    st.builds(Update, oids, st.none(), st.just(False), old_rows),
    st.builds(Update, oids, old_rows, st.booleans(), old_rows),
)
begins = st.builds(Begin, lsns, clocks, oids)
commits = st.builds(Commit, bytes_of_flags, lsns, lsns, clocks)
inserts = st.builds(Insert, oids, rows)
known_messages: st.SearchStrategy[AnyMessage] = st.one_of(
    begins,
    commits,
    inserts,
    updates,
    st.builds(
        Relation, oids, names, names, st.sampled_from("dnfi"), st.lists(columns, max_size=9).map(tuple)
    ),
    st.builds(Type, oids, names, names),
    st.builds(Origin, lsns, names),
    st.builds(Message, st.booleans(), lsns, names, st.binary(max_size=40)),
    st.builds(Delete, oids, old_rows, st.booleans()),
    st.builds(Truncate, bytes_of_flags, st.lists(oids, max_size=5).map(tuple)),
)
unknown_messages = st.integers(0, 255).filter(lambda tag: chr(tag) not in "BCOMRYIUDT").map(Unknown)
messages: st.SearchStrategy[AnyMessage] = known_messages | unknown_messages


@st.composite
def mutated(draw: st.DrawFn, of: st.SearchStrategy[AnyMessage] = messages) -> bytes:
    """A valid message with a few bytes replaced, dropped or put in: near misses, where decoders break."""
    data = bytearray(draw(of).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["replace", "drop", "insert"])):
            case "replace" if at < len(data):
                data[at] = draw(st.sampled_from([0, 1, 0x7F, 0x80, 0xFF, *b"tnubNKO"]))
            case "drop":
                del data[at : at + draw(st.integers(1, 4))]
            case _:
                data[at:at] = draw(st.binary(min_size=1, max_size=4))
    return bytes(data)


@given(messages)
def test_what_encodes_decodes_to_the_same(message: AnyMessage):
    assert pgoutput.decode(message.encode()) == message


@given(messages, st.binary(max_size=40))
def test_where_the_message_stands_in_its_frame_does_not_matter(message: AnyMessage, before: bytes):
    frame, at = before + message.encode(), len(before)
    match message:
        case Begin(final_lsn, commit_us, xid):
            assert pgoutput.begin_at(frame, at) == (final_lsn, commit_us, xid)
        case Commit(_, commit_lsn, end_lsn, commit_us):
            assert pgoutput.commit_at(frame, at) == (commit_lsn, end_lsn, commit_us)
        case Insert(oid, values):
            assert pgoutput.insert_relation_at(frame, at) == oid
            assert pgoutput.insert_values_at(frame, at) == values
        case _:
            assert pgoutput.decode(memoryview(frame)[at:]) == message


@given(known_messages, st.data())
def test_f18_a_message_cut_anywhere_is_refused(message: AnyMessage, data: st.DataObject):
    whole = message.encode()
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(ProtocolViolation):
        pgoutput.decode(cut)


@given(known_messages, st.binary(min_size=1, max_size=10))
def test_f18_bytes_behind_the_end_are_refused(message: AnyMessage, more: bytes):
    with pytest.raises(ProtocolViolation):
        pgoutput.decode(message.encode() + more)


@given(begins | commits | inserts, st.data())
def test_f18_the_hot_helpers_refuse_a_cut_message(message: AnyMessage, data: st.DataObject):
    helper = {Begin: pgoutput.begin_at, Commit: pgoutput.commit_at, Insert: pgoutput.insert_values_at}[
        type(message)
    ]
    frame = bytes(XLOG_HEADER) + message.encode()
    helper(frame, XLOG_HEADER)
    for other in (frame[: data.draw(st.integers(0, len(frame) - 1))], frame + b"\0"):
        with pytest.raises(ProtocolViolation):
            helper(other, XLOG_HEADER)


@given(
    st.binary(max_size=80) | st.builds(bytes.__add__, st.sampled_from([b"I", b"R", b"U", b"M"]), st.binary())
)
def test_f18_any_bytes_give_a_message_or_the_decoders_own_error(data: bytes):
    with suppress(ProtocolViolation):
        pgoutput.decode(data)


@given(mutated())
def test_f18_near_misses_give_a_message_or_the_decoders_own_error(data: bytes):
    with suppress(ProtocolViolation):
        message = pgoutput.decode(data)
        assert isinstance(message, Unknown) or len(message.encode()) >= len(data)


@pytest.mark.parametrize("helper", HELPERS)
@given(data=st.binary(max_size=80) | mutated(), at=st.integers(0, 40))
def test_f18_any_frame_gives_a_result_or_the_decoders_own_error(
    helper: Callable[[bytes, int], object], data: bytes, at: int
):
    with suppress(ProtocolViolation):
        helper(data, at)


@given(mutated(inserts).filter(lambda data: data[:1] == b"I"))
def test_the_hot_helpers_and_the_decoder_agree(data: bytes):
    try:
        message = pgoutput.decode(data)
    except ProtocolViolation:
        with pytest.raises(ProtocolViolation):
            pgoutput.insert_values_at(data, 0)
    else:
        assert message == Insert(pgoutput.insert_relation_at(data, 0), pgoutput.insert_values_at(data, 0))


@given(mutated(inserts) | inserts.map(Insert.encode), st.integers(0, 9), st.sets(st.integers(0, 9)))
def test_a_reader_made_for_columns_gives_the_same_values_or_the_same_refusal(
    data: bytes, count: int, wanted: set[int]
):
    read = made.reader(count, wanted)
    try:
        values = pgoutput.insert_values_at(data, 0)
    except ProtocolViolation as refusal:
        with pytest.raises(ProtocolViolation, match=re.escape(str(refusal))):
            read(data, 0)
    else:
        if len(values) == count:
            values = [value if at in wanted else None for at, value in enumerate(values)]
        assert read(data, 0) == values
