"""Ends what a test session left behind, however that session ended.

Runs as a process of its own, in a session of its own, reading orders from a pipe. When the pipe closes
(the tests ended, were interrupted, or were killed) it kills every process that is still registered, with all
descendants, stopped ones included, and removes the session's directories. It relies on nothing but the
standard library and `ps`, since it outlives the code that started it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys


def descendants(roots: set[int]) -> set[int]:
    """The processes `roots` and everything below them, as far as they are alive."""
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout
    children: dict[int, list[int]] = {}
    alive = set()
    for line in listing.splitlines():
        pid, parent = map(int, line.split())
        alive.add(pid)
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    pending = list(roots & alive)
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending.extend(children.get(pid, ()))
    return found


def main() -> None:
    """Obey `+PID`, `-PID` and `dPATH` lines until the pipe closes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    pids: set[int] = set()
    directories: list[str] = []
    for line in sys.stdin:
        order, argument = line[0], line[1:].rstrip("\n")
        if order == "+":
            pids.add(int(argument))
        elif order == "-":
            pids.discard(int(argument))
        else:
            directories.append(argument)
    # Twice: a process may have forked between the listing and the signal.
    for _ in range(2):
        for pid in descendants(pids):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
