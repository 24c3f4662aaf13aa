"""The outbox table as an application knows it, and the row that an event becomes. Pure.

Every value goes to the server as text and is cast there to the column's type, so that one statement serves all
libraries, and a codec that the application has set for `jsonb` or `uuid` does nothing to our values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Final
from uuid import uuid4

from cdc_outbox.enqueue import document, trace
from cdc_outbox.enqueue.event import Event
from cdc_outbox.errors import CallRefused, EventTooLarge, EventUnfit
from cdc_outbox.event import TableName, quote

MAX_BYTES: Final = 1_048_576
"""Kafka's default for max.request.size: what the largest record may be."""

COLUMNS: Final[Mapping[str, str]] = {
    "id": "id",
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "type": "event_type",
    "version": "event_version",
    "payload": "payload",
    "headers": "headers",
}
"""The columns of the default table, by the role that `outbox.columns` has for them."""

TYPES: Final[Mapping[str, str]] = {
    "id": "uuid",
    "aggregate_type": "text",
    "aggregate_id": "text",
    "type": "text",
    "version": "integer",
    "topic": "text",
    "payload": "jsonb",
    "headers": "jsonb",
}

# The roles that are arguments of another name.
_ARGUMENTS: Final[Mapping[str, str]] = {"type": "event_type", "version": "event_version"}
_KNOWN: Final = frozenset(Event.__annotations__)
_NEEDED: Final = ("aggregate_type", "aggregate_id", "type")

_NUMBERS: Final = frozenset({"smallint", "integer", "bigint", "numeric"})
_BUILT_IN: Final = re.compile(r"[a-z][a-z0-9]*(?: [a-z]+)*\Z")
# An explicit cast to one of these cuts the text off.
_CUTTING: Final = frozenset({"char", "character", "nchar", "bit"})

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_OWN_HEADERS: Final = frozenset({"id", "type"})

_MISMATCH: Final = "42804"
_OF_TYPE: Final = re.compile('"([^"]+)" is of type (.+?) but')

# The header of a batch and the fields of a record; the lengths of a header's name and value.
_RECORD: Final = 96
_HEADER: Final = 6


@dataclass(frozen=True, slots=True)
class Row:
    """One event as a row: `values` of the columns that play `roles`, and after them of the `other` columns.

    `id` is the event's, or None where the database makes it.
    """

    id: str | None
    roles: tuple[str, ...]
    other: tuple[str, ...]
    values: tuple[object, ...]


