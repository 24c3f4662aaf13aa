"""The rows of a table for the audit: first those that are proven delivered, then the others.

Two reads of one snapshot tell the two apart without a column more. Only the columns that say which event a row is,
where it goes and whether it goes at all are asked for; payloads stay where they are, unless the key is in them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.postgres import chosen, table_rows
from cdc_outbox.postgres.chosen import Ago, Chosen
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.table.values import Field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.plan import Plan

_NOW: Final[LiteralString] = "select (extract(epoch from clock_timestamp()) * 1000000)::int8"
_OPTIONAL: Final = ("topic", "aggregate_type", "created_at")


async def settled(conn: Connection, window: Chosen) -> Chosen:
    """The window with its bounds as moments, by the server's clock."""
    ((now_us,),) = await execute(conn, _NOW)

    def moment(bound: datetime | Ago | None) -> datetime | None:
        if isinstance(bound, Ago):
            return datetime.fromtimestamp(int(now_us) / 1e6 - bound.seconds, UTC)
        return bound

    return replace(window, since=moment(window.since), until=moment(window.until))


class AuditedRows:
    """The rows of one table in a window."""

    def __init__(self, plan: Plan, where: sql.Composable | None, proven: Acknowledged) -> None:
        self.plan = plan
        self._where = where
        self._proven = proven.condition()
        self._wanted = _wanted(plan)

    @classmethod
    async def of(
        cls, conn: Connection, plan: Plan, settings: OutboxSettings, window: Chosen, proven: Acknowledged
    ) -> AuditedRows:
        """Raises UsageError for a window over a table without a time of writing."""
        if window.since is None and window.until is None:
            return cls(plan, None, proven)
        otherwise = "audit the whole table, without --since and --until"
        found = await chosen.condition(conn, plan, settings, window, otherwise=otherwise)
        return cls(plan, table_rows.bracketed(found.where), proven)

    async def count(self, conn: Connection) -> int:
        """How many they are, seen through the snapshot of `conn`."""
        return await table_rows.count(conn, self.plan.table, self._where)

    async def portions(self, conn: Connection) -> AsyncIterator[tuple[bool, Chunk]]:
        """Read them through a snapshot: rows, and whether they are proven delivered."""
        for proven in (True, False):
            condition = self._proven if proven else sql.SQL("not ") + table_rows.bracketed(self._proven)
            where = condition if self._where is None else self._where + sql.SQL(" and ") + condition
            chunks = table_rows.rows(
                conn,
                self.plan.table,
                self.plan.shape.names,
                wanted=self._wanted,
                where=where,
                order=None,
            )
            async for chunk in chunks:
                yield proven, chunk


def _wanted(plan: Plan) -> frozenset[int]:
    """Places of the columns that are needed; all that a message is made of where a function makes its key."""
    fields = [field for role, field in plan.needed.items() if role != "payload"]
    fields += [plan.optional[role] for role in _OPTIONAL if role in plan.optional]
    sent = plan.bookkeeping.sent
    if sent is not None:
        fields.append(sent.field)
    wanted = frozenset(field.at for field in fields)
    return wanted if plan.layout.key is None or isinstance(plan.layout.key, Field) else wanted | plan.read
