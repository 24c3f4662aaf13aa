"""Rows counted by the value of the column that says what became of them, for a person who has to decide."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import MissingRight
from cdc_outbox.postgres import reading_right
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.postgres.table_rows import COUNT_LIMIT, bracketed
from cdc_outbox.table.doubt import doubtful
from cdc_outbox.table.values import TIMES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.table.recognise import Shape
    from cdc_outbox.table.sent import Bookkeeping
    from cdc_outbox.table.values import Field

MOST: Final = 10
"""Values that are told apart; the rest is one number."""

# A column may have another value in each row of a large table.
_COUNTS: Final[LiteralString] = """
select value, count(*), sum(count(*)) over () from (select {value} as value from {table} where {where}) as found
 group by value order by count(*) desc, value limit {most}
"""


def telling(shape: Shape, ignored: Collection[str], book: Bookkeeping) -> Field | None:
    """The column that tells most of a row: its status, else one that looks like it."""
    return book.status or doubtful(shape, ignored, book)


async def counted(
    conn: Connection,
    table: TableName,
    field: Field,
    conditions: Sequence[sql.Composable],
    *,
    within: float = COUNT_LIMIT,
) -> str:
    """The rows that fulfil all `conditions`, as `30 NEW, 4 NULL`, the most frequent first; empty where there is none.

    Raises MissingRight and PostgresUnavailable.
    """
    column = sql.Identifier(field.name)
    text = (
        sql.SQL("case when {} is not null then 'with a time' end")
        if field.type_oid in TIMES
        else sql.SQL("left({}::text, 60)")
    )
    query = sql.SQL(_COUNTS).format(
        value=text.format(column),
        table=await rows_of(conn, table),
        where=sql.SQL(" and ").join([sql.SQL("true"), *map(bracketed, conditions)]),
        most=sql.Literal(MOST),
    )
    try:
        rows = await execute(conn, query, within=within)
    except MissingRight as error:
        raise reading_right.named(error, table, conn.info.user) from error
    shown = [f"{count} {_word(value)}" for value, count, _ in rows]
    rest = sum(int(total) for _, _, total in rows[:1]) - sum(int(count) for _, count, _ in rows)
    return ", ".join([*shown, f"{rest} others"] if rest else shown)


def _word(value: object) -> str:
    """A value as it is told: bare where it is a word, else in quotes."""
    if value is None:
        return "NULL"
    text = str(value)
    return text if re.fullmatch(r"[\w.-]+", text) else repr(text)
