"""The inbox table, made where a consumer keeps its data. The helpers that write it are in `cdc_outbox.inbox`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from cdc_outbox import ddl
from cdc_outbox.errors import MissingRight, SetupError
from cdc_outbox.event import quote
from cdc_outbox.postgres.connection import connect_control, execute

if TYPE_CHECKING:
    from cdc_outbox.settings import PostgresSettings

APPLICATION_NAME: Final = "cdc-outbox inbox"
TABLE: Final = "public.cdc_outbox_inbox"

_THERE: Final[LiteralString] = "select where pg_catalog.to_regclass('public.cdc_outbox_inbox') is not null"


def script() -> str:
    """The statements that make it, as psql runs them."""
    return ddl.read("inbox")


async def create(settings: PostgresSettings) -> bool:
    """Make the table if there is none, by the owner's connection; whether it was made.

    Raises MissingRight, with the way to have it made by who may; PostgresUnavailable and its kin.
    """
    owner = await connect_control(settings, application_name=APPLICATION_NAME, admin=True)
    try:
        if await execute(owner, _THERE):
            return False
        try:
            await execute(owner, sql.SQL(ddl.read("inbox")), stage="create")
        except MissingRight as error:
            raise MissingRight(
                f"the role {quote(owner.info.user)} may not make {TABLE}, which needs create on schema public",
                next="name the connection of a role that may with --admin-dsn, or as that role: "
                "cdc-outbox inbox create --print-sql | psql",
            ) from error
        except SetupError:
            if not await execute(owner, _THERE):
                raise
            return False  # by another process, meanwhile
        return True
    finally:
        await owner.close()
