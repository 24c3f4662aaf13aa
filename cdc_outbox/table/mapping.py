"""Which relations of the stream are ours, and the plan for each.

Columns are found by name in the Relation message that precedes the rows, never in the live catalogue: the
stream may be hours behind it. When the table changes while we run, the plan is made anew from names alone,
as after a restart; but something needed never moves to another column in silence.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cdc_outbox.event import TableName
from cdc_outbox.table.compiler import Compiler
from cdc_outbox.table.key import NoKey
from cdc_outbox.table.plan import Plan
from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.roles import gone
from cdc_outbox.table.values import Field, base

if TYPE_CHECKING:
    from cdc_outbox.postgres.pgoutput import Relation, Type
    from cdc_outbox.settings.model import OutboxSettings
    from cdc_outbox.table.layout import Source

__all__ = ["Mapping", "NoKey", "Plan"]


class Mapping:
    """The settings of `[outbox]`, ready to be applied to the relations of a stream."""

    def __init__(self, settings: OutboxSettings, slot: str, *, source: Source | None = None) -> None:
        """`source`: rows come from the table. Who reads it decides which; then `sent` and `due` don't apply."""
        self._settings = settings
        self._slot = slot
        self._source = source
        self._tables = frozenset(settings.tables)
        self._told: dict[TableName, str] = {}
        self._types: dict[int, int] = {}

    @property
    def settings(self) -> OutboxSettings:
        """Those of `[outbox]`."""
        return self._settings

    def wants(self, relation: Relation) -> bool:
        """Whether rows of this relation are events: its name is one of our tables'."""
        return TableName(relation.namespace, relation.name) in self._tables

    def learn(self, described: Type) -> None:
        """Take in the description of a type that isn't built in; it comes before the relations that use it.

        Of a domain PostgreSQL names the type that it is made of, and so a domain over bytea is read as bytea.
        """
        self._types[described.oid] = base(described.oid, described.namespace, described.name)

    def plan(self, relation: Relation, previous: Plan | None = None) -> Plan:
        """Compile the plan for the rows that follow a Relation message.

        `previous` is the plan of the same relation in the same session, if there was one: a column that it
        needed and that has gone since is an error, even where another column would be recognised in its
        place. Raises MappingError.
        """
        table = TableName(relation.namespace, relation.name)
        shape = Shape(
            replace(column, type_oid=self._types.get(column.type_oid, column.type_oid))
            for column in relation.columns
        )
        plan = Compiler(self._settings, self._slot, table, shape, previous, self._source).compile()
        if previous is not None:
            _compare(previous, plan)
        return plan

    def told(self) -> dict[str, str]:
        """Each table's plan in words, as far as it is known by now."""
        return {str(table): words for table, words in self._told.items()}

    def is_news(self, plan: Plan) -> bool:
        """Whether the plan reads other than the last one of its table that was asked about."""
        described = plan.describe()
        news = self._told.get(plan.table) != described
        self._told[plan.table] = described
        return news


def _compare(previous: Plan, plan: Plan) -> None:
    """Refuse a plan in which something needed has silently moved to another column."""
    for role, before in previous.needed.items():
        now = plan.needed.get(role)
        if now is None or now.name != before.name:
            if plan.shape.find(before.name) is not None:
                continue  # a column was added that comes first: as it would be after a restart
            if now is not None and _renamed(previous.shape, plan.shape, before, now):
                continue
            raise gone(plan.table, role, before.name)


def _renamed(old: Shape, new: Shape, before: Field, now: Field) -> bool:
    """Whether nothing but this column's name has changed."""
    return (
        before.at == now.at
        and before.type_oid == now.type_oid
        and len(old.fields) == len(new.fields)
        and all(a.name == b.name or a.at == before.at for a, b in zip(old.fields, new.fields, strict=True))
    )
