"""From settings and a relation's columns to a plan.

What the settings and the names together can't answer is an error of the set-up, which names the column and
the next step. All of it is answered here, once, so that a row meets no question that could have been asked
before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import MappingError
from cdc_outbox.event import TableName, Values
from cdc_outbox.table import (
    hstore,
    members,
    own_words,
    pointer,
    profiles,
    raw,
    selection,
    sent,
    template,
    topic,
)
from cdc_outbox.table.layout import Encode, Layout
from cdc_outbox.table.plan import Plan
from cdc_outbox.table.recognise import NAMES, Shape
from cdc_outbox.table.unfit import Unfit
from cdc_outbox.table.values import BYTEA, DOCUMENTS, FIRST_USER_TYPE, HSTORE, INTEGERS, OID, TIMES, Field

if TYPE_CHECKING:
    from cdc_outbox.settings.model import OutboxSettings
    from cdc_outbox.table.layout import Source
    from cdc_outbox.table.sent import Bookkeeping

ENCODERS: Final[dict[str, Callable[[Layout], Encode]]] = {}
"""Envelopes by the value of the setting `outbox.profile`; the default one for all others."""

DEFAULT_TOPIC: Final = "outbox.event."
"""The prefix of the topic where only an aggregate type is known."""

_POINTED: Final = {"payload:": "payload", "headers:": "headers"}
"""The roles that a key can be taken from by JSON pointer, by what stands before it."""

_PLACEHOLDERS: Final = {
    "aggregate_type": "aggregate_type",
    "aggregate_id": "aggregate_id",
    "event_type": "type",
    "event_id": "id",
}
_TYPES: Final[dict[str, tuple[frozenset[int], str]]] = {
    "headers": (DOCUMENTS | {HSTORE}, "json, jsonb, hstore or text"),
    "timestamp": (TIMES | INTEGERS, "timestamptz, timestamp or an integer"),
    "partition": (INTEGERS, "an integer"),
}


class NoKey(MappingError):
    """The table has no aggregate id, and no other key is named or given up.

    `payload`: the column in whose members a key could be found.
    """

    def __init__(self, message: str, *, next: str, payload: Field | None = None) -> None:  # noqa: A002
        super().__init__(message, next=next)
        self.payload = payload


def gone(table: TableName, role: str, column: str) -> MappingError:
    """A column that a role was played by until now has vanished."""
    return MappingError(
        f"column {column} of {table}, which the {role} came from, was dropped or renamed",
        next=f"name its successor, and the old name for rows from before, with --column {role}=NEW,{column}",
    )


def _is_made(key: str) -> bool:
    """Whether a key isn't the name of a column, or of several."""
    return key == "none" or key.startswith(tuple(_POINTED)) or "{" in key.partition(",")[0]


