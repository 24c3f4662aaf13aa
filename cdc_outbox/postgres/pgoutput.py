"""The messages of the output plugin pgoutput, protocol 1.

Two ways in. `decode` reads any message into a record. The `…_at` functions read what comes once per row or
transaction straight from the CopyData frame, without a record and without copying the frame. Both accept
only whole, exact messages and raise nothing but ProtocolViolation, whatever the bytes; a length that points
outside the message is never believed. Tags that this module doesn't know become `Unknown`: PostgreSQL 18
sends a stray stream abort (`A`) even with protocol 1, and that must not end a session.

Values are text, in the output format of the session that streams; they stay bytes. Numbers are as sent,
except clocks, which count microseconds since 1970.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final, Literal, TypeAlias

from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.protocol import EPOCH_US, malformed

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
ORIGIN: Final = ord("O")
MESSAGE: Final = ord("M")
RELATION: Final = ord("R")
TYPE: Final = ord("Y")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")

_NEW: Final = ord("N")
_KEY: Final = ord("K")
_OLD: Final = ord("O")
_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")
_TEXT: Final = ord("t")

_U8: Final = Struct(">B")
_U16: Final = Struct(">H")
_U32: Final = Struct(">I")
_U64: Final = Struct(">Q")
_BEGIN: Final = Struct(">QqI")
_COMMIT: Final = Struct(">BQQq")
_COLUMN: Final = Struct(">Ii")
_TRUNCATE: Final = Struct(">IB")
_u32_at: Final = _U32.unpack_from
_BEGIN_SIZE: Final = 1 + _BEGIN.size
_COMMIT_SIZE: Final = 1 + _COMMIT.size


class Unchanged(Enum):
    """Stands for a large value that an UPDATE didn't touch, and that the server therefore left out."""

    UNCHANGED = "unchanged"


Value: TypeAlias = bytes | None
OldValue: TypeAlias = bytes | Literal[Unchanged.UNCHANGED] | None


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction starts. Only committed ones are sent, so the commit's LSN and time are known already."""

    final_lsn: LSN
    commit_us: int
    xid: int

    def encode(self) -> bytes:
        return b"B" + _BEGIN.pack(self.final_lsn, self.commit_us - EPOCH_US, self.xid)


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction is complete. `end_lsn`, not `commit_lsn`, is what may be confirmed."""

    flags: int
    commit_lsn: LSN
    end_lsn: LSN
    commit_us: int

    def encode(self) -> bytes:
        return b"C" + _COMMIT.pack(self.flags, self.commit_lsn, self.end_lsn, self.commit_us - EPOCH_US)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the table had it at this point of the stream. `key`: part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    key: bool

    def encode(self) -> bytes:
        return _U8.pack(self.key) + _encode_text(self.name) + _COLUMN.pack(self.type_oid, self.typmod)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's shape, valid for the rows that follow until the next one of the same oid.

    `namespace` is empty for pg_catalog. `replica_identity` is one character, as in `pg_class.relreplident`.
    """

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]

    def encode(self) -> bytes:
        return b"".join(
            [
                b"R" + _U32.pack(self.oid),
                _encode_text(self.namespace),
                _encode_text(self.name),
                self.replica_identity.encode("latin-1"),
                _U16.pack(len(self.columns)),
                *(column.encode() for column in self.columns),
            ]
        )


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that isn't built in, sent before the first Relation that uses it."""

    oid: int
    namespace: str
    name: str

    def encode(self) -> bytes:
        return b"Y" + _U32.pack(self.oid) + _encode_text(self.namespace) + _encode_text(self.name)


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction came here by replication from elsewhere, where it committed at `commit_lsn`."""

    commit_lsn: LSN
    name: str

    def encode(self) -> bytes:
        return b"O" + _U64.pack(self.commit_lsn) + _encode_text(self.name)


@dataclass(frozen=True, slots=True)
class Message:
    """What `pg_logical_emit_message` wrote. Transactional ones stand inside Begin and Commit."""

    transactional: bool
    lsn: LSN
    prefix: str
    content: bytes

    def encode(self) -> bytes:
        head = b"M" + _U8.pack(self.transactional) + _U64.pack(self.lsn)
        return head + _encode_text(self.prefix) + _U32.pack(len(self.content)) + self.content


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row: one text per column of its Relation, None for NULL."""

    relation_oid: int
    values: list[Value]

    def encode(self) -> bytes:
        return b"I" + _U32.pack(self.relation_oid) + b"N" + _encode_row(self.values)


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. `old`, if sent, is the row before: whole, or (`old_is_key`) only its key."""

    relation_oid: int
    old: list[OldValue] | None
    old_is_key: bool
    new: list[OldValue]

    def encode(self) -> bytes:
        head = b"U" + _U32.pack(self.relation_oid)
        if self.old is not None:
            head += (b"K" if self.old_is_key else b"O") + _encode_row(self.old)
        return head + b"N" + _encode_row(self.new)


@dataclass(frozen=True, slots=True)
class Delete:
    """A removed row: whole, or (`old_is_key`) only its key."""

    relation_oid: int
    old: list[OldValue]
    old_is_key: bool

    def encode(self) -> bytes:
        kind = b"K" if self.old_is_key else b"O"
        return b"D" + _U32.pack(self.relation_oid) + kind + _encode_row(self.old)


@dataclass(frozen=True, slots=True)
class Truncate:
    """Emptied tables. `options`: bit 1 is CASCADE, bit 2 RESTART IDENTITY."""

    options: int
    relation_oids: tuple[int, ...]

    def encode(self) -> bytes:
        oids = b"".join(map(_U32.pack, self.relation_oids))
        return b"T" + _TRUNCATE.pack(len(self.relation_oids), self.options) + oids


TWO_PHASE: Final = frozenset(b"bPKrp")
"""Tags of the messages that come of a slot with two-phase decoding alone. The first of them is before all rows."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """A message that this version doesn't know: to be counted and passed over. `tag` is its first byte."""

    tag: int

    def encode(self) -> bytes:
        return _U8.pack(self.tag)


