"""How rows of the table are read that a person's command sends, counts, compares or looks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.postgres import outbox
from cdc_outbox.postgres.catalogue import required
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from cdc_outbox.event import TableName
    from cdc_outbox.postgres.connection import Connection
    from cdc_outbox.settings import Settings
    from cdc_outbox.table.mapping import Plan


async def planned(settings: Settings, conn: Connection, table: TableName) -> Plan:
    """The plan for rows that come from the table itself, as a replay sends them.

    Raises MappingError, and SetupError where there is no such table, or it is none whose rows a stream could bring.
    """
    await outbox.columns(conn, table)
    mapping = Mapping(settings.outbox, settings.postgres.slot, source="replay")
    return await required(conn, mapping, table, settings.postgres.publication)