class Compiler:
    """One relation and the settings, on the way to a plan."""

    def __init__(
        self,
        settings: OutboxSettings,
        slot: str,
        table: TableName,
        shape: Shape,
        previous: Plan | None,
        source: Source | None = None,
    ) -> None:
        self.settings = settings
        self.slot = slot
        self.table = table
        self.shape = shape
        self.previous = previous
        self.source = source
        self.profile = profiles.choose(settings.profile, table, shape)
        self.summary: dict[str, tuple[str, str]] = {}
        self.needed: dict[str, Field] = {}
        self.optional: dict[str, Field] = {}
        self.used: set[int] = set()
        self.dropped: dict[str, int] = {}
        self.other_buses: dict[str, None] = {}
        self.told = own_words.is_told(settings)
        self.bookkeeping = own_words.bookkeeping(
            settings, table, profiles.bookkeeping(self.profile, shape), shape.find, self.column
        )

    def compile(self) -> Plan:
        settings = self.settings
        if self.profile is not None:
            rule = "recognised" if settings.profile == profiles.AUTO else "configured"
            self.summary[f"profile {self.profile.name}"] = ("", rule)
        identity = self.need("id", "every event needs an id that a consumer can tell it by")
        topics = self.topics()
        key, key_described = self.key(identity)
        payload = self.need("payload", "an event's value is its payload")
        type_ = self.role("type")
        version = self.version()
        placed = self.placed(identity, type_)
        layout = Layout(
            table=self.table,
            slot=self.slot,
            id=identity,
            payload=payload,
            topics=topics,
            key=key,
            key_described=key_described,
            type=type_,
            version=version,
            timestamp=self.role("timestamp", needed=True),
            partition=self.role("partition", needed=True),
            placed=placed,
            members=self.members(version, placed),
            static=self.static(type_, version, placed),
            provenance=settings.provenance,
            source=self.source,
            roles=self.needed | self.optional,
        )
        rules = self.rules()
        read = frozenset(self.used)
        created = self.role("created_at")
        if self.source is not None and created is not None:
            read |= {created.at}
        return Plan(
            table=self.table,
            shape=self.shape,
            layout=layout,
            encode=ENCODERS.get(settings.profile, raw.compile)(layout),
            rules=rules,
            summary=self.summary,
            needed=self.needed,
            optional=self.optional,
            read=read,
            ignored=tuple(field.name for field in self.shape.fields if field.at not in self.used),
            dropped=self.dropped,
            other_buses=self.other_buses,
            bookkeeping=self.bookkeeping,
            selected=tuple(self.selected()),
        )

    # Columns and roles

    def column(self, name: str, setting: str) -> Field:
        """A column that the settings name; `new,old` because rows from before a renaming have the old name."""
        for spelled in (name, *name.split(",")):
            field = self.shape.find(spelled.strip())
            if field is not None:
                self.used.add(field.at)
                return field
        if self.previous is not None and self.previous.shape.find(name) is not None:
            raise MappingError(
                f"column {name!r} of {self.table}, which {setting} names, was dropped or renamed",
                next=f"name its successor there, and the old name for rows from before: NEW,{name}",
            )
        arriving = ", ".join(self.shape.names)
        one = f"name one of the columns that arrive: {arriving}"
        if len(self.settings.tables) > 1:
            one = (
                f"name one for each table, with commas between, as in {name},COLUMN; here arrive: {arriving}"
            )
        raise MappingError(
            f"table {self.table} has no column {name!r}, which {setting} names",
            next=f"{one} (generated columns, and those outside the publication's column list, do not)",
        )

    def look(self, role: str) -> tuple[Field, str] | None:
        """The column of a role and the rule that found it, without claiming it."""
        name = self.settings.columns.get(role)
        if name is not None:
            return self.column(name, f"outbox.columns.{role}"), "configured"
        if self.profile is None:
            field = self.shape.recognise(role)
            return None if field is None else (field, "recognised")
        found = (self.shape.find_plain(each) for each in self.profile.columns.get(role, ()))
        field = next((each for each in found if each is not None), None)
        return None if field is None else (field, f"profile {self.profile.name}")

    def role(self, role: str, *, needed: bool = False) -> Field | None:
        found = self.look(role)
        if found is None:
            return None
        field, rule = found
        types = _TYPES.get(role)
        if role == "created_at" and rule == "configured":
            types = (TIMES | INTEGERS, "timestamptz, timestamp or an integer")
        if types is not None and field.type_oid not in types[0] and field.type_oid < FIRST_USER_TYPE:
            raise MappingError(
                f"column {field.name} of {self.table} can't be the {role}: it is not {types[1]}",
                next=f"name another column with --column {role}=NAME",
            )
        if role == "payload" and field.type_oid == OID:
            raise MappingError(
                f"column {field.name} of {self.table} can't be the payload: it has the number of a large object, "
                "whose bytes are not in the table",
                next=f"store the bytes in the row, as bytea or text; or name another column with --column {role}=NAME",
            )
        self.claim(role, field, needed=needed)
        self.summary[role] = (field.name, rule)
        return field

    def claim(self, role: str, field: Field, *, needed: bool) -> None:
        self.used.add(field.at)
        (self.needed if needed else self.optional)[role] = field

    def need(self, role: str, why: str) -> Field:
        field = self.role(role, needed=True)
        if field is None:
            self.check_gone(role)
            raise MappingError(
                f"table {self.table} has no column that is recognised as {role}: {why}",
                next=f"name one of {', '.join(self.shape.names)} with --column {role}=NAME, "
                f"or call it {' or '.join(NAMES[role][:2])}",
            )
        return field

    def check_gone(self, role: str) -> None:
        """Name the column that played a role until now, where it has vanished while we run."""
        before = self.previous.needed.get(role) if self.previous is not None else None
        if before is not None and self.shape.find(before.name) is None:
            raise gone(self.table, role, before.name)

    def placeholder(self, setting: str, part: str) -> Callable[[str], Field]:
        """How a template finds its columns: the four names of roles, then names of columns."""

        def find(name: str) -> Field:
            role = _PLACEHOLDERS.get(name, "")
            found = self.look(role)
            if found is not None:
                self.claim(role, found[0], needed=True)
                return found[0]
            field = self.column(name, setting)
            self.claim(f"{part} {name}", field, needed=True)
            return field

        return find

    # The parts of a message

    def topics(self) -> topic.Topics:
        text = self.settings.topic
        if text is not None:
            return self.templated_topics(text)
        sources: list[list[template.Part]] = []
        described: list[str] = []
        columns: list[str] = []
        rules: list[str] = []
        for role, prefix in (("topic", ""), ("aggregate_type", DEFAULT_TOPIC)):
            found = self.look(role)
            if found is None:
                continue
            field, rule = found
            self.claim(role, field, needed=not sources)
            sources.append([prefix.encode(), field] if prefix else [field])
            described.append(f"{prefix}{{{field.name}}}" if prefix else field.name)
            columns.append(field.name)
            rules.append(rule)
        if not sources:
            self.check_gone("topic")
            self.check_gone("aggregate_type")
            raise MappingError(
                f"table {self.table} has neither a topic column nor an aggregate type to name topics by",
                next=(self.profile.topic_advice if self.profile is not None else "")
                or "name topics with --topic TEMPLATE, such as orders or orders.{COLUMN}, "
                "or the column with --column topic=NAME",
            )
        self.summary["topic"] = (", else ".join(described), rules[0])
        return topic.topics(sources, " and ".join(columns))

    def templated_topics(self, text: str) -> topic.Topics:
        try:
            parts = template.resolve(text, self.placeholder("outbox.topic", "topic"))
            compiled = topic.topics([parts], f"a value of {text}")
        except (ValueError, Unfit) as error:
            raise MappingError(
                f"outbox.topic is wrong: {error}",
                next="give a legal topic name with columns in braces, as in --topic 'orders.{event_type}'",
            ) from None
        if "{" in text:
            self.summary["topic"] = (text, "configured")
        else:
            self.summary[f"topic {text}"] = ("", "configured")
        return compiled

    def key(self, identity: Field) -> tuple[Field | Callable[[Values], bytes | None] | None, str]:
        text = self.settings.key
        if text is None:
            field = self.role("aggregate_id", needed=True)
            if field is not None:
                self.summary["key"] = (field.name, self.summary.pop("aggregate_id")[1])
                return field, field.name
            self.check_gone("aggregate_id")
            if self.profile is None or self.profile.key is None:
                raise self.no_key()
            described = f"{self.profile.key}, else {identity.name}"
            self.summary["key"] = (described, f"profile {self.profile.name}")
            return self.pointed_key(self.profile.key, identity)
        text = self.first_key(text)
        if text == "none":
            self.summary["key none"] = ("", "configured")
            return None, "none"
        self.summary["key"] = (text, "configured")
        if text.startswith(tuple(_POINTED)):
            return self.pointed_key(text)
        if "{" not in text and "}" not in text:
            field = self.column(text, "outbox.key")
            self.claim("key", field, needed=True)
            return field, field.name
        try:
            parts = template.resolve(text, self.placeholder("outbox.key", "key"))
        except ValueError as error:
            raise MappingError(
                f"outbox.key is wrong: {error}",
                next="put columns in braces, as in --key '{tenant}-{aggregate_id}'",
            ) from None
        if not any(isinstance(part, Field) for part in parts):
            raise MappingError(
                f"outbox.key is the same for all rows: {text!r}",
                next="name a column of each row, as in --key '{tenant}-{aggregate_id}', or use --key none",
            )
        if len(parts) == 1 and isinstance(parts[0], Field):
            return parts[0], parts[0].name
        return template.compose(parts, empty=True), f"a value of {text}"

    def first_key(self, text: str) -> str:
        """The first of several keys that the table has; all but the last are columns: `customer,payload:/order_id`."""
        rest = text
        while "," in rest and not _is_made(rest) and self.shape.find(rest) is None:
            name, _, rest = (part.strip() for part in rest.partition(","))
            if self.shape.find(name) is not None:
                return name
        return rest if _is_made(rest) else text

    def no_key(self) -> NoKey:
        advice = self.profile.key_advice if self.profile is not None else ""
        payload = self.look("payload")
        return NoKey(
            f"table {self.table} has no aggregate id column, so its events have no key",
            next=advice
            or "name the key with --key COLUMN, or by JSON pointer, as --key payload:/order_id; "
            "or give up order with --key none",
            payload=payload[0] if payload is not None and not advice else None,
        )

    def pointed_key(
        self, text: str, otherwise: Field | None = None
    ) -> tuple[Callable[[Values], bytes | None], str]:
        """The key from inside of a document; `otherwise`: the column that is the key where the member is missing."""
        before = text[: text.index(":") + 1]
        role = _POINTED[before]
        try:
            find = pointer.compile(text[len(before) :], role)
        except ValueError as error:
            raise MappingError(
                f"outbox.key is wrong: {error}", next=f"write a JSON pointer, as in --key {before}/order/id"
            ) from None
        document = self.need(role, "the key is to be taken from it")
        if document.type_oid not in DOCUMENTS | {BYTEA} and document.type_oid < FIRST_USER_TYPE:
            raise MappingError(
                f"the key {text} can't come from column {document.name} of {self.table}: it is not json, jsonb, text "
                "or bytea with a JSON document",
                next="name the key by a column, as in --key COLUMN",
            )
        at, read = document.at, document.read

        def pointed(values: Values) -> bytes | None:
            raw = values[at]
            if raw is None:
                return None
            return find(raw if read is None else read(raw))

        if otherwise is None:
            return pointed, text
        other, read_other = otherwise.at, otherwise.read

        def pointed_or_other(values: Values) -> bytes | None:
            found = pointed(values) or values[other]
            return found if found is None or read_other is None else read_other(found)

        return pointed_or_other, f"{text} and {otherwise.name}"

    def version(self) -> Field | None:
        if (
            any(name == "version" for name, _ in self.settings.headers)
            and "version" not in self.settings.columns
        ):
            return None
        return self.role("version")

    def placed(self, identity: Field, type_: Field | None) -> tuple[tuple[str, Field], ...]:
        """Headers from columns, without those that are sent under this name anyway."""
        own = {"id": identity, "type": type_, "version": self.optional.get("version")}
        placed: dict[str, Field] = {}
        for name, column in self.settings.headers:
            field = self.column(column, f"outbox.header.{name}")
            self.check_name(name, "outbox.header")
            before = own.get(name)
            if before == field:
                continue
            if before is not None or name in {"id", "type"}:
                raise MappingError(
                    f"header {name} can't come from column {column}: it is the event's {name}",
                    next=f"use another header name, or name that column with --column {name}={column}",
                )
            if name in placed and placed[name] != field:
                raise MappingError(
                    f"header {name} is placed twice", next=f"name one column in outbox.header for {name}"
                )
            placed[name] = field
            self.claim(f"header {name}", field, needed=True)
            self.summary[f"header {name}"] = (field.name, "configured")
        return tuple(placed.items())

    def check_name(self, name: str, setting: str) -> None:
        if name.startswith(members.RESERVED):
            raise MappingError(
                f"{setting} names the header {name}, and {members.RESERVED} is kept for the relay's own",
                next="use another header name",
            )

    def members(
        self, version: Field | None, placed: tuple[tuple[str, Field], ...]
    ) -> tuple[Field, members.Append] | None:
        field = self.role("headers")
        if field is None:
            return None
        taken = {
            "id",
            "type",
            *(name for name, _ in placed),
            *(name for name, _ in self.settings.static_headers),
        }
        if version is not None:
            taken.add("version")
        read = hstore.pairs if field.type_oid == HSTORE else None
        return field, members.compile(field.name, taken, self.dropped, read)

    def static(
        self, type_: Field | None, version: Field | None, placed: tuple[tuple[str, Field], ...]
    ) -> tuple[tuple[str, bytes], ...]:
        own = {"id"} | {name for name, _ in placed}
        own |= {name for name, field in (("type", type_), ("version", version)) if field is not None}
        static: dict[str, bytes] = {}
        for name, value in self.settings.static_headers:
            self.check_name(name, "outbox.static_headers")
            if name in own:
                raise MappingError(
                    f"header {name} can't have the fixed value {value!r}: it is sent from a column",
                    next=f"use another name than {name} in outbox.static_headers",
                )
            static[name] = value.encode()
        return tuple(static.items())

    # Which rows

    def rules(self) -> list[selection.Rule]:
        rules: list[selection.Rule] = []
        bus = self.look("bus")
        if bus is not None:
            self.claim("bus", bus[0], needed=True)
            accepted = self.accepted(bus[0])
            self.summary["bus"] = (f"{bus[0].name}: only {', '.join(accepted)}", bus[1])
            rules.append(selection.bus(bus[0], accepted, self.other_buses))
        for name, accepted in self.settings.only.items():
            field = self.column(name, "outbox.only")
            if bus is not None and field == bus[0]:
                continue
            self.claim(f"only {name}", field, needed=True)
            self.summary[f"only {field.name}"] = (", ".join(accepted), "configured")
            rules.append(selection.only(field, accepted))
        rule = "recognised" if self.profile is None else f"profile {self.profile.name}"
        mark = self.bookkeeping.sent if self.source is None else None
        if self.told:
            self.summary["sent"] = (own_words.describe(self.settings, self.bookkeeping), "configured")
        if mark is not None:
            self.claim("sent", mark.field, needed=False)
            self.summary.setdefault("sent", (mark.field.name, rule))
            rules.append(selection.sent(mark))
        due = (
            sent.due(self.shape.find)
            if self.profile is None
            else sent.due(self.shape.find_plain, self.profile.due)
        )
        if due is not None and self.settings.scheduled == "error":
            self.claim("due", due, needed=False)
            if self.source is None:
                self.summary["due"] = (due.name, rule)
                rules.append(selection.due(due))
        return rules

    def accepted(self, bus: Field) -> tuple[str, ...]:
        """The values of the bus column that are ours: what `outbox.only` says of it, else what is usual."""
        for name, accepted in self.settings.only.items():
            if self.shape.find(name) == bus:
                return accepted
        return (self.profile.bus if self.profile is not None else ()) or ("kafka",)

    def selected(self) -> list[tuple[Field, tuple[str, ...]]]:
        """The columns by whose values rows are ours, as far as the table has them."""
        bus = self.look("bus")
        selected = {} if bus is None else {bus[0]: self.accepted(bus[0])}
        for name, accepted in self.settings.only.items():
            field = self.shape.find(name)
            if field is not None:
                selected[field] = accepted
        return list(selected.items())


def ignored(settings: OutboxSettings, table: TableName, shape: Shape) -> tuple[str, ...]:
    """The columns that nothing reads; all of them where there is no plan for the table."""
    try:
        return Compiler(settings, "", table, shape, None).compile().ignored
    except MappingError:
        return shape.names


def bookkeeping(settings: OutboxSettings, table: TableName, shape: Shape) -> Bookkeeping:
    """What a table knows of its rows; also where there is no plan for it. Raises MappingError."""
    return Compiler(settings, "", table, shape, None).bookkeeping


def selected(settings: OutboxSettings, table: TableName, shape: Shape) -> list[tuple[Field, tuple[str, ...]]]:
    """The columns by whose values rows of a table are ours, with these values; also where there is no plan for it.

    Raises MappingError where the table's profile doesn't fit it, or a column that is named isn't there.
    """
    return Compiler(settings, "", table, shape, None).selected()
