"""Ends what a demo started, and removes its directory, however that demo ended.

A process in a session of its own. It makes the directory, says where, and then reads orders from a pipe. When the pipe
closes (the demo is done, was interrupted, or was killed with `kill -9`) it ends every process that is still
registered. It has only the standard library, and needs nothing of what it removes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

PATIENCE = 5.0
"""Seconds for a process to end by the signal that it was registered with, before SIGKILL."""


def alive(pid: int) -> bool:
    """Whether a process runs; one that is only waited for by its parent doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return True  # not Linux, or gone just now: the next look tells
    return state != "Z"


def end(processes: dict[int, int]) -> None:
    """End all processes, each by its own signal, and then whatever is left in their groups.

    The first signal is for the process alone: PostgreSQL's programs see to their own children, whose sudden death would
    leave shared memory behind.
    """
    for pid, number in processes.items():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
    deadline = time.monotonic() + PATIENCE
    left = list(processes)
    while left and time.monotonic() < deadline:
        time.sleep(0.01)  # nothing to wait on: waitpid takes only one's own children, macOS has no pidfd
        left = [pid for pid in left if alive(pid)]
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def remove(home: str) -> None:
    """Remove the directory, also while the last writers in it are dying."""
    deadline = time.monotonic() + PATIENCE
    while Path(home).exists() and time.monotonic() < deadline:
        shutil.rmtree(home, ignore_errors=True)
        if Path(home).exists():
            time.sleep(0.05)  # nothing to wait on: of dying writers only a file that appears again tells


def main() -> None:
    """Obey `+PID SIGNAL` and `-PID` until the pipe closes. The argument is where the directory is made."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    home = tempfile.mkdtemp(prefix="cdc-outbox-demo-", dir=sys.argv[1])
    processes: dict[int, int] = {}
    try:
        Path(home).chmod(0o711)  # PostgreSQL may run as another user, in a directory of its own below
        with suppress(BrokenPipeError):
            print(home, flush=True)
        for line in sys.stdin:
            order, arguments = line[0], line[1:].split()
            if order == "+":
                processes[int(arguments[0])] = int(arguments[1])
            else:
                processes.pop(int(arguments[0]), None)
    finally:
        end(processes)
        remove(home)


if __name__ == "__main__":
    main()
