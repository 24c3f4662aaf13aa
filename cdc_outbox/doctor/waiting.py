"""The rows that wait in the slot, as a relay would get them now: where they go, and what is in their way.

A look at them takes no right on the table, which the relay doesn't need, and shows rows that aren't among the newest.
It is bounded in rows, bytes and time, confirms nothing, and leaves the slot to whoever has it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import Status
from cdc_outbox.errors import CdcOutboxError, PoisonEvent, SlotBusy
from cdc_outbox.postgres import peek
from cdc_outbox.table.mapping import Mapping

if TYPE_CHECKING:
    from cdc_outbox.doctor.check import Findings
    from cdc_outbox.doctor.outbox import Outbox
    from cdc_outbox.postgres.streamed_rows import Row
    from cdc_outbox.settings import Settings

ROWS: Final = 200
BYTES: Final = 4 * 1024 * 1024


async def examine(settings: Settings, outbox: Outbox, findings: Findings, *, within: float) -> None:
    """Add what the waiting rows become to what is known of the outbox; nothing where another check of it failed."""
    if any(check.status is Status.FAILED for check in findings.checks):
        return
    look = _Look(outbox)
    try:
        async with asyncio.timeout(within):
            await look.read(settings)
    except TimeoutError:
        pass  # what was seen by then is what is known
    except SlotBusy:
        findings.ok("waiting", f'not looked at: a relay has the slot "{settings.postgres.slot}"')
        return
    except CdcOutboxError as error:
        findings.warn("waiting", f"not looked at: {error}", error.next)
        return
    if look.unfit is not None:
        findings.warn("waiting", str(look.unfit), look.unfit.next)
        return
    shown = "1 row waits" if look.count == 1 else f"{look.count or 'no'} rows wait"
    findings.ok("waiting", f"{shown} in the slot" + (", and perhaps more" if look.bounded else ""))


class _Look:
    """What a look at the rows has found by now."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.count = 0
        self.bytes = 0
        self.bounded = True
        self.unfit: PoisonEvent | None = None

    async def read(self, settings: Settings) -> None:
        """Raises SlotBusy, and what is wrong with the server, the slot, or the tables."""
        mapping = Mapping(settings.outbox, settings.postgres.slot)
        async with peek.holding(settings, mapping, tell=False) as held:
            async for row in held.rows():
                self.take(row)
                if self.count >= ROWS or self.bytes >= BYTES or self.unfit is not None:
                    return
            self.bounded = False

    def take(self, row: Row) -> None:
        """Count a row that a relay would send, or note why it couldn't be."""
        try:
            message = row.plan.encode(row.values, row.lsn, row.seq, row.commit_us)
        except PoisonEvent as poison:
            self.unfit = poison
            return
        if not isinstance(message, str):
            self.outbox.messages.append(message)
            self.count += 1
            self.bytes += len(message[3] or b"")