def _encode_text(text: str) -> bytes:
    return text.encode() + b"\0"


def _encode_row(values: Sequence[OldValue]) -> bytes:
    out = [_U16.pack(len(values))]
    for value in values:
        if value is None:
            out.append(b"n")
        elif value is Unchanged.UNCHANGED:
            out.append(b"u")
        else:
            out += (b"t", _U32.pack(len(value)), value)
    return b"".join(out)


AnyMessage: TypeAlias = (
    Begin | Commit | Relation | Type | Origin | Message | Insert | Update | Delete | Truncate | Unknown
)


def begin_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Read the Begin whose tag stands at index `at` and which ends `data`.

    Returns final LSN, commit time in microseconds since 1970, xid. The tag itself is the caller's to look at.
    Raises ProtocolViolation.
    """
    if len(data) - at != _BEGIN_SIZE:
        raise malformed(f"a begin of {len(data) - at} bytes instead of {_BEGIN_SIZE}")
    final_lsn, time, xid = _BEGIN.unpack_from(data, at + 1)
    return final_lsn, time + EPOCH_US, xid


def commit_at(data: bytes, at: int) -> tuple[int, int, int]:
    """Read the Commit whose tag stands at index `at` and which ends `data`.

    Returns commit LSN, end LSN, commit time in microseconds since 1970. Raises ProtocolViolation.
    """
    if len(data) - at != _COMMIT_SIZE:
        raise malformed(f"a commit of {len(data) - at} bytes instead of {_COMMIT_SIZE}")
    _flags, commit_lsn, end_lsn, time = _COMMIT.unpack_from(data, at + 1)
    return commit_lsn, end_lsn, time + EPOCH_US


def insert_relation_at(data: bytes, at: int) -> int:
    """The oid of the table, of the Insert whose tag stands at index `at`. Raises ProtocolViolation."""
    try:
        oid: int = _u32_at(data, at + 1)[0]
    except struct.error:
        raise malformed("an insert that ends before its relation") from None
    return oid


def insert_values_at(data: bytes, at: int) -> list[Value]:
    """The values of the Insert whose tag stands at index `at` and which ends `data`.

    Bytes for text, None for NULL. Raises ProtocolViolation, also for an unchanged (`u`) or binary (`b`)
    value, which an insert in text format can't have.
    """
    length = _u32_at
    values: list[Value] = []
    try:
        if data[at + 5] != _NEW:
            raise malformed("an insert without a new row")
        count = data[at + 6] << 8 | data[at + 7]
        at += 8
        for _ in range(count):
            kind = data[at]
            if kind == _TEXT:
                start = at + 5
                # A slice past the end is silently shorter. The length is unsigned, so that an index that has
                # left the message never comes back, and the check below the loop sees it.
                at = start + length(data, at + 1)[0]
                values.append(data[start:at])
            elif kind == _NULL:
                values.append(None)
                at += 1
            else:
                raise malformed(f"a value of kind {kind:#04x} in an insert")
    except (IndexError, struct.error):
        raise malformed("an insert that ends before its last value") from None
    if at != len(data):
        raise malformed(f"values of an insert that miss its end by {abs(len(data) - at)} bytes")
    return values


def decode(data: bytes | memoryview) -> AnyMessage:
    """Read one message: tag first, nothing behind it. Raises ProtocolViolation, and nothing else."""
    data = bytes(data)
    if not data:
        raise malformed("an empty message")
    reader = _Reader(data)
    tag = reader.number(_U8)
    read = _READERS.get(tag)
    if read is None:
        return Unknown(tag)
    message = read(reader)
    reader.end()
    return message


class _Reader:
    """A cursor over one message that refuses to leave it."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, form: Struct) -> tuple[int, ...]:
        try:
            found = form.unpack_from(self._data, self._at)
        except struct.error:
            raise self._short() from None
        self._at += form.size
        return found

    def number(self, form: Struct) -> int:
        return self.numbers(form)[0]

    def text(self) -> str:
        end = self._data.find(0, self._at)
        if end < 0:
            raise self._short()
        found = self._data[self._at : end]
        self._at = end + 1
        # Names that aren't UTF-8 exist only in SQL_ASCII databases. Surrogates would decode them too, but
        # blow up later, in a log line or a JSON document. Escapes can be printed; nobody turns them back.
        return found.decode("utf-8", "backslashreplace")

    def octets(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) != count:
            raise self._short()
        self._at += count
        return found

    def row(self) -> list[OldValue]:
        values: list[OldValue] = []
        for _ in range(self.number(_U16)):
            kind = self.number(_U8)
            if kind == _TEXT:
                values.append(self.octets(self.number(_U32)))
            elif kind == _NULL:
                values.append(None)
            elif kind == _UNCHANGED:
                values.append(Unchanged.UNCHANGED)
            else:
                raise malformed(f"a value of kind {kind:#04x} in a row")
        return values

    def insert(self) -> Insert:
        message = Insert(insert_relation_at(self._data, 0), insert_values_at(self._data, 0))
        self._at = len(self._data)
        return message

    def end(self) -> None:
        if self._at != len(self._data):
            raise malformed(
                f"a message {chr(self._data[0])!r} with {len(self._data) - self._at} bytes behind its end"
            )

    def _short(self) -> Exception:
        return malformed(f"a message {chr(self._data[0])!r} cut off at {len(self._data)} bytes")


