"""The answer of an asynchronous `first_time`, which nobody mistakes for a yes."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, NoReturn


class Answer:
    """Awaitable, once. A bare coroutine is true: without `await` each event would be applied each time."""

    def __init__(self, work: Coroutine[Any, Any, bool]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, bool]:
        return self._work.__await__()

    def __bool__(self) -> NoReturn:
        self._work.close()
        raise TypeError("first_time of an asynchronous connection is awaited: if await first_time(...)")
