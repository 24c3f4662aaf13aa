"""What unit tests of several files ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def loop() -> Iterator[None]:
    """The bus in memory needs a running loop only for its future."""
    with asyncio.Runner() as runner:
        running = runner.get_loop()
        asyncio.events._set_running_loop(running)
        try:
            yield
        finally:
            asyncio.events._set_running_loop(None)
