"""The outbox tables that well-known libraries make, and what becomes of their rows.

A profile says which column plays which role where a table has names of its own, and how its relay marks a row. Under
`auto` a table is taken for a library's only if its name is that library's and the columns that no other table has are
all there; by its name a profile can be asked for where the table goes by another one. What is configured comes before
a profile, as it comes before the usual names.

What a library keeps in one column for its own relay, its envelope, is sent as it is: nothing is taken apart. Rows that
can't be told apart as events are refused with the reason. Names of tables and columns are compared without regard to
case and underscores, since the naming convention is the application's choice in some of these libraries.

Sources, each at its PostgreSQL schema: https://masstransit.io/documentation/patterns/transactional-outbox
https://wolverinefx.net/guide/durability/postgresql.html https://cap.dotnetcore.xyz/user-guide/en/storage/postgresql/
https://github.com/eventuate-foundation/eventuate-common (postgres) https://docs.spring.io/spring-modulith/reference/events.html
https://github.com/juntossomosmais/django-outbox-pattern https://docs.axoniq.io (event store, RDBMS tuning)
https://docs.particular.net/persistence/sql/postgresql-scripts
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import MappingError
from cdc_outbox.table import sent
from cdc_outbox.table.recognise import plain
from cdc_outbox.table.sent import Bookkeeping, Find, Words

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.table.recognise import Shape

AUTO: Final = "auto"
"""Recognise: a library's table by name and columns, any other by the usual names."""

EXTERNALIZER: Final = (
    "org.springframework.modulith.events.support.DelegatingEventExternalizer.externalize(java.lang.Object)"
)
"""The listener by whose name Spring Modulith keeps the publications that are meant for a broker."""

NONE: Final = "none"
"""By the usual names alone, whatever the table looks like."""


def _no_book(_find: Find) -> Bookkeeping:
    return Bookkeeping()


def _deleted(_find: Find) -> Bookkeeping:
    return Bookkeeping(deleted=True)


@dataclass(frozen=True, slots=True)
class Profile:
    """One library's table. Names of tables and columns are `plain`: lower case, without underscores."""

    name: str
    product: str
    tables: tuple[str, ...]
    """Names that the library gives the table; `*…`: any name that ends so."""
    columns: Mapping[str, tuple[str, ...]]
    """Role → names, the first that the table has. Roles that aren't here are played by none."""
    distinctive: frozenset[str]
    """Columns that make the table the library's: all of them are there."""
    key: str | None = None
    """A JSON pointer as in `outbox.key`. A row without that member has its id as key, as the library's relay has it."""
    bus: tuple[str, ...] = ()
    """Values of the column in the role `bus` that are ours."""
    due: tuple[str, ...] = ()
    """Columns with a time before which a row shouldn't be sent."""
    bookkeeping: Callable[[Find], Bookkeeping] = field(default=_no_book)
    key_advice: str = ""
    topic_advice: str = ""
    refused: str = ""
    """Why rows of this table can't be events at all."""
    instead: str = ""


