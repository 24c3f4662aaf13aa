"""Memory that stays flat, and is not searched in vain.

Batches are buffers of up to 256 KB, and the client copies some MB of them several times for each request. The GNU C
library raises the size from which a block has a mapping of its own whenever such a block is freed, so that soon all of
them come from the common heap and leave holes there: after an outage the heap was twice what it held. A fixed size ends
that. It lies above that of a usual request, and what is free at the heap's end is kept until it is more than that: with
fresh pages for each copy of a request the relay spent a sixth more of its time in a backlog.
https://man7.org/linux/man-pages/man3/mallopt.3.html

What is smaller leaves holes of its own, which the library keeps for later: start-up 1 MB (tables that grew, source that
was compiled), a drained backlog 2 MB. So it is told to give them back.
https://man7.org/linux/man-pages/man3/malloc_trim.3.html
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_LARGE: Final = 4 * 1024 * 1024
_SPARE: Final = 8 * 1024 * 1024

SELDOM: Final = 100_000
"""Objects that are more than before when the collector comes."""

FIRST: Final = 5.0
"""Seconds until what the beginning has left is given back."""

TIDY: Final = 60.0
"""Seconds between two times that free memory is given back, which takes a third of a millisecond."""


def keep_flat() -> bool:
    """Give each large block a mapping of its own from now on, and no other; whether this C library can."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGE) and mallopt(_M_TRIM_THRESHOLD, _SPARE)
    )


def settle() -> None:
    """Let the garbage collector pass over what start-up made, which stays: that was a tenth of the hot path's time."""
    gc.collect()
    gc.freeze()
    give_back()


@contextmanager
def seldom_searched() -> Iterator[None]:
    """Let the garbage collector come seldom: millions of small objects come and go by themselves.

    Reading records as fast as they come it took a third of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(SELDOM, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def give_back() -> bool:
    """Give the pages of free blocks back to the system; whether this C library had some."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim is not None and bool(trim(0))


async def tidy() -> None:
    """Give back once the first session has begun, and then each minute, until cancelled."""
    await asyncio.sleep(FIRST)
    while True:
        give_back()
        await asyncio.sleep(TIDY)
