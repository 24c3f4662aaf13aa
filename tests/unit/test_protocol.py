"""Replication frames: golden bytes, round trips, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import protocol
from cdc_outbox.postgres.protocol import EPOCH_US, Keepalive, Status, XLogData

DECODERS = [protocol.decode_keepalive, protocol.decode_xlog, protocol.decode_status]

lsns = st.integers(0, 2**64 - 1).map(LSN)
clocks = st.integers(-(2**63), 2**63 - 1)
clocks_1970 = clocks.map(lambda us: us + EPOCH_US)
frames = st.one_of(
    st.builds(Keepalive, lsns, clocks_1970, st.booleans()).map(protocol.encode_keepalive),
    st.builds(XLogData, lsns, lsns, clocks_1970, st.binary(max_size=50)).map(protocol.encode_xlog),
    st.builds(protocol.encode_status, lsns, lsns, lsns, clocks, st.booleans()),
)


def test_a_keepalive_byte_by_byte():
    data = b"k" + bytes.fromhex("00000016b374d848 0002a0f1e2d3c4b5 01")
    keepalive = protocol.decode_keepalive(data)
    assert keepalive == Keepalive(LSN.parse("16/B374D848"), 0x2A0F1E2D3C4B5 + EPOCH_US, reply=True)
    assert protocol.encode_keepalive(keepalive) == data


def test_an_xlogdata_byte_by_byte():
    data = b"w" + bytes.fromhex("0000000000000001 00000016b374d848 0000000000000000") + b"payload"
    xlog = protocol.decode_xlog(data)
    assert xlog == XLogData(LSN(1), LSN.parse("16/B374D848"), EPOCH_US, b"payload")
    assert protocol.encode_xlog(xlog) == data
    assert data[protocol.XLOG_HEADER :] == b"payload"


def test_a_status_update_byte_by_byte():
    data = protocol.encode_status(3, 2, 1, 1_000_000, reply=False)
    assert data == b"r" + bytes.fromhex(
        "0000000000000003 0000000000000002 0000000000000001 00000000000f4240 00"
    )
    assert len(data) == 34
    assert protocol.decode_status(data) == Status(LSN(3), LSN(2), LSN(1), 1_000_000, reply=False)


def test_the_epoch_is_the_year_2000():
    assert EPOCH_US == 10_957 * 24 * 60 * 60 * 1_000_000


def test_positions_come_out_as_lsn():
    keepalive = protocol.decode_keepalive(protocol.encode_keepalive(Keepalive(LSN(5), EPOCH_US, reply=False)))
    assert isinstance(keepalive.end, LSN)


@given(st.builds(Keepalive, lsns, clocks_1970, st.booleans()))
def test_keepalives_survive_a_round_trip(keepalive: Keepalive):
    assert protocol.decode_keepalive(protocol.encode_keepalive(keepalive)) == keepalive


@given(st.builds(XLogData, lsns, lsns, clocks_1970, st.binary(max_size=50)))
def test_xlogdata_survives_a_round_trip(xlog: XLogData):
    assert protocol.decode_xlog(protocol.encode_xlog(xlog)) == xlog


@given(lsns, lsns, lsns, clocks, st.booleans())
def test_status_updates_survive_a_round_trip(written: LSN, flushed: LSN, applied: LSN, now: int, reply: bool):
    data = protocol.encode_status(written, flushed, applied, now, reply)
    assert protocol.decode_status(data) == Status(written, flushed, applied, now, reply)


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.one_of(st.binary(max_size=60), frames))
def test_f18_any_bytes_give_a_record_or_the_decoders_own_error(
    decode: Callable[[bytes], object], data: bytes
):
    try:
        decode(data)
    except ProtocolViolation as error:
        assert error.next  # noqa: PT017 - both outcomes are right, but an error has its remedy


@given(frames, st.data())
def test_f18_a_cut_header_is_refused(frame: bytes, data: st.DataObject):
    decode = {protocol.KEEPALIVE: DECODERS[0], protocol.XLOG: DECODERS[1], protocol.STATUS: DECODERS[2]}[
        frame[0]
    ]
    header = protocol.XLOG_HEADER if frame[0] == protocol.XLOG else len(frame)
    cut = data.draw(st.integers(0, header - 1))
    with pytest.raises(ProtocolViolation):
        decode(frame[:cut])


@pytest.mark.parametrize("decode", [protocol.decode_keepalive, protocol.decode_status])
def test_a_byte_too_many_is_refused(decode: Callable[[bytes], object]):
    frame = {
        protocol.decode_keepalive: protocol.encode_keepalive(Keepalive(LSN(1), EPOCH_US, reply=False)),
        protocol.decode_status: protocol.encode_status(1, 1, 1, 0, reply=False),
    }[decode]  # type: ignore[index]  # a callable as the key of a table
    decode(frame)
    with pytest.raises(ProtocolViolation):
        decode(frame + b"\0")


def test_the_error_tells_sizes_and_never_content():
    with pytest.raises(ProtocolViolation) as caught:
        protocol.decode_keepalive(b"k secret")
    assert "8 bytes" in str(caught.value)
    assert "secret" not in str(caught.value)
