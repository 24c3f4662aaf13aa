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

UNMAPPED = """
import ssl
from cdc_outbox import memory
from tests.unit.test_memory import resident
before = resident()
assert memory.unmap_code()
freed = before - resident()
ssl.create_default_context()
print(freed)
"""

SMAPS = """\
55e0a0000000-55e0a0001000 r--p 00000000 fe:00 11                         /usr/bin/python3.11
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd mr mw me
55e0a0001000-55e0a0003000 r-xp 00001000 fe:00 11                         /usr/bin/python3.11
Rss:                   8 kB
Anonymous:             0 kB
AnonHugePages:         0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000002000 r-xp 00001000 fe:00 12                         /usr/lib/a library.so (deleted)
Rss:                   8 kB
Anonymous:             4 kB
VmFlags: rd ex mr mw me
7f0000002000-7f0000004000 r-xp 00001000 fe:00 13                         /usr/lib/another.so
Rss:                   8 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7f0000004000-7f0000005000 r-xp 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0                          [vdso]
Rss:                   4 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
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


def printed(program: str) -> int:
    """The number that a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return int(done.stdout)


def test_settling_gives_back_what_start_up_freed() -> None:
    assert printed(SETTLED) > 10 * MIB


def test_only_code_that_is_as_its_file_has_it_is_unmapped() -> None:
    assert memory.unchanged_code(SMAPS) == [
        (0x55E0A0001000, 0x55E0A0003000),
        (0x7F0000002000, 0x7F0000004000),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_code_that_start_up_ran_is_unmapped_and_comes_back_where_it_is_needed() -> None:
    assert printed(UNMAPPED) > 1 * MIB


def test_a_system_that_tells_no_mappings_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", absent)
    assert memory.unmap_code() is False


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
    assert memory.unmap_code() is False
    assert memory.keep_flat() is False
