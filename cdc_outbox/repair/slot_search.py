"""Which rows of the table wait in the slot, told from the slot itself without consuming anything.

Where nothing proves what was delivered, as after `backfill` and before the first relay, only the slot can tell a row
that is under way from one that nobody will bring any more.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres import peek
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from collections.abc import Collection

    from cdc_outbox.repair.books import Books
    from cdc_outbox.settings import Settings

_log = log.get(__name__)

_TURN: Final = 1000
"""Rows after which others get their turn."""


async def waiting(settings: Settings, books: Books, wanted: Collection[bytes]) -> set[bytes] | None:
    """Those of the keys of events that a relay would be given now.

    None where the slot can't be read, as when a relay has taken it.
    """
    found: set[bytes] = set()
    read = 0
    mapping = Mapping(settings.outbox, settings.postgres.slot)
    try:
        async with peek.upcoming(settings, mapping) as rows:
            async for row in rows:
                key = books.row_key(row.plan, row.values)
                if key in wanted:
                    found.add(key)
                    if len(found) == len(wanted):
                        break
                read += 1
                if read % _TURN == 0:
                    await asyncio.sleep(0)
    except CdcOutboxError as error:
        _log.info("the slot was not searched", slot=settings.postgres.slot, reason=str(error))
        return None
    return found
