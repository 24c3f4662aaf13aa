"""Large blocks have mappings of their own, and free pages go back, where the C library can be told so."""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from cdc_outbox import memory

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20

SETTLED = """
from cdc_outbox import memory
from tests.unit.test_memory import holes, resident
kept = holes()
before = resident()
memory.settle()
print(before - resident())
"""


def resident() -> int:
    """Resident memory of this process in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def holes() -> list[bytes]:
    """Small blocks that keep 20 MiB of free ones between them from going back by themselves."""
    blocks = [bytes([1]) * 50_000 for _ in range(800)]
    return blocks[::2]


def test_the_c_library_is_told_where_it_listens() -> None:
    assert memory.keep_flat() is (platform.libc_ver()[0] == "glibc")


def test_settling_gives_back_what_start_up_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTLED],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) > 10 * MIB


def test_free_memory_goes_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "TIDY", 0.001)
    monkeypatch.setattr(memory, "FIRST", 0.001)

    async def until_given_back() -> None:
        kept = holes()
        before = resident()
        tidying = asyncio.create_task(memory.tidy())
        async with asyncio.timeout(20):
            while before - resident() < 10 * MIB:
                await asyncio.sleep(0.001)
        tidying.cancel()
        assert kept

    asyncio.run(until_given_back())


def test_a_c_library_that_gives_nothing_back_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert memory.give_back() is False
    assert memory.keep_flat() is False
