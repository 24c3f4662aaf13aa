"""The rows of a table for the audit: first those that are proven delivered, then the others.

Two reads of one snapshot tell the two apart without a column more. Only the columns that say which event a row is,
where it goes and whether it goes at all are asked for; payloads stay where they are, unless the key is in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import sql

from cdc_outbox.postgres import chosen, table_rows
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.table.values import Field

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cdc_outbox.event import Values
    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.postgres.chosen import Window
    from cdc_outbox.postgres.table_rows import Chunk
    from cdc_outbox.table.plan import Plan

_OPTIONAL: Final = ("topic", "aggregate_type", "created_at")


class AuditedRows:
    """The rows of one table in a window. Raises UsageError for a window over a table without a time of writing."""

    def __init__(self, plan: Plan, window: Window, proven: Acknowledged) -> None:
        self.plan = plan
        inside = chosen.written(plan, window, otherwise="audit the whole table, without --since and --until")
        self._where = table_rows.bracketed(sql.SQL(" and ").join(inside)) if inside else None
        self._proven = proven.condition()
        self._wanted = _wanted(plan)

    async def count(self, conn: Connection) -> int:
        """How many they are, seen through the snapshot of `conn`."""
        return await table_rows.count(conn, self.plan.table, self._where)

    async def newest(self, conn: Connection) -> int | None:
        """When the newest row of the table was written, in or out of the window, in µs since 1970; None: not known."""
        field = self.plan.optional.get("created_at")
        if field is None:
            return None
        query = sql.SQL("select pg_catalog.convert_to(pg_catalog.max({})::text, 'UTF8') from {}").format(
            sql.Identifier(field.name), await rows_of(conn, self.plan.table)
        )
        ((written,),) = await execute(conn, query, within=table_rows.COUNT_LIMIT)
        values: Values = [None] * len(self.plan.shape.fields)
        values[field.at] = written
        return self.plan.created_us(values, 0) or None

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
        fields += sent.fields
    wanted = frozenset(field.at for field in fields)
    return wanted if plan.layout.key is None or isinstance(plan.layout.key, Field) else wanted | plan.read
