"""Rows and messages entered in books, so that they can be compared: one entry of fixed size each, kept on disk.

An entry of the events' book is a row or a message, under the id of its event. Rows are entered before messages, and the
messages of a partition in the order of their offsets; the judgement counts on both.

The other book has the messages that bear a key, under that key, with what is known of their commit. A message tells its
commit by `cdc.lsn`, `cdc.seq` and `cdc.commit_ts` where provenance headers are on, and else by its timestamp, which is
the commit's time in ms: not where the broker stamps records with its own clock, where a column gives the timestamp,
where the row was sent from the table (`cdc.source`), or where another relay has sent it (it has no header `id`).
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from zlib import crc32

from cdc_outbox.errors import PoisonEvent
from cdc_outbox.repair.spool import Ids, Spool, buckets_for
from cdc_outbox.table import selection
from cdc_outbox.table.pointer import compile as pointed
from cdc_outbox.table.raw import SOURCE
from cdc_outbox.table.unfit import Unfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from cdc_outbox.event import Values
    from cdc_outbox.table.plan import Plan

ROW: Final = 0
MESSAGE: Final = 1

ACKNOWLEDGED: Final = 1
"""The row is proven to have been delivered."""
LEFT_OUT: Final = 2
"""A rule leaves the row out: another bus, or a value that `outbox.only` doesn't have."""
SENT: Final = 4
"""The table says of the row that it was sent."""
POISON: Final = 8
"""The row can't be published as it is."""
SOURCED: Final = 16
"""The message was sent from the table, and may well be a copy."""
FOREIGN_MADE: Final = 32
"""The message has no header `id`: another relay has sent it."""

EVENT: Final = Struct(">16sBBIqQQI")
"""Id; ROW or MESSAGE; flags; number of the topic or partition; µs of creation or ms; text of the id; offset; key.

The last is a checksum of the message's key, or NO_KEY.
"""

DELIVERY: Final = Struct(">16s16sIQqQIH")
"""Key; id; number of the partition; offset; ms of the commit or NO_TIME; LSN, place and slot's number, or zeros."""

BYTES: Final = (EVENT.size, EVENT.size + DELIVERY.size)
"""What a row and a message take on disk; the text of an id that is no UUID comes on top."""

NO_TIME: Final = -1
NO_TOPIC: Final = (1 << 32) - 1
NO_KEY: Final = 0
"""There is none, or it is another relay's, who may have chosen another one."""


class Message(Protocol):
    """A record of Kafka's. `timestamp` in ms; `timestamp_type` 1: it is the broker's own clock."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def timestamp_type(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


IdFrom: TypeAlias = "Callable[[Message], bytes | None]"


def id_from(text: str) -> IdFrom:
    """Where another relay's messages have the event's id: `header:NAME`, or `payload:/json/pointer`.

    Raises ValueError, saying what is wrong.
    """
    kind, _, rest = text.partition(":")
    if kind == "header" and rest:
        return lambda message: next((value for name, value in message.headers if name == rest), None)
    if kind != "payload" or not rest:
        raise ValueError("it is neither header:NAME nor payload:/json/pointer")
    find = pointed(rest)

    def in_payload(message: Message) -> bytes | None:
        try:
            return None if message.value is None else find(message.value)
        except Unfit:
            return None

    return in_payload


def ids_placed(plan: Plan) -> tuple[IdFrom, ...]:
    """Where the settings put the event's id beside the header `id`: under the name that it had in the old relay's."""
    layout = plan.layout
    return tuple(id_from(f"header:{name}") for name, field in layout.placed if field == layout.id)


def first_streamed(messages: Iterable[Message]) -> Message | None:
    """The first that wasn't sent from the table."""
    return next((each for each in messages if all(name != SOURCE for name, _ in each.headers)), None)


class Nameless(NamedTuple):
    """A message without an event's id."""

    place: int
    offset: int
    ms: int


