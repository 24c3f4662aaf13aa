"""Which column of a relation plays which role, and by which rule: the settings, a profile, or its usual name.

A column that is found is claimed, by the role that it plays and by its place. What a table needs and doesn't have is
an error of the set-up, which names the column and the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import MappingError
from cdc_outbox.event import TableName
from cdc_outbox.table import profiles
from cdc_outbox.table.recognise import NAMES, Shape
from cdc_outbox.table.values import DOCUMENTS, FIRST_USER_TYPE, HSTORE, INTEGERS, OID, TIMES, Field

if TYPE_CHECKING:
    from cdc_outbox.settings.model import OutboxSettings
    from cdc_outbox.table.plan import Plan

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


def gone(table: TableName, role: str, column: str) -> MappingError:
    """The error for a column that a role was played by until now, and that has vanished."""
    return MappingError(
        f"column {column} of {table}, which the {role} came from, was dropped or renamed",
        next=f"name its successor, and the old name for rows from before, with --column {role}=NEW,{column}",
    )


class Roles:
    """The roles of one relation, filled while its plan is compiled.

    `needed` and `optional` are the columns that were claimed, by role; `used` their places, and those of columns that
    the settings name for something else. `summary` tells each role's column or source, and the rule that found it.
    """

    def __init__(
        self, settings: OutboxSettings, table: TableName, shape: Shape, previous: Plan | None
    ) -> None:
        """`previous`: the plan of the same relation until now. Raises MappingError for a profile that doesn't fit."""
        self.settings = settings
        self.table = table
        self.shape = shape
        self.previous = previous
        self.profile = profiles.choose(settings.profile, table, shape)
        self.summary: dict[str, tuple[str, str]] = {}
        self.needed: dict[str, Field] = {}
        self.optional: dict[str, Field] = {}
        self.used: set[int] = set()

    def column(self, name: str, setting: str) -> Field:
        """A column that the settings name; `new,old` because rows from before a renaming have the old name.

        `setting`: the setting's name, for the error. Raises MappingError where the table has no such column.
        """
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
        found = (self.shape.find(each, role) for each in self.profile.columns.get(role, ()))
        field = next((each for each in found if each is not None), None)
        return None if field is None else (field, f"profile {self.profile.name}")

    def take(self, role: str, *, needed: bool = False) -> Field | None:
        """The column of a role, claimed for it; None where nothing plays it. Raises MappingError for a wrong type."""
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
        """Note that a column plays a role. `needed`: it must not move to another column while we run."""
        self.used.add(field.at)
        (self.needed if needed else self.optional)[role] = field

    def need(self, role: str, why: str) -> Field:
        """The column of a role that no event can be without; MappingError, which says `why`, where nothing plays it."""
        field = self.take(role, needed=True)
        if field is None:
            self.check_gone(role)
            raise MappingError(
                f"table {self.table} has no column that is recognised as {role}: {why}",
                next=f"name one of {', '.join(self.shape.names)} with --column {role}=NAME, "
                f"or call it {' or '.join(NAMES[role][:2])}",
            )
        return field

    def check_gone(self, role: str) -> None:
        """Raise the error that names the column which played a role until now, where it has vanished while we run."""
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
