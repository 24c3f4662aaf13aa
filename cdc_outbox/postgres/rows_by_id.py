"""Rows that the table has under an id, each as the stream would have brought it, and whether it was delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable, UsageError
from cdc_outbox.event import quote
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import reading_right, sqlstate
from cdc_outbox.postgres.column_text import text_of
from cdc_outbox.postgres.connection import Connection, execute, reach_operators
from cdc_outbox.postgres.family import rows_of

if TYPE_CHECKING:
    from datetime import datetime

    from cdc_outbox.event import Values
    from cdc_outbox.postgres.acknowledged import Acknowledged
    from cdc_outbox.table.mapping import Plan

MOST: Final = 10
"""Rows with one id that are shown: an id should be unique, and needn't be."""

SCAN: Final = 60.0
"""Seconds that a search without an index may take."""

# A frozen transaction has no commit time, nor has one from before track_commit_timestamp was on.
_FIND: Final[LiteralString] = """
select r.tableoid::regclass::text, {delivered},
       case when pg_catalog.current_setting('track_commit_timestamp') = 'on'
            then pg_catalog.pg_xact_commit_timestamp(r.xmin) end,
       {texts}
  from {table} as r where r.{id} = %s limit {most}
"""

_END_OF_WAL: Final[LiteralString] = "select pg_catalog.pg_current_wal_insert_lsn()::text"


@dataclass(frozen=True, slots=True)
class Stored:
    """One row. `relation`: the table or partition that holds it, as SQL names it.

    `committed_at`: when the row as it is now was committed, which an UPDATE since makes later than the insert; None
    where the server doesn't keep that.
    """

    relation: str
    delivered: bool
    committed_at: datetime | None
    values: Values


async def find(conn: Connection, plan: Plan, acknowledged: Acknowledged, event_id: str) -> list[Stored]:
    """The rows with this id.

    Raises UsageError for what can't be an id of this table, MissingRight, PostgresUnavailable where the search takes
    longer than `SCAN` seconds.
    """
    column, table = plan.layout.id.name, plan.table
    texts = [text_of(sql.Identifier("r", field.name)) for field in plan.shape.fields]
    query = sql.SQL(_FIND).format(
        delivered=acknowledged.condition(sql.Identifier("r")),
        texts=sql.SQL(", ").join(texts),
        table=await rows_of(conn, table),
        id=sql.Identifier(column),
        most=sql.Literal(MOST),
    )
    await reach_operators(conn, plan.layout.id.type_oid)
    await execute(conn, reading_right.ALL_ROWS)
    await execute(conn, sql.SQL("set statement_timeout = {}").format(sql.Literal(int(SCAN * 1000))))
    try:
        rows = await execute(conn, query, (event_id,), within=SCAN + 5)
    except CdcOutboxError as error:
        raise _explained(error, plan, event_id, conn.info.user) from error
    return [
        Stored(
            str(relation),
            bool(delivered),
            committed_at,
            [None if text is None else str(text).encode() for text in values],
        )
        for relation, delivered, committed_at, *values in rows
    ]


def _explained(error: CdcOutboxError, plan: Plan, event_id: str, role: str) -> CdcOutboxError:
    state = sqlstate.of(error)
    column, table = quote(plan.layout.id.name), plan.table
    if state[:2] == "22":
        words = str(error).partition(": ")[2]
        return UsageError(
            f"{event_id!r} can't be an id of {table}, by the type of its column {column}: {words}",
            next="give the id as PostgreSQL prints it, and as the header id of the message has it",
        )
    if state == "57014":
        name = quote(f"{table.name}_{plan.layout.id.name}_idx")
        return PostgresUnavailable(
            f"to find one row of {table} without an index on {column} took longer than {SCAN:g} s",
            next=f"create index concurrently {name} on {table} ({column});",
        )
    return reading_right.named(error, table, role)


async def end_of_wal(conn: Connection) -> LSN:
    """A position behind the commit of each row that was found before."""
    ((position,),) = await execute(conn, _END_OF_WAL)
    return LSN.parse(str(position))
