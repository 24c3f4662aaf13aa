"""Fault points: moments that no outside force can hit, held open by the environment. For the demo and for tests.

Each is a variable `CDC_OUTBOX_FAULT_<NAME>`, off unless set. The relay warns at its start of those that are on. A point
must make the relay later, never less careful: whatever happens then could have happened without it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final

from cdc_outbox import log

_log = log.get(__name__)

_PREFIX: Final = "CDC_OUTBOX_FAULT_"

HOLD_CONFIRMATION: Final = f"{_PREFIX}HOLD_CONFIRMATION"
"""Names a file. While it exists, nothing is confirmed to PostgreSQL, however long Kafka has confirmed it."""

BLOCKED_FOR: Final = f"{_PREFIX}BLOCKED_FOR"
"""Seconds between tries of an event that blocks its slot, instead of a minute."""

HOLD_BACKFILL: Final = f"{_PREFIX}HOLD_BACKFILL"
"""`<step>:<file>`. When a backfill has done this step it makes the file, and goes on once it is gone."""

_LOOK: Final = 0.05
"""Seconds between looks at the file. The whole process stands still between them, as one that is to be killed there."""


def backfill_held(step: str) -> None:
    """Hold a backfill after a step, if this is the step: `noted`, `slot`, `published`, `decided` or `copied`."""
    wanted, _, name = os.environ.get(HOLD_BACKFILL, "").partition(":")
    if wanted != step:
        return
    file = Path(name)
    file.touch()
    while file.exists():
        time.sleep(_LOOK)  # on purpose the whole process, event loop included: it is to be killed here


def blocked_for() -> float | None:
    """How long a blocked event rests, where that isn't left to the relay."""
    seconds = os.environ.get(BLOCKED_FOR)
    return float(seconds) if seconds else None


def confirmation_held() -> bool:
    """Whether the crash window, between Kafka's confirmation and ours, is held open."""
    file = os.environ.get(HOLD_CONFIRMATION) or None
    return file is not None and Path(file).exists()


def points() -> list[str]:
    """The variables of the fault points that are on."""
    return sorted(name for name, value in os.environ.items() if name.startswith(_PREFIX) and value)


def warn() -> None:
    """Say which fault points are on."""
    if on := points():
        _log.warning("fault points are on: this is not a relay for production", variables=on)
