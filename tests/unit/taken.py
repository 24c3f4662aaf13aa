"""An intake between a scripted stream and a bus in memory, and the table that its stream tells of."""

from __future__ import annotations

from typing import Any, cast

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.event import Encoded, TableName
from cdc_outbox.intake import Intake
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.table.mapping import Mapping
from tests.unit.mapped import DEFAULT, settings
from tests.unit.memory_publisher import MemoryPublisher
from tests.unit.scripted import OID, ScriptedStream, frame, insert

ALL = 1 << 62


def relation(name: str = "outbox", oid: int = OID, columns: dict[str, int] = DEFAULT) -> bytes:
    described = tuple(Column(column, type_oid, -1, False) for column, type_oid in columns.items())
    return frame(Relation(oid, "public", name, "d", described))


def row(key: str, oid: int = OID, type_: bytes = b"order") -> bytes:
    return insert([key.encode(), type_, key.encode(), b"placed", b"1", b"{}", None, None], oid)


class Taken:
    """An intake between a scripted stream and a bus in memory."""

    def __init__(
        self,
        *,
        topics: set[str] | None = None,
        ours: dict[int, TableName] | None = None,
        **changes: object,
    ) -> None:
        self.stream = ScriptedStream()
        self.ledger = Ledger()
        self.publisher = MemoryPublisher(self.ledger, topics=topics, patient=True)
        mapping = Mapping(settings(provenance=True, **changes), "outbox_slot")
        self.intake = Intake(cast(Any, self.stream), self.ledger, mapping, self.publisher, ours)

    def drain(self, *frames: bytes, rows: int = ALL, to_commit: bool = False) -> bool:
        if frames:
            self.stream.say(*frames)
        return self.intake.drain(rows=rows, to_commit=to_commit)

    def messages(self) -> list[Encoded]:
        self.publisher.confirm(1 << 30)
        return self.publisher.messages

    def keys(self) -> list[bytes | None]:
        return [message[2] for message in self.messages()]

    def places(self) -> list[tuple[str, int]]:
        """The provenance headers of what was published."""
        headers = [dict(message[5]) for message in self.messages()]
        return [(each["cdc.lsn"].decode(), int(each["cdc.seq"])) for each in headers]
