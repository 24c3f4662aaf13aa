"""Which column plays which part.

Outbox tables differ in names, hardly in meaning: so the usual names are recognised without configuration.
The first name of a list that the table has wins, in the list's order and whatever case and underscores, so that
`eventId` is `event_id`; a configured column comes before all of them. The stream tells names and types only, so nothing
else is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, Protocol

from cdc_outbox.errors import MappingError
from cdc_outbox.event import quote
from cdc_outbox.table import values

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "id": ("event_id", "id", "outbox_id", "message_id", "messageid", "uuid", "identifier"),
    "aggregate_type": ("aggregate_type", "aggregatetype", "entity_type", "aggregate"),
    "aggregate_id": (
        "aggregate_id",
        "aggregateid",
        "entity_id",
        "event_key",
        "partition_key",
        "aggregate_identifier",
        "message_key",
    ),
    "type": ("event_type", "type", "message_type", "event_name"),
    "topic": ("topic", "destination", "queue"),
    "payload": ("payload", "body", "event_data", "data", "message", "content"),
    "headers": ("headers",),
    "version": ("event_version",),
    "created_at": ("created_at", "occurred_at", "timestamp", "added"),
    "bus": ("bus",),
}
"""Role by role, the names that are recognised. `timestamp` and `partition` are played only when
configured."""

_QUOTED: Final = re.compile(r'"((?:[^"]|"")+)"')


class Column(Protocol):
    """What is known of a column: that of a Relation message, or one read from the catalogue."""

    @property
    def name(self) -> str: ...

    @property
    def type_oid(self) -> int: ...


class Ambiguous(MappingError):
    """Several columns could be meant, none of them as it is spelled."""


def plain(name: str) -> str:
    """A name without regard to case and underscores."""
    return name.lower().replace("_", "")


def bare(name: str) -> str:
    """A name that a person gave in double quotes, as SQL has it, without them; any other as it is."""
    quoted = _QUOTED.fullmatch(name)
    return name if quoted is None else quoted[1].replace('""', '"')


class Shape:
    """The columns of one relation, by name."""

    def __init__(self, columns: Iterable[Column]) -> None:
        self.fields = tuple(
            values.field(column.name, at, column.type_oid) for at, column in enumerate(columns)
        )
        self._exact = {field.name: field for field in self.fields}
        self._plain: dict[str, list[values.Field]] = {}
        for field in self.fields:
            self._plain.setdefault(plain(field.name), []).append(field)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the table's order."""
        return tuple(field.name for field in self.fields)

    def find(self, name: str, role: str | None = None) -> values.Field | None:
        """A column: as the name is spelled, else whatever case and underscores; in double quotes only as it is spelled.

        `role`: what it is to play, where a setting for that role would name it. Raises Ambiguous.
        """
        field = self._exact.get(name)
        if field is not None:
            return field
        inside = bare(name)
        if inside != name:
            return self._exact.get(inside)
        return _only(self._plain.get(plain(name)), name, role)

    def recognise(self, role: str) -> values.Field | None:
        """The column that plays a role by its name. Raises Ambiguous."""
        for name in NAMES.get(role, ()):
            field = self.find(name, role)
            if field is not None and _suits(role, field.type_oid):
                return field
        return None


def _only(found: list[values.Field] | None, name: str, role: str | None) -> values.Field | None:
    """The one column that was found; an error where there are several."""
    if found is None:
        return None
    if len(found) > 1:
        alike = " and ".join(quote(field.name) for field in found)
        flag = f", as in --column {role}={found[0].name}" if role is not None else ""
        raise Ambiguous(
            f"columns {alike} differ only by case or underscores, and {name} could be either",
            next=f"name the one that is meant as the table spells it{flag}; or rename the other",
        )
    return found[0]


def _suits(role: str, type_oid: int) -> bool:
    """A `headers` column that isn't a document is somebody's own; it is left alone unless named."""
    if role != "headers":
        return True
    return type_oid in values.DOCUMENTS or type_oid == values.HSTORE or type_oid >= values.FIRST_USER_TYPE