PROFILES: Final = (
    Profile(
        "masstransit",
        "MassTransit",
        tables=("outboxmessage", "outboxmessages"),
        columns={
            "id": ("messageid",),
            "type": ("messagetype",),
            "payload": ("body",),
            "headers": ("headers",),
            "created_at": ("senttime",),
        },
        distinctive=frozenset(
            {
                *("sequencenumber", "enqueuetime", "senttime", "inboxmessageid", "outboxid", "messageid"),
                *("messagetype", "body", "conversationid", "destinationaddress"),
            }
        ),
        due=("enqueuetime",),
        bookkeeping=_deleted,
        key_advice="name the key by a column, as --key ConversationId, or by a member of the message, as "
        "--key payload:/message/orderId; or give up order with --key none",
        topic_advice="name the topic, as --topic orders: a MassTransit table has addresses and URNs, and none of "
        "them is a topic's name",
    ),
    Profile(
        "wolverine",
        "Wolverine",
        tables=("wolverineoutgoingenvelopes",),
        columns={"id": ("id",), "type": ("messagetype",), "payload": ("body",)},
        distinctive=frozenset(
            {"id", "ownerid", "destination", "deliverby", "body", "attempts", "messagetype"}
        ),
        bookkeeping=_deleted,
        key_advice="name the key by a column with --key COLUMN; or give up order with --key none: Wolverine keeps "
        "group and partition inside of the envelope",
        topic_advice="name the topic, as --topic orders or --topic 'orders.{message_type}': Wolverine's destination "
        "is an address, and no topic's name",
    ),
    Profile(
        "cap",
        "CAP",
        tables=("published",),
        columns={
            "id": ("id",),
            "topic": ("name",),
            "payload": ("content",),
            "created_at": ("added",),
        },
        distinctive=frozenset(
            {"id", "version", "name", "content", "retries", "added", "expiresat", "statusname"}
        ),
        key="payload:/Headers/cap-kafka-key",
        bookkeeping=lambda find: replace(
            sent.by_words(
                Words(
                    "statusname",
                    sent=frozenset({"succeeded"}),
                    retried=frozenset({"failed"}),
                    taken=frozenset({"queued"}),
                    written="Succeeded",
                ),
                find,
                {"expiresat": 86_400.0},
            ),
            annotated=True,
        ),
    ),
    Profile(
        "eventuate-tram",
        "Eventuate Tram",
        tables=("message",),
        columns={
            "id": ("id",),
            "topic": ("destination",),
            "payload": ("payload",),
            "headers": ("headers",),
            "created_at": ("creationtime",),
        },
        distinctive=frozenset({"id", "destination", "headers", "payload", "published", "creationtime"}),
        key="headers:/PARTITION_ID",
        bookkeeping=lambda find: sent.by_words(
            Words("published", sent=frozenset({"1"}), waiting=frozenset({"0"}), written="1"), find, {}
        ),
    ),
    Profile(
        "spring-modulith",
        "Spring Modulith",
        tables=("eventpublication",),
        columns={
            "id": ("id",),
            "type": ("eventtype",),
            "payload": ("serializedevent",),
            "created_at": ("publicationdate",),
            "bus": ("listenerid",),
        },
        distinctive=frozenset(
            {"id", "listenerid", "eventtype", "serializedevent", "publicationdate", "completiondate"}
        ),
        bus=(EXTERNALIZER,),
        bookkeeping=lambda find: sent.by_time(
            "completiondate",
            Words(
                "status",
                sent=frozenset({"completed"}),
                retried=frozenset({"failed"}),
                taken=frozenset({"processing"}),
                written="COMPLETED",
            ),
            find,
        ),
        key_advice="name the key by a member of the event, as --key payload:/orderId; or give up order with "
        "--key none",
        topic_advice="name the topic, as --topic orders or --topic 'orders.{event_type}': the target that "
        "@Externalized names is not in the table",
    ),
    Profile(
        "django-outbox-pattern",
        "django-outbox-pattern",
        tables=("published",),
        columns={
            "id": ("id",),
            "topic": ("destination",),
            "payload": ("body",),
            "headers": ("headers",),
            "created_at": ("added",),
        },
        distinctive=frozenset(
            {"id", "version", "destination", "body", "added", "expiresat", "retry", "status"}
        ),
        bookkeeping=lambda find: sent.by_words(
            Words(
                "status",
                sent=frozenset({"2"}),
                given_up=frozenset({"-1"}),
                waiting=frozenset({"1"}),
                written="2",
            ),
            find,
            {},
        ),
        key_advice="name the key by a member of the body, as --key payload:/order_id; or give up order with "
        "--key none",
    ),
    Profile(
        "axon",
        "Axon Framework",
        tables=("domainevententry",),
        columns={
            "id": ("eventidentifier",),
            "aggregate_type": ("type",),
            "aggregate_id": ("aggregateidentifier",),
            "type": ("payloadtype",),
            "version": ("payloadrevision",),
            "payload": ("payload",),
            "created_at": ("timestamp",),
        },
        distinctive=frozenset(
            {
                *("globalindex", "eventidentifier", "aggregateidentifier", "sequencenumber", "type"),
                *("payload", "payloadtype", "payloadrevision", "metadata", "timestamp"),
            }
        ),
    ),
    Profile(
        "nservicebus",
        "NServiceBus",
        tables=("*outboxdata",),
        columns={},
        distinctive=frozenset(
            {"messageid", "dispatched", "dispatchedat", "persistenceversion", "operations"}
        ),
        refused="a row is what one handled message had to send, none to many messages in one JSON column; and with "
        "pessimistic concurrency it is inserted empty and filled by an UPDATE, which no stream of inserts has",
        instead="let NServiceBus dispatch them, and write the events that Kafka is to have into a table of their own:"
        " cdc-outbox init --create-table --table public.outbox",
    ),
)

BY_NAME: Final = {profile.name: profile for profile in PROFILES}


def choose(setting: str, table: TableName, shape: Shape) -> Profile | None:
    """The profile of a table: by the setting, else by the table's name and its columns; None: by the usual names.

    Raises MappingError where the named one doesn't fit the table, or where the table's rows can't be events.
    """
    if setting == NONE:
        return None
    has = {plain(name) for name in shape.names}
    if setting != AUTO:
        profile = BY_NAME.get(setting)
        if profile is None:
            known = ", ".join((AUTO, NONE, *BY_NAME))
            raise MappingError(
                f"there is no profile {setting!r}", next=f"set outbox.profile to one of: {known}"
            )
        missing = sorted(profile.distinctive - has)
        if missing and not profile.refused:
            raise MappingError(
                f"table {table} is no {profile.product} table: it has no column like {', '.join(missing)}",
                next="leave out --profile, and name the columns with --column ROLE=NAME",
            )
    else:
        profile = next((each for each in PROFILES if _fits(each, table, has)), None)
        if profile is None:
            return None
    if profile.refused:
        raise MappingError(
            f"rows of {table}, an outbox of {profile.product} (profile {profile.name}), can't be sent as events: "
            f"{profile.refused}",
            next=profile.instead,
        )
    return profile


def bookkeeping(profile: Profile | None, find: Find) -> Bookkeeping:
    """What the table knows of its rows."""
    return (sent.usual if profile is None else profile.bookkeeping)(find)


def _fits(profile: Profile, table: TableName, has: set[str]) -> bool:
    name = plain(table.name)
    named = any(name.endswith(each[1:]) if each.startswith("*") else name == each for each in profile.tables)
    return named and profile.distinctive <= has
