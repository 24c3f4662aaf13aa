"""The frames of streaming replication: what stands inside a CopyData message, in both directions.

The server sends XLogData (`w`) and keepalives (`k`); the relay sends status updates (`r`). This module turns
them into records and back, and knows nothing of sockets. Decoding any bytes either gives a record or raises
ProtocolViolation, never anything else. Messages of the errors name lengths and tags, never content.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Final

from cdc_outbox.errors import ProtocolViolation
from cdc_outbox.lsn import LSN

EPOCH_US: Final = 946_684_800_000_000
"""Microseconds from 1970-01-01 to 2000-01-01, where PostgreSQL's clock starts."""

XLOG: Final = ord("w")
KEEPALIVE: Final = ord("k")
STATUS: Final = ord("r")

_XLOG: Final = Struct(">BQQq")
_KEEPALIVE: Final = Struct(">BQqB")
_STATUS: Final = Struct(">BQQQqB")

XLOG_HEADER: Final = _XLOG.size
"""Bytes of an XLogData frame before its payload: in a whole frame the payload's tag stands at this index."""


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The server's sign of life.

    `end` is how far it has read its WAL for us; `sent_us` its clock in microseconds since 1970; `reply` asks
    for a status update at once.
    """

    end: LSN
    sent_us: int
    reply: bool


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of the output plugin with the header around it.

    `start` is the position of the change (0 where it has none of its own, as in a Relation), `end` the
    server's end of WAL, `sent_us` its clock in microseconds since 1970.
    """

    start: LSN
    end: LSN
    sent_us: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Status:
    """What the relay reports: three positions and its clock in microseconds since 2000."""

    written: LSN
    flushed: LSN
    applied: LSN
    now_us_since_2000: int
    reply: bool


def malformed(what: str) -> ProtocolViolation:
    """The error for bytes that the protocol doesn't allow; `what` names the frame and what is wrong in it."""
    return ProtocolViolation(
        what,
        next="the relay reconnects by itself; if it comes again, report it with the server's version",
    )


def decode_keepalive(data: bytes) -> Keepalive:
    """Read a keepalive frame, tag included. Raises ProtocolViolation."""
    try:
        tag, end, sent, reply = _KEEPALIVE.unpack(data)
    except struct.error:
        raise malformed(f"a keepalive of {len(data)} bytes instead of {_KEEPALIVE.size}") from None
    if tag != KEEPALIVE:
        raise malformed(f"tag {tag:#04x} instead of a keepalive's")
    return Keepalive(LSN(end), sent + EPOCH_US, reply != 0)


def encode_keepalive(keepalive: Keepalive) -> bytes:
    """The frame of a keepalive, tag included."""
    return _KEEPALIVE.pack(KEEPALIVE, keepalive.end, keepalive.sent_us - EPOCH_US, keepalive.reply)


def decode_xlog(data: bytes) -> XLogData:
    """Read an XLogData frame, tag included. Raises ProtocolViolation.

    The payload may be empty here; `pgoutput.decode` refuses that.
    """
    try:
        tag, start, end, sent = _XLOG.unpack_from(data)
    except struct.error:
        raise malformed(f"an XLogData frame of {len(data)} bytes, shorter than its header") from None
    if tag != XLOG:
        raise malformed(f"tag {tag:#04x} instead of XLogData's")
    return XLogData(LSN(start), LSN(end), sent + EPOCH_US, data[XLOG_HEADER:])


def encode_xlog(xlog: XLogData) -> bytes:
    """The frame of an XLogData, tag included."""
    return _XLOG.pack(XLOG, xlog.start, xlog.end, xlog.sent_us - EPOCH_US) + xlog.payload


def encode_status(
    lsn_written: int, lsn_flushed: int, lsn_applied: int, now_us_since_2000: int, reply: bool
) -> bytes:
    """The 34 bytes of a status update.

    `lsn_flushed` is the confirmation: the server may forget everything before it. `reply` asks the server for
    a keepalive at once.
    """
    return _STATUS.pack(STATUS, lsn_written, lsn_flushed, lsn_applied, now_us_since_2000, reply)


def decode_status(data: bytes) -> Status:
    """Read a status update, tag included. Raises ProtocolViolation."""
    try:
        tag, written, flushed, applied, now, reply = _STATUS.unpack(data)
    except struct.error:
        raise malformed(f"a status update of {len(data)} bytes instead of {_STATUS.size}") from None
    if tag != STATUS:
        raise malformed(f"tag {tag:#04x} instead of a status update's")
    return Status(LSN(written), LSN(flushed), LSN(applied), now, reply != 0)
