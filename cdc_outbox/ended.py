"""Tasks that are over: whoever began one sees its end."""

from __future__ import annotations

import asyncio
from typing import Any


async def ended(*tasks: asyncio.Task[Any]) -> None:
    """Cancel all of them, and see them end; what they raised is somebody else's business, or was seen before."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.exception()
