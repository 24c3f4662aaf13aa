"""Cleanup by the relay itself: what `cdc-outbox cleanup` does, every so often, beside the stream.

It has connections of its own and takes a fifth of their time at most. Only the relay that streams does it, not its hot
standbys. Whatever goes wrong is counted, and told once until it is something else; the stream never hears of it.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Final

from cdc_outbox import log, tally
from cdc_outbox.repair.cleanup import Rule, Unacknowledged, clean
from cdc_outbox.state import State

if TYPE_CHECKING:
    from cdc_outbox.settings import Settings
    from cdc_outbox.state import Status

_log = log.get(__name__)

OFTEN: Final = 24
"""How often in the time for which rows are kept."""

LONGEST: Final = 3600.0
SHORTEST: Final = 1.0
"""Seconds between two times, whatever that time is."""

SHARE: Final = 0.2
"""Part of the time in which a statement of ours runs."""

_NUMBER: Final = re.compile(r"\d+")

REST: Final = 4
"""At least so many times as long as the last time took nothing is done."""


async def upkeep(settings: Settings, age: float, status: Status) -> None:
    """Remove rows that are older than `age` seconds, time and again until cancelled."""
    pause = between = min(LONGEST, max(SHORTEST, age / OFTEN))
    told = ""
    while True:
        await asyncio.sleep(pause)
        if status.state is not State.STREAMING:
            continue
        began = time.monotonic()
        trouble = await _once(settings, Rule(older_than=age, share=SHARE), status)
        if trouble is not None and _named(trouble) != told:
            _log.warning("cleanup", error=str(trouble), next=getattr(trouble, "next", ""), slot=status.slot)
        told = _named(trouble) if trouble is not None else ""
        pause = max(between, REST * (time.monotonic() - began))


def _named(trouble: Exception) -> str:
    """What makes it the same trouble as before: all but the numbers in its words."""
    return f"{type(trouble).__name__} {_NUMBER.sub('', str(trouble))}"


async def _once(settings: Settings, rule: Rule, status: Status) -> Exception | None:
    """Remove what is old; what kept us from it."""
    try:
        cleaned = await clean(settings, rule)
    except Exception as error:  # whatever it is, the stream goes on
        status.tally.cleanup_failures[tally.reason(error)] += 1
        return error
    removed = sum(each.removed for each in cleaned)
    status.tally.cleaned += removed
    if removed:
        _log.info("cleaned up", rows=removed, slot=status.slot)
    kept = [each for each in cleaned if each.found.undelivered]
    return Unacknowledged.of(kept, rule.older_than) if kept else None
