"""What the table says now of rows that the stream brought earlier.

Short queries by the index of the id column, some hundred rows each, that wait for nobody: while another session has
the table to itself they give up at once (`TableLocked`). Row locks are never taken.

A row that isn't found was deleted, or isn't visible yet: the stream brings a commit as soon as it is flushed, and a
server with a synchronous standby shows it only once that has answered. `Moment` tells the two apart.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox.errors import MissingRight, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres import outbox, reading_right, server, table_locked
from cdc_outbox.postgres.column_text import digest_of, text_of
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.family import rows_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import PostgresSettings

MOST: Final = 500
"""Ids of one query."""

_MOMENT: Final[LiteralString] = """
select (extract(epoch from clock_timestamp()) * 1000000)::int8, pg_catalog.pg_current_snapshot()::text
"""

_FIND: Final[LiteralString] = """
select pg_catalog.format('%%s', {id}), (extract(epoch from clock_timestamp()) * 1000000)::int8, {texts}
  from {table} where {id} = any(%s)
"""


@asynccontextmanager
async def connected(settings: PostgresSettings, application_name: str) -> AsyncIterator[Connection]:
    """A connection for reading the table: by the owner's DSN, if there is one.

    Raises SetupError where that leads elsewhere than the relay's; and what `connect_control` raises.
    """
    conn = await connect_control(settings, application_name=application_name, admin=True)
    try:
        if settings.admin_dsn and settings.admin_dsn != settings.dsn:
            relay = await connect_control(settings, application_name=application_name)
            try:
                await server.require_one_database(conn, relay)
            finally:
                await relay.close()
        yield conn
    finally:
        await conn.close()


@dataclass(frozen=True, slots=True)
class Found:
    """A row as the table has it at `at_us` (µs since 1970, the server's clock): texts and digests of columns."""

    at_us: int
    texts: tuple[str | None, ...]
    digests: tuple[str | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Moment:
    """When was asked, and which transactions had ended by then, as others see it."""

    at_us: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, at_us: int, snapshot: str) -> Moment:
        """From a pg_snapshot as text, `xmin:xmax:xid,xid`."""
        _, xmax, running = snapshot.split(":")
        return cls(at_us, int(xmax), frozenset(int(xid) % 2**32 for xid in running.split(",") if xid))

    def ended(self, xid: int) -> bool:
        """Whether this transaction's rows are visible, or were until somebody deleted them. `xid` has 32 bits."""
        before = (xid - self.xmax) % 2**32 >= 2**31
        return before and xid not in self.running


async def moment(conn: Connection) -> Moment:
    """This one."""
    ((at_us, snapshot),) = await execute(conn, _MOMENT)
    return Moment.parse(int(at_us), str(snapshot))


class Lookup:
    """Rows of one table by their ids."""

    def __init__(
        self,
        conn: Connection,
        table: TableName,
        id_column: str,
        columns: Sequence[str],
        digested: Sequence[str] = (),
    ) -> None:
        """`columns`: those whose texts are asked for; `digested`: those of whose texts only the SHA-256 is."""
        self.table = table
        self._conn = conn
        self._id = id_column
        self._columns = len(columns) or 1
        texts: list[sql.Composable] = [text_of(sql.Identifier(name)) for name in columns] or [sql.SQL("null")]
        texts += [digest_of(sql.Identifier(name)) for name in digested]
        self._texts = sql.SQL(", ").join(texts)
        self._query: sql.Composed | None = None

    async def require(self) -> None:
        """Before anything is found.

        Raises MissingRight where the role may not read the table, SetupError where each look would read all of it.
        """
        conn, table, column = self._conn, self.table, quote(self._id)
        if await outbox.indexed(conn, table, self._id) is False:
            name = quote(f"{table.name}_{self._id}_idx")
            raise SetupError(
                f"column {column} of {table}, by which rows are looked up, has no index: each look would read "
                "the whole table",
                next=f"create unique index concurrently {name} on {table} ({column}); "
                "or look without a comparison: cdc-outbox peek --follow",
            )
        await execute(conn, reading_right.ALL_ROWS)
        await execute(conn, table_locked.AT_ONCE)
        self._query = sql.SQL(_FIND).format(
            id=sql.Identifier(self._id), texts=self._texts, table=await rows_of(conn, table)
        )
        try:
            await self.find([])
        except MissingRight as error:
            raise reading_right.named(error, table, conn.info.user) from error

    async def moment(self) -> Moment:
        """Ask before `find`, whose rows are then at least as new."""
        return await moment(self._conn)

    async def find(self, ids: Sequence[str]) -> dict[str, list[Found]]:
        """The rows that have these ids, by id; more than one where ids aren't unique.

        Raises TableLocked while another session has the table to itself, PostgresUnavailable.
        """
        assert self._query is not None  # noqa: S101 - `require` comes first
        with table_locked.giving_up():
            rows = await execute(self._conn, self._query, (_array(ids),))
        found: dict[str, list[Found]] = {}
        for id_, at_us, *texts in rows:
            row = Found(int(at_us), tuple(texts[: self._columns]), tuple(texts[self._columns :]))
            found.setdefault(str(id_), []).append(row)
        return found


def _array(ids: Sequence[str]) -> str:
    """The ids as PostgreSQL writes an array: of a type that the server infers from the column."""
    escaped = (each.replace("\\", "\\\\").replace('"', '\\"') for each in ids)
    return "{" + ",".join(f'"{each}"' for each in escaped) + "}"
