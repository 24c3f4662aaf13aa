"""How a test waits: for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds that a slow machine gets for what should take one."""


def eventually(condition: Callable[[], T], timeout: float, message: object = "") -> T:
    """Call `condition` until it answers something true, and return that.

    `message` says what was waited for; a callable is called at the end, to show the state then.
    Raises AssertionError after `timeout` seconds. An exception of the condition is not caught.
    """
    deadline = time.monotonic() + timeout
    pause = 0.002
    while not (answer := condition()):
        if time.monotonic() > deadline:
            detail = message() if callable(message) else message
            raise AssertionError(f"not within {timeout:g} s: {detail or condition}; last answer {answer!r}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)
    return answer
