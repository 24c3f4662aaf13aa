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

Of the code of Python and its libraries much runs once: what two TLS libraries do to set themselves up, the import of
modules, the connecting. Its pages are the page cache's, and count as ours as long as they are mapped: 6 MB, and one
more or less by how the kernel came to read the files. Once the stream runs they are unmapped. What is needed again is
mapped again, from the page cache; the rest the kernel may drop without looking for who maps it. Nothing that the
process wrote is concerned.
https://man7.org/linux/man-pages/man2/madvise.2.html
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_MADV_DONTNEED: Final = 4
_LARGE: Final = 4 * 1024 * 1024
_SPARE: Final = 8 * 1024 * 1024

_UNCHANGED_CODE: Final = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) r-xp \S+ \S+ \d+ +/.*\n(?:\w+: .*\n)*?Anonymous: +0 kB$", re.MULTILINE
)
"""A mapping of a file's code, as /proc/PID/smaps has it, of which no page is a copy that was written to."""

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


def unchanged_code(smaps: str) -> list[tuple[int, int]]:
    """First and last address (exclusive) of each mapping of code that is as its file has it.

    A page that was written to (a debugger's breakpoint) is in no file, and would be lost with the mapping of it.
    """
    return [(int(first, 16), int(end, 16)) for first, end in _UNCHANGED_CODE.findall(smaps)]


def unmap_code() -> bool:
    """Unmap the code that was run so far, which comes back as it is needed; whether this system can (Linux)."""
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    try:
        code = unchanged_code(Path("/proc/self/smaps").read_text())
    except OSError:
        return False
    if advise is None:
        return False
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    done = [advise(first, end - first, _MADV_DONTNEED) == 0 for first, end in code]
    return any(done)


async def tidy() -> None:
    """Give back once the first session has begun, and then each minute, until cancelled."""
    await asyncio.sleep(FIRST)
    unmap_code()
    while True:
        give_back()
        await asyncio.sleep(TIDY)
