"""What a process used: CPU time sampled against the clock, and its largest resident memory. Linux only."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
EVERY = 0.01
"""Seconds between samples, which is also the kernel's own resolution."""


def cpu_seconds(pid: int) -> float:
    """User and system time so far. Raises OSError when the process is gone."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def memory(pid: int, name: str = "VmHWM") -> int:
    """A figure of /proc/PID/status in bytes: `VmHWM` is the peak of resident memory, `VmRSS` what is resident now."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel tells no {name} of process {pid}")


@dataclass
class Usage:
    """CPU time of one process over the wall clock, as long as it is watched."""

    pid: int
    samples: list[tuple[float, float]] = field(default_factory=list)

    def take(self) -> None:
        """One sample; nothing once the process is gone."""
        with contextlib.suppress(OSError):
            self.samples.append((time.time(), cpu_seconds(self.pid)))

    def between(self, first: float, last: float) -> float:
        """CPU seconds between two times of the wall clock, to the samples around them."""
        before = [used for at, used in self.samples if at <= first]
        after = [used for at, used in self.samples if at >= last]
        return (after[0] if after else self.samples[-1][1]) - (before[-1] if before else self.samples[0][1])

    @property
    def total(self) -> float:
        """CPU seconds since the process began."""
        return self.samples[-1][1]


class Watch:
    """Samples processes in the background."""

    def __init__(self) -> None:
        self._watched: list[Usage] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="usage", daemon=True)

    def add(self, pid: int) -> Usage:
        """Watch a process from now on."""
        usage = Usage(pid)
        usage.take()
        self._watched.append(usage)
        return usage

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            for usage in self._watched:
                usage.take()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for usage in self._watched:
            usage.take()
