"""From settings and a relation's columns to a plan.

What the settings and the names together can't answer is an error of the set-up, which names the column and
the next step. All of it is answered here, once, so that a row meets no question that could have been asked
before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import MappingError
from cdc_outbox.event import TableName
from cdc_outbox.table import (
    hstore,
    key,
    lacking,
    members,
    own_words,
    profiles,
    raw,
    selection,
    sent,
    template,
    topic,
)
from cdc_outbox.table.layout import Layout
from cdc_outbox.table.plan import Plan
from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.roles import Roles
from cdc_outbox.table.unfit import Unfit
from cdc_outbox.table.values import HSTORE, Field

if TYPE_CHECKING:
    from cdc_outbox.settings.model import OutboxSettings
    from cdc_outbox.table.layout import Source
    from cdc_outbox.table.sent import Bookkeeping

DEFAULT_TOPIC: Final = "outbox.event."
"""The prefix of the topic where only an aggregate type is known."""

NO_TYPE: Final = "no header type"
"""What stands in a plan's summary where events go without their type, in a table that isn't a library's."""


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
        self.source = source
        self.roles = Roles(settings, table, shape, previous)
        self.dropped: dict[str, int] = {}
        self.other_buses: dict[str, None] = {}
        self.inserted_sent: dict[str, None] = {}
        self.told = own_words.is_told(settings)
        usual = profiles.bookkeeping(self.roles.profile, self.unclaimed)
        self.bookkeeping = own_words.bookkeeping(settings, table, usual, shape.find, self.roles.column)

    def compile(self) -> Plan:
        """The plan. Raises MappingError for what settings and columns together can't answer."""
        settings = self.settings
        if self.roles.profile is not None:
            rule = "recognised" if settings.profile == profiles.AUTO else "configured"
            self.roles.summary[f"profile {self.roles.profile.name}"] = ("", rule)
        if self.roles.previous is None:
            lacking.require_not_several(self.roles)
        identity = self.roles.need("id", "every event needs an id that a consumer can tell it by")
        topics = self.topics()
        key_source, key_described = key.compile(self.roles, identity)
        payload = self.roles.need("payload", "an event's value is its payload")
        type_ = self.roles.take("type")
        version = self.version()
        placed = self.placed(identity, type_)
        static = self.static(type_, version, placed)
        if type_ is None and self.roles.profile is None and "type" not in dict(static):
            self.roles.summary[NO_TYPE] = ("", "no column is recognised: --column type=NAME")
        layout = Layout(
            table=self.table,
            slot=self.slot,
            id=identity,
            payload=payload,
            topics=topics,
            key=key_source,
            key_described=key_described,
            type=type_,
            version=version,
            timestamp=self.roles.take("timestamp", needed=True),
            partition=self.roles.take("partition", needed=True),
            placed=placed,
            members=self.members(version, placed),
            static=static,
            provenance=settings.provenance,
            source=self.source,
            roles=self.roles.needed | self.roles.optional,
        )
        rules = self.rules()
        read = frozenset(self.roles.used)
        created = self.roles.take("created_at")
        if self.source is not None and created is not None:
            read |= {created.at}
        if self.bookkeeping.sent is not None and self.bookkeeping.sent.beside is not None:
            read |= {self.bookkeeping.sent.beside.at}
        return Plan(
            table=self.table,
            shape=self.shape,
            layout=layout,
            encode=raw.compile(layout),
            rules=rules,
            summary=self.roles.summary,
            needed=self.roles.needed,
            optional=self.roles.optional,
            read=read,
            ignored=tuple(field.name for field in self.shape.fields if field.at not in self.roles.used),
            dropped=self.dropped,
            other_buses=self.other_buses,
            inserted_sent=self.inserted_sent,
            bookkeeping=self.bookkeeping,
            selected=tuple(self.selected()),
        )

    def unclaimed(self, name: str) -> Field | None:
        """A column by its name; a usual time of sending isn't one that a setting names for what it is."""
        field = self.shape.find(name)
        if field is None or name not in sent.SENT_TIMES:
            return field
        columns = self.settings.columns
        named = ",".join(columns[role] for role in ("created_at", "timestamp") if role in columns)
        return None if any(self.shape.find(each.strip()) == field for each in named.split(",")) else field

    # The parts of a message

    def topics(self) -> topic.Topics:
        """Topics by `outbox.topic`, else by the topic column, and by the aggregate type where that has no value."""
        text = self.settings.topic
        if text is not None:
            return self.templated_topics(text)
        sources: list[list[template.Part]] = []
        described: list[str] = []
        columns: list[str] = []
        rules: list[str] = []
        for role, prefix in (("topic", ""), ("aggregate_type", DEFAULT_TOPIC)):
            found = self.roles.look(role)
            if found is None:
                continue
            field, rule = found
            self.roles.claim(role, field, needed=not sources)
            sources.append([prefix.encode(), field] if prefix else [field])
            described.append(f"{prefix}{{{field.name}}}" if prefix else field.name)
            columns.append(field.name)
            rules.append(rule)
        if not sources:
            self.roles.check_gone("topic")
            self.roles.check_gone("aggregate_type")
            raise MappingError(
                f"table {self.table} has neither a topic column nor an aggregate type to name topics by",
                next=(self.roles.profile.topic_advice if self.roles.profile is not None else "")
                or "name topics with --topic TEMPLATE, such as orders or orders.{COLUMN}, "
                "or a column, with --column topic=NAME or --column aggregate_type=NAME: it has "
                f"{', '.join(self.shape.names)}",
            )
        self.roles.summary["topic"] = (", else ".join(described), rules[0])
        return topic.topics(sources, " and ".join(columns))

    def templated_topics(self, text: str) -> topic.Topics:
        """Topics by `outbox.topic`."""
        try:
            parts = template.resolve(text, self.roles.placeholder("outbox.topic", "topic"))
            compiled = topic.topics([parts], f"a value of {text}")
        except (ValueError, Unfit) as error:
            raise MappingError(
                f"outbox.topic is wrong: {error}",
                next="give a legal topic name with columns in braces, as in --topic 'orders.{event_type}'",
            ) from None
        if "{" in text:
            self.roles.summary["topic"] = (text, "configured")
        else:
            self.roles.summary[f"topic {text}"] = ("", "configured")
        return compiled

    def version(self) -> Field | None:
        """The column of the event's version, unless a header of that name is placed by hand."""
        if (
            any(name == "version" for name, _ in self.settings.headers)
            and "version" not in self.settings.columns
        ):
            return None
        return self.roles.take("version")

    def placed(self, identity: Field, type_: Field | None) -> tuple[tuple[str, Field], ...]:
        """Headers from columns, without those that are sent under this name anyway."""
        own = {"id": identity, "type": type_, "version": self.roles.optional.get("version")}
        placed: dict[str, Field] = {}
        for name, column in self.settings.headers:
            field = self.roles.column(column, f"outbox.header.{name}")
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
            self.roles.claim(f"header {name}", field, needed=True)
            self.roles.summary[f"header {name}"] = (field.name, "configured")
        return tuple(placed.items())

    def check_name(self, name: str, setting: str) -> None:
        """Raise MappingError for a header's name that is kept for the relay."""
        if name.startswith(members.RESERVED):
            raise MappingError(
                f"{setting} names the header {name}, and {members.RESERVED} is kept for the relay's own",
                next="use another header name",
            )

    def members(
        self, version: Field | None, placed: tuple[tuple[str, Field], ...]
    ) -> tuple[Field, members.Append] | None:
        """The column whose members become headers, and how; a name that is sent anyway is taken."""
        field = self.roles.take("headers")
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
        """Headers with the same value on every message, by `outbox.static_headers`."""
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
        """What leaves a row out, in the order in which it is asked: bus, `outbox.only`, sent, due."""
        rules: list[selection.Rule] = []
        bus = self.roles.look("bus")
        if bus is not None:
            self.roles.claim("bus", bus[0], needed=True)
            accepted = self.accepted(bus[0])
            self.roles.summary["bus"] = (f"{bus[0].name}: only {', '.join(accepted)}", bus[1])
            rules.append(selection.bus(bus[0], accepted, self.other_buses))
        for name, accepted in self.settings.only.items():
            field = self.roles.column(name, "outbox.only")
            if bus is not None and field == bus[0]:
                continue
            self.roles.claim(f"only {name}", field, needed=True)
            self.roles.summary[f"only {field.name}"] = (", ".join(accepted), "configured")
            rules.append(selection.only(field, accepted))
        rule = "recognised" if self.roles.profile is None else f"profile {self.roles.profile.name}"
        mark = self.bookkeeping.sent if self.source is None else None
        if self.told:
            self.roles.summary["sent"] = (own_words.describe(self.settings, self.bookkeeping), "configured")
        if mark is not None:
            self.roles.claim("sent", mark.field, needed=False)
            self.roles.summary.setdefault("sent", (mark.field.name, rule))
            rules.append(selection.sent(mark, self.inserted_sent))
        due = (
            sent.due(self.shape.find)
            if self.roles.profile is None
            else sent.due(self.shape.find, self.roles.profile.due)
        )
        if due is not None and self.settings.scheduled == "error":
            self.roles.claim("due", due, needed=False)
            if self.source is None:
                self.roles.summary["due"] = (due.name, rule)
                rules.append(selection.due(due))
        return rules

    def accepted(self, bus: Field) -> tuple[str, ...]:
        """The values of the bus column that are ours: what `outbox.only` says of it, else what is usual."""
        for name, accepted in self.settings.only.items():
            if self.shape.find(name) == bus:
                return accepted
        return (self.roles.profile.bus if self.roles.profile is not None else ()) or ("kafka",)

    def selected(self) -> list[tuple[Field, tuple[str, ...]]]:
        """The columns by whose values rows are ours, as far as the table has them."""
        bus = self.roles.look("bus")
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
