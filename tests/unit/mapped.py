"""Relations, rows and settings for the tests of the mapping, short to write down."""

from __future__ import annotations

from dataclasses import replace

from cdc_outbox.event import Encoded, TableName
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.settings.model import OutboxSettings
from cdc_outbox.table.mapping import Mapping, Plan
from tests.unit.scripted import COMMIT_US

BOOL, BYTEA, INT8, INT4, TEXT, JSON, JSONB, VARCHAR = 16, 17, 20, 23, 25, 114, 3802, 1043
TIMESTAMP, TIMESTAMPTZ, UUID, NUMERIC, ENUM = 1114, 1184, 2950, 1700, 16500

LSN = 0x16_B374_D848

SETTINGS = OutboxSettings(
    tables=(TableName("public", "outbox"),),
    profile="auto",
    columns={},
    topic=None,
    key=None,
    headers=(),
    static_headers=(),
    provenance=False,
    only={},
    scheduled="error",
    mark="none",
)

DEFAULT = {
    "id": UUID,
    "aggregate_type": TEXT,
    "aggregate_id": TEXT,
    "event_type": TEXT,
    "event_version": INT4,
    "payload": JSONB,
    "headers": JSONB,
    "created_at": TIMESTAMPTZ,
}
TABLE_A = {
    "id": INT8,
    "aggregate_type": TEXT,
    "aggregate_id": TEXT,
    "topic": TEXT,
    "payload": JSONB,
    "status": TEXT,
    "attempts": INT4,
    "next_run_at": TIMESTAMPTZ,
    "locked_by": TEXT,
    "locked_at": TIMESTAMPTZ,
    "last_error": TEXT,
    "created_at": TIMESTAMPTZ,
    "sent_at": TIMESTAMPTZ,
}
TABLE_B = {
    "id": INT8,
    "event_id": UUID,
    "bus": TEXT,
    "topic": TEXT,
    "payload": JSONB,
    "status": TEXT,
    "attempts": INT4,
    "last_error": TEXT,
    "created_at": TIMESTAMPTZ,
    "sent_at": TIMESTAMPTZ,
}
TABLE_C = {"id": INT8, "topic": TEXT, "payload": JSONB, "sent_at": TIMESTAMPTZ}

EVENT = {
    "id": "3f2b8a54-9c1d-4f0e-8b7a-1234567890ab",
    "aggregate_type": "order",
    "aggregate_id": "order-17",
    "event_type": "OrderPlaced",
    "event_version": "1",
    "payload": '{"a": 1}',
    "created_at": "2024-01-17 13:14:10.25+00",
}


def relation(columns: dict[str, int], name: str = "outbox") -> Relation:
    """A Relation message of a table in `public`, from column → type OID."""
    return Relation(
        1, "public", name, "d", tuple(Column(column, oid, -1, False) for column, oid in columns.items())
    )


def settings(**changes: object) -> OutboxSettings:
    return replace(SETTINGS, **changes)  # type: ignore[arg-type]  # the test names the field


class Mapped:
    """A plan, and rows written as column=text."""

    def __init__(
        self,
        columns: dict[str, int] | None = None,
        /,
        *,
        row: dict[str, str] | None = None,
        **changes: object,
    ) -> None:
        self.columns = DEFAULT if columns is None else columns
        self.row: dict[str, str] = (
            {name: text for name, text in EVENT.items() if name in self.columns} if row is None else row
        )
        self.plan: Plan = Mapping(settings(**changes), "outbox_slot").plan(relation(self.columns))

    def values(self, **cells: str | bytes | None) -> list[bytes | None]:
        row: dict[str, str | bytes | None] = {**self.row, **cells}
        assert row.keys() <= self.columns.keys()
        texts = [row.get(name) for name in self.columns]
        return [text.encode() if isinstance(text, str) else text for text in texts]

    def result(self, **cells: str | bytes | None) -> Encoded | str:
        return self.plan.encode(self.values(**cells), LSN, 3, COMMIT_US)

    def encode(self, **cells: str | bytes | None) -> Encoded:
        result = self.result(**cells)
        assert not isinstance(result, str), f"left out: {result}"
        return result

    def topic(self, **cells: str | bytes | None) -> str:
        return self.encode(**cells)[0]

    def key(self, **cells: str | bytes | None) -> bytes | None:
        return self.encode(**cells)[2]

    def headers(self, **cells: str | bytes | None) -> list[tuple[str, bytes]]:
        return self.encode(**cells)[5]