@dataclass(slots=True)
class Reader:
    """How rows of one table are entered: their plan, and whether the table says that they were sent."""

    plan: Plan
    sent: Callable[[Values], bool]

    @classmethod
    def of(cls, plan: Plan) -> Reader:
        """`plan` is one for rows from the table (`Mapping(…, source=…)`)."""
        return cls(plan, _sent_by(plan))


def _sent_by(plan: Plan) -> Callable[[Values], bool]:
    mark = plan.bookkeeping.sent
    if mark is None:
        return lambda _values: False
    rule = selection.sent(mark, {})
    return lambda values: rule(values, 0) is not None


class Books:
    """Both books, and the names that their numbers stand for."""

    def __init__(
        self,
        expected: int,
        directory: Path | None,
        *,
        commit_times: bool = True,
        ids_from: Iterable[IdFrom] = (),
        scoped: bool = False,
    ) -> None:
        """`expected`: how many rows and messages will come, about. `commit_times`: timestamps tell the commit.

        `scoped`: an id means an event of its topic only, for several tables may count from 1 each.
        """
        buckets = buckets_for(expected)
        self.ids = Ids(directory)
        self.events = Spool(EVENT, buckets, directory)
        self.deliveries = Spool(DELIVERY, buckets, directory)
        self.topics: list[str] = []
        self.places: list[tuple[str, int]] = []
        self.rows = 0
        self.unnamed_rows = 0
        self.messages = 0
        self.unjudged = 0
        """Messages with a key whose commit isn't known."""
        self._commit_times = commit_times
        self._ids_from = tuple(ids_from)
        self._scoped = scoped
        self._topic_numbers: dict[str, int] = {}
        self._place_numbers: dict[tuple[str, int], int] = {}
        self._slots: dict[bytes, int] = {}

    def raw_id(self, key: bytes, where: int) -> bytes:
        """The event's id, as a message has it."""
        text = self.ids.text(key, where)
        return text.partition(b"\0")[2] if self._scoped else text

    def id(self, key: bytes, where: int) -> str:
        """The same for a person to read."""
        return self.raw_id(key, where).decode("utf-8", "backslashreplace")

    def close(self) -> None:
        """Forget everything."""
        self.ids.close()
        self.events.close()
        self.deliveries.close()

    def topic(self, name: str) -> int:
        """The number of a topic."""
        number = self._topic_numbers.get(name)
        if number is None:
            number = self._topic_numbers[name] = len(self.topics)
            self.topics.append(name)
        return number

    def place(self, topic: str, partition: int) -> int:
        """The number of a partition."""
        number = self._place_numbers.get((topic, partition))
        if number is None:
            number = self._place_numbers[topic, partition] = len(self.places)
            self.places.append((topic, partition))
        return number

    def enter_rows(self, reader: Reader, rows: Iterable[Values], flags: int) -> None:
        """Enter rows of one table. `flags` holds for all of them."""
        plan, sent = reader.plan, reader.sent
        identity = plan.layout.id
        id_at, id_read = identity.at, identity.read
        encode, created, enter, put = plan.encode, plan.created_us, self.ids.enter, self.events.put
        numbers, scoped = self._topic_numbers, self._scoped
        for values in rows:
            self.rows += 1
            raw = values[id_at]
            if raw is None:
                self.unnamed_rows += 1
                continue
            created_us = created(values, 0)
            name, topic, own, bearer = "", NO_TOPIC, flags, NO_KEY
            try:
                message = encode(values, 0, 0, created_us)
                if isinstance(message, str):
                    own |= LEFT_OUT
                else:
                    name = message[0]
                    found = numbers.get(name)
                    topic = self.topic(name) if found is None else found
                    bearer = _checksum(message[2])
            except PoisonEvent:
                own |= POISON
            if sent(values):
                own |= SENT
            id_ = raw if id_read is None else id_read(raw)
            key, where = enter(f"{name}\0".encode() + id_ if scoped else id_)
            put(key, ROW, own, topic, created_us, where, 0, bearer)

    def enter_messages(self, topic: str, partition: int, messages: Sequence[Message]) -> list[Nameless]:
        """Enter messages of one partition, in the order of their offsets. Answers those without an event's id."""
        place, suffix = self.place(topic, partition), b"\0" + topic.encode()
        prefix = f"{topic}\0".encode() if self._scoped else b""
        enter, put, deliver = self.ids.enter, self.events.put, self.deliveries.put
        timed = self._commit_times
        nameless = []
        self.messages += len(messages)
        for message in messages:
            id_ = None
            flags = lsn = seq = slot = 0
            ms = message.timestamp
            commit = ms if timed and message.timestamp_type == 0 else NO_TIME
            for name, value in message.headers:
                if name == "id":
                    if id_ is None:
                        id_ = value
                elif name == "cdc.lsn":
                    lsn, seq, slot, commit = self._provenance(message, commit)
                elif name == SOURCE:
                    flags, commit = SOURCED, NO_TIME
            if id_ is None:
                commit, flags, slot = NO_TIME, flags | FOREIGN_MADE, 0
                id_ = self._other_id(message)
                if id_ is None:
                    nameless.append(Nameless(place, message.offset, ms))
                    continue
            key, where = enter(prefix + id_)
            bearer = NO_KEY if flags & FOREIGN_MADE else _checksum(message.key)
            put(key, MESSAGE, flags, place, ms, where, message.offset, bearer)
            if message.key is not None:
                if commit == NO_TIME:
                    self.unjudged += not flags & SOURCED
                aggregate = blake2b(message.key + suffix, digest_size=16).digest()
                deliver(aggregate, key, place, message.offset, commit, lsn, seq, slot)
        return nameless

    def keys(self, topic: str, messages: Iterable[Message]) -> Iterator[bytes]:
        """The keys of messages' events, without entering anything."""
        prefix = f"{topic}\0".encode() if self._scoped else b""
        for message in messages:
            own = next((value for name, value in message.headers if name == "id"), None)
            id_ = self._other_id(message) if own is None else own
            if id_ is not None:
                yield self.ids.enter(prefix + id_)[0]

    def row_key(self, plan: Plan, values: Values) -> bytes:
        """The key of a row's event, without entering anything."""
        identity = plan.layout.id
        raw = values[identity.at] or b""
        id_ = raw if identity.read is None or not raw else identity.read(raw)
        if not self._scoped:
            return self.ids.enter(id_)[0]
        try:
            message = plan.encode(values, 0, 0, 0)
        except PoisonEvent:
            message = ""
        topic = "" if isinstance(message, str) else message[0]
        return self.ids.enter(f"{topic}\0".encode() + id_)[0]

    def _other_id(self, message: Message) -> bytes | None:
        for find in self._ids_from:
            found = find(message)
            if found is not None:
                return found
        return None

    def _provenance(self, message: Message, commit: int) -> tuple[int, int, int, int]:
        """LSN, place in the transaction, number of the slot from 1 on, and ms of the commit; zeros for odd ones."""
        headers = dict(message.headers)
        try:
            lsn, seq = int(headers["cdc.lsn"], 16), int(headers["cdc.seq"])
            commit = int(headers["cdc.commit_ts"])
        except (KeyError, ValueError, TypeError):
            return 0, 0, 0, commit
        if not (0 <= lsn < 1 << 64 and 0 <= seq < 1 << 32 and 0 <= commit < 1 << 62):
            return 0, 0, 0, NO_TIME
        slot = self._slots.setdefault(headers.get("cdc.slot", b""), len(self._slots) + 1)
        return lsn, seq, min(slot, 65535), commit


def _checksum(key: bytes | None) -> int:
    return NO_KEY if key is None else crc32(key) or 1
