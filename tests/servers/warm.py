"""Commands without the cost of their start: an interpreter that knows the package forks itself for each.

Most of what a short command takes, in time and processor, are Python's start and its imports. Here both are done
once. Each command is still a process of its own, with its own environment, directory, streams and exit code, and runs
as `python -m cdc_outbox` does; it merely finds its modules imported. What is about the start itself, memory, or the
package as it is installed asks for a fresh process (`RelayProcess`, `Shell`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.servers.cache import CHECKOUT
from tests.servers.process import Process, directory
from tests.servers.wait import PATIENCE, eventually

FOREIGN: Final = ("demo", "enqueue", "inbox")
"""Parts of the package whose libraries no command of the relay loads."""

_lock = threading.Lock()


@cache
def _listening() -> tuple[Process, str]:
    """The interpreter, and where it listens."""
    home = directory("warm-")
    address, log = home / "socket", home / "log"
    process = Process(
        [sys.executable, "-m", "tests.servers.warm", address],
        log=log,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONUNBUFFERED": "1"},
        cwd=CHECKOUT,
    )

    def listens() -> bool:
        assert process.running, log.read_text()
        return address.exists()

    eventually(listens, 60, "the warm interpreter listens")
    return process, str(address)


def run_warm(
    arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path | None, timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run `python -m cdc_outbox ARGUMENTS` to its end; exit code, stdout and stderr as text.

    Raises subprocess.TimeoutExpired, and kills it, `timeout` seconds after its start.
    """
    words = [sys.executable, "-m", "cdc_outbox", *arguments]
    demand = json.dumps({"arguments": arguments, "env": dict(env), "cwd": str(cwd or Path.cwd())})
    with _lock:
        _, address = _listening()
    with socket.socket(socket.AF_UNIX) as keeper, open(os.devnull, "rb") as nothing:  # noqa: PTH123 - no path
        keeper.settimeout(PATIENCE)
        keeper.connect(address)
        output = _Output(), _Output()
        socket.send_fds(keeper, [b"!"], [nothing.fileno(), *(each.end for each in output)])
        for each in output:
            each.let_go()
        keeper.sendall(demand.encode())
        keeper.shutdown(socket.SHUT_WR)
        with keeper.makefile() as told:
            pid = int(told.readline())
            keeper.settimeout(timeout)
            try:
                status = int(told.readline())
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(words, timeout) from None
        stdout, stderr = (each.text() for each in output)
    return subprocess.CompletedProcess(words, os.waitstatus_to_exitcode(status), stdout, stderr)


class _Output:
    """A pipe, read to its end in a thread."""

    def __init__(self) -> None:
        start, self.end = os.pipe()
        self._read = b""
        self._thread = threading.Thread(target=self._drain, args=(start,), daemon=True)
        self._thread.start()

    def _drain(self, start: int) -> None:
        with open(start, "rb") as pipe:
            self._read = pipe.read()

    def let_go(self) -> None:
        """Leave the writing to the command."""
        os.close(self.end)

    def text(self) -> str:
        self._thread.join()
        return self._read.decode().replace("\r\n", "\n").replace("\r", "\n")


def _import_all() -> None:
    import cdc_outbox

    for module in pkgutil.walk_packages(cdc_outbox.__path__, "cdc_outbox."):
        part = module.name.split(".")[1]
        if part not in (*FOREIGN, "__main__"):
            import_module(module.name)


def _keep(connection: socket.socket) -> dict[str, Any] | None:
    """Fork a command, and tell its process id and its end; in the command itself, answers what it has to do."""
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as read:
        demand: dict[str, Any] = json.load(read)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        connection.close()
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        return demand
    for stream in streams:
        os.close(stream)
    # Whoever has lost patience doesn't listen any more.
    with contextlib.suppress(BrokenPipeError):
        connection.sendall(b"%d\n" % pid)
        connection.sendall(b"%d\n" % os.waitpid(pid, 0)[1])
    return None


def main(address: str) -> None:
    """Listen, and fork for each command."""
    _import_all()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{address}.draft")
    listener.listen(64)
    Path(f"{address}.draft").rename(address)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        listener.close()
        demand = _keep(connection)
        if demand is None:
            os._exit(0)
        os.chdir(demand["cwd"])
        os.environ.clear()
        os.environ.update(demand["env"])
        sys.argv[1:] = demand["arguments"]
        runpy.run_module("cdc_outbox", run_name="__main__", alter_sys=True)
        return


if __name__ == "__main__":
    main(sys.argv[1])