class OutboxTable:
    """How events become rows of one table; configured once, and shared by all threads."""

    def __init__(
        self,
        table: str = "public.outbox",
        *,
        columns: Mapping[str, str] = COLUMNS,
        types: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
        max_bytes: int | None = MAX_BYTES,
        check_topic: bool = True,
        trace_context: bool = True,
        default: document.Default | None = None,
    ) -> None:
        """`table` is read as SQL reads a name.

        `columns`: role → name for each role that the table has a column for, as in `outbox.columns`: `id`, `payload`,
        and what there is of `aggregate_type`, `aggregate_id`, `type`, `version`, `topic` and `headers`. `types`: role →
        PostgreSQL's type, where it differs from the default table's (`topic` is text); an `id` that is a number is made
        by the column's own default. `extra`: values of other columns, for each event. `max_bytes` of the event as a
        Kafka record, None for no limit. `check_topic`: whether Kafka has to take the topic's name, which is `topic` or
        `outbox.event.<aggregate_type>`; not where the relay makes topics by a template. `trace_context`: whether
        OpenTelemetry's current context becomes headers. `default` is orjson's, for what JSON has no type for.

        Raises CallRefused.
        """
        try:
            self.name = TableName.parse(table)
        except ValueError as error:
            raise CallRefused(str(error), next='write it as "shop.outbox"') from None
        types = types or {}
        for role in (*columns, *types):
            if role not in TYPES:
                raise CallRefused(f"an outbox has no role {role!r}", next=f"the roles are {', '.join(TYPES)}")
        for role in ("id", "payload"):
            if role not in columns:
                raise CallRefused(
                    f"columns names none for the role {role!r}", next=f"add it: columns={{{role!r}: …}}"
                )
        self.columns = dict(columns)
        self.types = {**TYPES, **{role: _type(role, name) for role, name in types.items()}}
        self.extra = dict(extra or {})
        self.max_bytes = max_bytes
        self.check_topic = check_topic
        self.trace_context = trace_context
        self.default = default
        self._own_headers = _OWN_HEADERS | ({"version"} if "version" in columns else set())
        self._statements: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def row(self, event: Event) -> Row:
        """The row of an event.

        Raises EventUnfit, EventTooLarge, and TypeError for an argument that there isn't.
        """
        self._require_known(event)
        texts = self._texts(event)
        if self.check_topic:
            _require_topic(texts)
        payload, headers = self._payload(event), self._headers(event)
        self._require_size(texts, payload or b"", headers)
        found: dict[str, object] = {**texts, "payload": payload}
        if payload is not None and self.types["payload"] != "bytea":
            found["payload"] = payload.decode()
        if headers:
            found["headers"] = headers.decode()
        extra = {**self.extra, **event.get("extra", {})}
        for name in extra.keys() & self.columns.values():
            raise EventUnfit(
                f"the column {name!r} plays a role already", next="hand its value over as that argument"
            )
        return Row(texts.get("id"), tuple(found), tuple(extra), (*found.values(), *extra.values()))

    def rows(self, events: Iterable[Event]) -> list[Row]:
        """The rows of all events, before the first of them is written.

        Raises as `row`, with the event's place as a note.
        """
        found = []
        for place, event in enumerate(events):
            try:
                found.append(self.row(event))
            except EventUnfit as error:
                error.add_note(f"of the events it is number {place}, counted from 0")
                raise
        return found

    @contextmanager
    def written(self) -> Iterator[None]:
        """Around a statement that writes rows: the library's error for a column of another type says what to do."""
        try:
            yield
        except Exception as error:
            server = next((each for each in _origins(error) if _sqlstate(each) == _MISMATCH), None)
            if server is not None:
                error.add_note(self._cast_missing(str(server)))
            raise

    def _cast_missing(self, text: str) -> str:
        """The next step where a column has another type than the value for it."""
        roles = {name: role for role, name in self.columns.items()}
        found = _OF_TYPE.search(text)
        role, type_ = (roles.get(found[1]), found[2]) if found is not None else (None, "")
        if role is None:
            return 'next: name the type of that column by its role: Outbox(types={"id": "bigint"})'
        return f"next: name the type of that column: Outbox(types={{{role!r}: {type_!r}}})"

    def statement(self, row: Row) -> str:
        """The INSERT for a row like this one. It answers the id, as text, where the database makes it."""
        key = (row.roles, row.other)
        if (known := self._statements.get(key)) is None:
            known = self._statements[key] = self._insert(row)
        return known

    def _insert(self, row: Row) -> str:
        names = [self.columns[role] for role in row.roles] + list(row.other)
        columns = ", ".join(self._escaped(quote(name)) for name in names)
        values = [self._cast(role, self._mark(at)) for at, role in enumerate(row.roles)]
        values += [self._mark(at) for at in range(len(values), len(names))]
        table = self._escaped(str(self.name))
        statement = f"insert into {table} ({columns}) values ({', '.join(values)})"  # noqa: S608 - all are quoted
        if row.id is None:
            statement += f" returning cast({self._escaped(quote(self.columns['id']))} as text)"
        return statement

    def _cast(self, role: str, parameter: str) -> str:
        type_ = self.types[role]
        if type_ in ("text", "bytea"):
            return f"cast({parameter} as {type_})"
        return f"cast(cast({parameter} as text) as {self._escaped(type_)})"

    def _mark(self, _place: int) -> str:
        """How the library spells the parameter at a place, from 0: psycopg and Django."""
        return "%s"

    def _escaped(self, name: str) -> str:
        """How a name is spelled in a statement in which the library looks for parameters."""
        return name.replace("%", "%%")

    def _require_known(self, event: Event) -> None:
        if unknown := event.keys() - _KNOWN:
            raise TypeError(f"enqueue() got an unexpected keyword argument {min(unknown)!r}")
        for role in TYPES.keys() - self.columns.keys():
            argument = _ARGUMENTS.get(role, role)
            if event.get(argument) is not None:
                raise EventUnfit(
                    f"{argument} is given, and no column of {self.name} is named for it",
                    next=f"leave it out, or name the column: Outbox(columns={{{role!r}: …}})",
                )

    def _texts(self, event: Event) -> dict[str, str]:
        """The values of the roles that aren't JSON, as far as there are any."""
        texts = {}
        if (given := event.get("id")) is not None:
            texts["id"] = self._text("id", given)
        elif self.types["id"] not in _NUMBERS:
            texts["id"] = str(uuid4())
        for role in _NEEDED:
            if role in self.columns:
                texts[role] = self._text(role, event.get(_ARGUMENTS.get(role, role)))
        if (version := event.get("event_version")) is not None:
            texts["version"] = _version(version)
        if (topic := event.get("topic")) is not None:
            texts["topic"] = self._text("topic", topic)
        return texts

    def _text(self, role: str, value: object) -> str:
        argument = _ARGUMENTS.get(role, role)
        found = document.text(argument, value)
        return document.uuid(argument, found) if self.types[role] == "uuid" else found

    def _payload(self, event: Event) -> bytes | None:
        if "payload" not in event:
            raise EventUnfit("payload is missing", next="hand it over; payload=None is a tombstone")
        value, type_ = event["payload"], self.types["payload"]
        if value is None:
            return None
        if type_ == "bytea" and isinstance(value, bytes):
            return value
        if type_ in ("text", "bytea") and isinstance(value, str):
            return document.text("payload", value).encode()
        return document.json("payload", value, binary=type_ == "jsonb", default=self.default)

    def _headers(self, event: Event) -> bytes:
        """The headers as JSON; empty where there are none."""
        headers: Mapping[str, object] = event.get("headers") or {}
        for name in headers:
            if name in self._own_headers or str(name).startswith("cdc."):
                raise EventUnfit(
                    f"the header {name!r} is the relay's own", next=f"give it another name, such as x-{name}"
                )
        if self.trace_context and "headers" in self.columns:
            headers = trace.joined(headers)
        if not headers:
            return b""
        binary = self.types["headers"] == "jsonb"
        return document.json("headers", dict(headers), binary=binary, default=self.default)

    def _require_size(self, texts: Mapping[str, str], payload: bytes, headers: bytes) -> None:
        if self.max_bytes is None:
            return
        small = [texts.get(role, "") for role in ("id", "aggregate_id", "type", "version")]
        size = _RECORD + len(headers) + sum(len(each.encode()) + _HEADER for each in small)
        if size + document.most_printed(payload) <= self.max_bytes:
            return
        size += document.printed(payload) if payload and self.types["payload"] == "jsonb" else len(payload)
        if size > self.max_bytes:
            raise EventTooLarge(
                f"the event is {size} bytes as a Kafka record, and {self.max_bytes} is the limit",
                next="keep what is large elsewhere and send where it is; or raise three limits: max_bytes of Outbox, "
                "max.request.size of the relay, max.message.bytes of the topic",
            )


