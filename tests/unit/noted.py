"""Rows whose keys are noted, for the tests of marks: how a table is marked, and rows that are sent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from cdc_outbox.event import TableName
from cdc_outbox.mark import Marks
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.table.mapping import Mapping, Plan
from tests.unit.mapped import INT8, JSONB, SETTINGS, TEXT

OUTBOX = TableName("public", "outbox")
OTHER = TableName("public", "other")


def marking(table: TableName = OUTBOX, **key: str) -> Any:
    """How a table is marked, as far as the queue knows it: columns of the key and their types."""
    columns = [SimpleNamespace(name=name, type=type_) for name, type_ in (key or {"id": "bigint"}).items()]
    return SimpleNamespace(how=SimpleNamespace(table=table, key=columns))


def note(queue: Marks, plan: Plan, *keys: bytes, beside: bytes = b"x", reason: str | None = None) -> None:
    """Send rows of these keys through the plan, or leave them out; `beside` is in all other columns."""
    encoded: Any = reason or ("topic", None, None, None, 0, [])
    plan.encode = lambda *_: encoded
    encode, _ = queue.noting(plan)
    for key in keys:
        encode([key, *[beside] * 3], 0, 0, 0)


def table(name: str = "outbox") -> Plan:
    columns = {"id": INT8, "aggregate_id": TEXT, "topic": TEXT, "payload": JSONB}
    described = tuple(Column(column, type_oid, -1, False) for column, type_oid in columns.items())
    names = (OUTBOX, OTHER)
    mapping = Mapping(replace(SETTINGS, tables=names, mark="update"), "slot")
    return mapping.plan(Relation(16_400, "public", name, "d", described))