def _begin(reader: _Reader) -> Begin:
    final_lsn, time, xid = reader.numbers(_BEGIN)
    return Begin(LSN(final_lsn), time + EPOCH_US, xid)


def _commit(reader: _Reader) -> Commit:
    flags, commit_lsn, end_lsn, time = reader.numbers(_COMMIT)
    return Commit(flags, LSN(commit_lsn), LSN(end_lsn), time + EPOCH_US)


def _relation(reader: _Reader) -> Relation:
    oid, namespace, name = reader.number(_U32), reader.text(), reader.text()
    replica_identity = chr(reader.number(_U8))
    columns = tuple(_column(reader) for _ in range(reader.number(_U16)))
    return Relation(oid, namespace, name, replica_identity, columns)


def _column(reader: _Reader) -> Column:
    flags, name = reader.number(_U8), reader.text()
    type_oid, typmod = reader.numbers(_COLUMN)
    return Column(name, type_oid, typmod, bool(flags & 1))


def _type(reader: _Reader) -> Type:
    return Type(reader.number(_U32), reader.text(), reader.text())


def _origin(reader: _Reader) -> Origin:
    return Origin(LSN(reader.number(_U64)), reader.text())


def _message(reader: _Reader) -> Message:
    flags, lsn, prefix = reader.number(_U8), LSN(reader.number(_U64)), reader.text()
    return Message(bool(flags & 1), lsn, prefix, reader.octets(reader.number(_U32)))


def _update(reader: _Reader) -> Update:
    oid, kind = reader.number(_U32), reader.number(_U8)
    old: list[OldValue] | None = None
    old_is_key = kind == _KEY
    if kind in (_KEY, _OLD):
        old = reader.row()
        kind = reader.number(_U8)
    if kind != _NEW:
        raise malformed(f"an update without a new row, but {kind:#04x}")
    return Update(oid, old, old_is_key, reader.row())


def _delete(reader: _Reader) -> Delete:
    oid, kind = reader.number(_U32), reader.number(_U8)
    if kind not in (_KEY, _OLD):
        raise malformed(f"a delete without an old row, but {kind:#04x}")
    return Delete(oid, reader.row(), kind == _KEY)


def _truncate(reader: _Reader) -> Truncate:
    count, options = reader.numbers(_TRUNCATE)
    # Each oid is read from the message, so that a huge count ends at the message's end and allocates nothing.
    return Truncate(options, tuple(reader.number(_U32) for _ in range(count)))


_READERS: Final[dict[int, Callable[[_Reader], AnyMessage]]] = {
    BEGIN: _begin,
    COMMIT: _commit,
    ORIGIN: _origin,
    MESSAGE: _message,
    RELATION: _relation,
    TYPE: _type,
    INSERT: _Reader.insert,
    UPDATE: _update,
    DELETE: _delete,
    TRUNCATE: _truncate,
}