def _origins(error: BaseException) -> Iterator[BaseException]:
    """The error, and the driver's own where SQLAlchemy or Django has wrapped that."""
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _sqlstate(error: BaseException) -> object:
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def alike(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """The rows in their order, in runs that one statement writes."""
    for _, run in groupby(rows, key=lambda row: (row.roles, row.other)):
        yield list(run)


def _type(role: str, name: str) -> str:
    """A type's name for a cast. Raises CallRefused for what isn't one, or would cut values off."""
    if name not in _CUTTING:
        if _BUILT_IN.match(name):
            return name
        try:
            return str(TableName.parse(name))
        except ValueError:
            pass
    raise CallRefused(
        f"{name!r} can't be the type of {role}",
        next="name it without a length (text for varchar(40) and char(8)); an enum or domain of another schema than "
        "public with its schema",
    )


def _require_topic(texts: Mapping[str, str]) -> None:
    """Raise EventUnfit for a topic that Kafka would refuse, which would stop the relay at this row."""
    name = texts.get("topic")
    if not name and "aggregate_type" in texts:
        name = f"outbox.event.{texts['aggregate_type']}" if texts["aggregate_type"] else ""
    if name is None:
        return
    if _TOPIC.match(name) is None or name in (".", ".."):
        raise EventUnfit(
            f"its topic would be {name!r}, which Kafka refuses: a name has 1 to 249 of A-Z a-z 0-9 . _ -",
            next="hand over an aggregate_type of these characters; or Outbox(check_topic=False), where the relay makes "
            "the topics by a template",
        )


def _version(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool) or not -(2**31) <= value < 2**31:
        raise EventUnfit(f"event_version is {value!r}", next="number the versions of an event: 1, 2, 3")
    return str(int(value))
