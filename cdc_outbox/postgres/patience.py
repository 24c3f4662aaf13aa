"""Statements that another session's lock may be in the way of: each waits for `lock_timeout`, a few times."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.postgres import sqlstate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Answer = TypeVar("Answer")

ATTEMPTS: Final = 5
"""How often a statement is tried that somebody's lock is in the way of."""

AGAIN: Final = 1.0
"""Seconds between them."""

_IN_THE_WAY: Final = ("55P03", "40P01")
"""A lock that wasn't given in time, and a deadlock. https://www.postgresql.org/docs/current/errcodes-appendix.html"""


async def patiently(work: Callable[[int], Awaitable[Answer]]) -> Answer:
    """Do it, told the number of the attempt, and again while another session's lock is in the way.

    Raises what the last attempt raises.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return await work(attempt)
        except CdcOutboxError as error:
            if sqlstate.of(error) not in _IN_THE_WAY:
                raise
            await asyncio.sleep(AGAIN)
    return await work(ATTEMPTS)
