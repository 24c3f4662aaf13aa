"""The inbox table, made where a consumer keeps its data. The helpers that write it are in `cdc_outbox.inbox`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql
from psycopg.rows import TupleRow

from cdc_outbox import ddl
from cdc_outbox.errors import MissingRight, SetupError
from cdc_outbox.event import TableName, quote
from cdc_outbox.postgres.connection import Connection, connect_control, execute
from cdc_outbox.postgres.expired import grants

if TYPE_CHECKING:
    from cdc_outbox.settings import PostgresSettings

APPLICATION_NAME: Final = "cdc-outbox inbox"
TABLE: Final = "public.cdc_outbox_inbox"

COUNT: Final = 120.0
"""Seconds for counting rows."""

_THERE: Final[LiteralString] = "select where pg_catalog.to_regclass('public.cdc_outbox_inbox') is not null"

_OLD: Final[LiteralString] = (
    "select count(*) from public.cdc_outbox_inbox where processed_at < %s::timestamptz"
)

# In order, so that the index on processed_at finds them, whatever the planner knows of the table.
_DELETE: Final[LiteralString] = """
with gone as (
    delete from public.cdc_outbox_inbox where ctid = any (array(
        select ctid from public.cdc_outbox_inbox where processed_at < %s::timestamptz
         order by processed_at limit %s for update skip locked)) returning 1)
select count(*) from gone
"""


def script() -> str:
    """The statements that make it, as psql runs them."""
    return ddl.read("inbox")


async def create(settings: PostgresSettings) -> bool:
    """Make the table if there is none, in the consumer's database; whether it was made.

    Raises MissingRight, with the way to have it made by who may; PostgresUnavailable and its kin.
    """
    owner = await connect_control(settings, application_name=APPLICATION_NAME)
    try:
        if await execute(owner, _THERE):
            return False
        try:
            await execute(owner, sql.SQL(ddl.read("inbox")), stage="create")
        except MissingRight as error:
            raise MissingRight(
                f"the role {quote(owner.info.user)} may not make {TABLE}, which needs create on schema public",
                next="name the connection of a role that may with --dsn, or as that role: "
                "cdc-outbox inbox create --print-sql | psql",
            ) from error
        except SetupError:
            if not await execute(owner, _THERE):
                raise
            return False  # by another process, meanwhile
        return True
    finally:
        await owner.close()


async def require(owner: Connection) -> None:
    """Raise SetupError where there is no inbox in this database."""
    if not await execute(owner, _THERE):
        raise SetupError(
            f"there is no table {TABLE} in the database {owner.info.dbname}",
            next="name the consumer's database with --dsn; or make the table: cdc-outbox inbox create",
        )


async def count(owner: Connection, before: str) -> int:
    """How many rows are from before a moment, a timestamptz in text."""
    await execute(owner, sql.SQL("set statement_timeout = {}").format(sql.Literal(int(COUNT * 1000))))
    ((rows,),) = await _run(owner, _OLD, (before,), within=COUNT + 5)
    return int(rows)


async def delete(owner: Connection, before: str, most: int) -> int:
    """Delete up to so many of them, in a transaction of its own, the oldest first; how many went.

    Rows that somebody has locked are passed over.
    """
    ((rows,),) = await _run(owner, _DELETE, (before, most))
    return int(rows)


async def _run(
    owner: Connection, query: LiteralString, parameters: tuple[object, ...], *, within: float | None = None
) -> list[TupleRow]:
    try:
        return await execute(owner, query, parameters, within=within)
    except MissingRight as error:
        role = owner.info.user
        raise MissingRight(
            f"the role {quote(role)} may not remove rows of {TABLE}: {error}",
            next=f"as its owner: {grants(TableName.parse(TABLE), 'event_id', role)} or name the connection of a role "
            "that may with --dsn",
        ) from error
