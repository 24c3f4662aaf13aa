"""PostgreSQL's text output, as far as a message needs to understand it.

Relies on the stream session's settings: `bytea_output=hex`, `DateStyle=ISO`, `TimeZone=UTC`. Most values
pass as they are; only `bytea` is decoded, and times and integers are read where a role needs them as
numbers.

https://www.postgresql.org/docs/current/datatype.html
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeAlias

from cdc_outbox.table.unfit import LEAVE_OUT, Unfit

BOOL: Final = 16
BYTEA: Final = 17
NAME: Final = 19
INT8: Final = 20
INT2: Final = 21
INT4: Final = 23
TEXT: Final = 25
JSON: Final = 114
BPCHAR: Final = 1042
VARCHAR: Final = 1043
TIMESTAMP: Final = 1114
TIMESTAMPTZ: Final = 1184
JSONB: Final = 3802
FIRST_USER_TYPE: Final = 16384
"""Types from here on are made by users: enums, domains. The stream doesn't say what is under a domain."""

TEXTUAL: Final = frozenset({TEXT, VARCHAR, BPCHAR, NAME})
INTEGERS: Final = frozenset({INT2, INT4, INT8})
TIMES: Final = frozenset({TIMESTAMP, TIMESTAMPTZ})
DOCUMENTS: Final = frozenset({JSON, JSONB}) | TEXTUAL

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NEVER: Final = 1 << 63
"""The time of `infinity` and of years that no consumer can read."""

Reader: TypeAlias = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class Field:
    """A column that a plan reads: its name, its place in the row, its type, and how its bytes come out.

    `read` is None where the text that PostgreSQL prints is what is sent.
    """

    name: str
    at: int
    type_oid: int
    read: Reader | None


def field(name: str, at: int, type_oid: int) -> Field:
    """The field of a column at a place in the row."""
    return Field(name, at, type_oid, (lambda raw: bytea(raw, name)) if type_oid == BYTEA else None)


def bytea(raw: bytes, column: str) -> bytes:
    """The bytes that PostgreSQL prints as `\\x…`."""
    if raw[:2] == b"\\x":
        try:
            return unhexlify(raw[2:])
        except ValueError:
            pass
    raise Unfit("column", f"column {column} is bytea, but not printed in hex", LEAVE_OUT)


def integer(raw: bytes, column: str) -> int:
    """A number that PostgreSQL prints in decimal."""
    digits = raw[1:] if raw[:1] == b"-" else raw
    # Beyond 20 digits it is no int8, and Python would refuse very long ones with an error of its own.
    if not digits.isdigit() or len(digits) > 20:
        raise Unfit("column", f"column {column} is not an integer", LEAVE_OUT)
    return int(raw)


def epoch_us(raw: bytes, column: str) -> int:
    """Microseconds since 1970 of `2024-01-17 13:14:10.25+00`, or of an integer in seconds or milliseconds.

    Without an offset the time is UTC. An integer below 10^11 is seconds (until the year 5138), one below
    10^14 milliseconds. Infinity and years beyond 9999 are NEVER, -infinity and years before Christ -NEVER.
    """
    try:
        moment = datetime.fromisoformat(raw.decode("ascii"))
    except ValueError:
        return _odd_epoch_us(raw, column)
    if len(raw) < 19:
        return _odd_epoch_us(raw, column)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _odd_epoch_us(raw: bytes, column: str) -> int:
    if raw == b"infinity":
        return NEVER
    if raw == b"-infinity" or (raw[-3:] == b" BC" and raw[:4].isdigit()):
        return -NEVER
    if raw[:5].isdigit() and b"-" in raw[5:8]:  # years beyond 9999
        return NEVER
    number = integer(raw, column)
    if abs(number) < 100_000_000_000:
        return number * 1_000_000
    if abs(number) < 100_000_000_000_000:
        return number * 1_000
    raise Unfit("column", f"column {column} is neither seconds nor milliseconds since 1970", LEAVE_OUT)
