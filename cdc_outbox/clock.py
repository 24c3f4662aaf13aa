"""The time that passes for everybody else: a clock that goes on while the machine is suspended.

Linux's monotonic clock stands still then; elsewhere it doesn't, or nothing tells.
"""

from __future__ import annotations

import time
from typing import Final

_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def passing() -> float:
    """Seconds since some moment, always the same one."""
    return time.clock_gettime(_CLOCK)
