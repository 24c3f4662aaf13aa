"""Rows that the old relay sent in a trial and of which the stream had no INSERT: an UPDATE has written them anew.

An application that keeps one row for each key (`on conflict … do update`), or sets a row back to unsent, has its old
relay send it again. A stream of inserts never has it. What was unsent when the trial began is the old relay's own
backlog; what a transaction since then has marked, with a time of sending since then, and is neither of that backlog nor
came by the stream, was written so.

It reads the table twice, LIMIT seconds each time at most, and waits for nobody. Where that isn't enough, or a row
doesn't say when it was sent, nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString, Protocol

from psycopg import sql

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres import lookup, sqlstate
from cdc_outbox.postgres.connection import Connection, execute
from cdc_outbox.postgres.family import rows_of
from cdc_outbox.postgres.transaction import transaction
from cdc_outbox.postgres.unsent import unsent
from cdc_outbox.table.values import TIMESTAMPTZ

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.lookup import Moment
    from cdc_outbox.table.sent import Bookkeeping, Sent
    from cdc_outbox.table.values import Field

LIMIT: Final = 5
"""Seconds for one reading of the table."""

MOST: Final = 100_000
"""Rows that one reading may find."""

_BEGIN: Final[LiteralString] = """
begin transaction isolation level repeatable read read only; set local statement_timeout = {}
"""
_IDS: Final[LiteralString] = "select pg_catalog.format('%s', {id}) from {table} where {where} limit {most}"


class Marked(Protocol):
    """Where a table says which rows were sent, and when."""

    @property
    def id(self) -> str: ...

    @property
    def keeping(self) -> Bookkeeping: ...

    @property
    def sent_at(self) -> Field | None: ...


@dataclass(frozen=True, slots=True)
class Unseen:
    """One table at the beginning of a trial: the `moment` of it, and what was unsent in it then."""

    conn: Connection
    table: TableName
    id: str
    time: Field
    sent: Sent
    began: Moment
    backlog: frozenset[str]

    @classmethod
    async def begin(cls, conn: Connection, table: TableName, book: Marked) -> Unseen | None:
        """To be asked for once the trial's slot is made. None where nobody will know."""
        sent, time = book.keeping.sent, book.sent_at
        if sent is None or time is None:
            return None
        read = await _read(conn, table, book.id, unsent(sent))
        return None if read is None else cls(conn, table, book.id, time, sent, *read)

    async def sent_since(self) -> frozenset[str] | None:
        """The ids of rows that were sent since the beginning, without the backlog; None where nobody knows."""
        time = sql.Identifier(self.time.name)
        conditions = [
            sql.SQL("not ({}) and {} is not null").format(unsent(self.sent), time),
            sql.SQL("pg_catalog.age(xmin) <= pg_catalog.age({}::pg_catalog.xid)").format(
                sql.Literal(str(self.began.xmax % 2**32))
            ),
        ]
        if self.time.type_oid == TIMESTAMPTZ:
            conditions.append(
                sql.SQL("{} >= to_timestamp({})").format(time, sql.Literal(self.began.at_us / 1e6))
            )
        read = await _read(self.conn, self.table, self.id, sql.SQL(" and ").join(conditions))
        return None if read is None else read[1] - self.backlog


async def _read(
    conn: Connection, table: TableName, id_column: str, where: sql.Composable
) -> tuple[Moment, frozenset[str]] | None:
    """The ids of the rows for which `where` held, and the moment of that, by one snapshot; None where it is too much.

    By two, a row that is marked between them would be neither in the backlog nor marked before the beginning.
    """
    query = sql.SQL(_IDS).format(
        id=sql.Identifier(id_column),
        table=await rows_of(conn, table),
        where=where,
        most=sql.Literal(MOST + 1),
    )
    begin = sql.SQL(_BEGIN).format(sql.Literal(LIMIT * 1000))
    try:
        async with transaction(conn, begin=begin, end="rollback"):
            moment = await lookup.moment(conn)
            rows = await execute(conn, query, within=LIMIT + 5)
    except CdcOutboxError as error:
        if sqlstate.of(error) not in ("55P03", "57014"):
            raise
        return None
    return None if len(rows) > MOST else (moment, frozenset(str(id_) for (id_,) in rows))
