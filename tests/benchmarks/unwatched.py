"""`python -m tests.benchmarks.unwatched start …`: the relay without its watch.

No sampler, no history, no HTTP, and none of their modules' memory; only the counting stays, which is part of delivery.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import ModuleType

from cdc_outbox.cli import main


@asynccontextmanager
async def watching(*_: object, **__: object) -> AsyncIterator[None]:
    """In the place of the watch."""
    yield


if __name__ == "__main__":
    nobody = ModuleType("cdc_outbox.watch.watching")
    nobody.watching = watching  # type: ignore[attr-defined]
    sys.modules[nobody.__name__] = nobody
    main()
