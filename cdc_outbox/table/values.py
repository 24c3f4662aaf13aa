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
OID: Final = 26
HSTORE: Final = -1
"""An extension's type has another number in each database; this one stands for all of them."""
OTHER: Final = 0
"""A built-in type under a domain, of which nothing more need be known."""
FIRST_USER_TYPE: Final = 16384
"""Types from here on are made by users: enums, composites, extensions' types; domains only until `base` is asked."""

_BUILT_IN: Final = {
    "bool": BOOL,
    "bytea": BYTEA,
    "name": NAME,
    "int8": INT8,
    "int2": INT2,
    "int4": INT4,
    "text": TEXT,
    "oid": OID,
    "json": JSON,
    "bpchar": BPCHAR,
    "varchar": VARCHAR,
    "timestamp": TIMESTAMP,
    "timestamptz": TIMESTAMPTZ,
    "jsonb": JSONB,
}

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


def base(oid: int, namespace: str, name: str) -> int:
    """The type under a type that isn't built in, by the name of that: of a domain the one that it is made of.

    The name is what a Type message has, where PostgreSQL says "" for pg_catalog, or what the catalogue says.
    """
    if namespace in ("", "pg_catalog"):
        return _BUILT_IN.get(name, OTHER)
    return HSTORE if name == "hstore" else oid


def significant(field: Field, raw: bytes | None) -> bytes | None:
    """A value as it is to be compared: PostgreSQL prints `char(n)` with blanks at the end that mean nothing."""
    return raw.rstrip(b" ") if field.type_oid == BPCHAR and raw is not None else raw


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
