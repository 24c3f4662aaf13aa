"""Child processes that never outlive the tests.

Each runs in a session of its own, so that Ctrl-C reaches the tests and not their servers, and is registered
with the guardian, which kills it when the tests are gone. Servers that refuse to run as root run as an
unprivileged user when the tests run as root.
"""

from __future__ import annotations

import atexit
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

from tests.servers.guardian import descendants
from tests.servers.wait import eventually

_lock = threading.Lock()

_OURS = range(15_000 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % 8, 32_000, 8)
"""Ports that no other worker of the same run gives away."""

_given: deque[int] = deque(maxlen=100)
"""Ports that may be given away and not yet be taken."""


@cache
def _guardian() -> IO[str]:
    guardian = subprocess.Popen(
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py"))],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert guardian.stdin is not None
    pipe = guardian.stdin
    parent = os.getpid()

    def end() -> None:
        if os.getpid() == parent:
            pipe.close()
            guardian.wait()

    atexit.register(end)
    return pipe


def _order(line: str) -> None:
    with _lock:
        pipe = _guardian()
        pipe.write(line + "\n")
        pipe.flush()


@cache
def workspace() -> Path:
    """The session's directory, removed at its end. Short, since Unix sockets live in it."""
    path = Path(tempfile.mkdtemp(prefix="cdc-outbox-"))
    # Another user's server must find its own directories in it.
    path.chmod(0o711)
    _order(f"d{path}")
    return path


@cache
def _ground() -> Path:
    named = os.environ.get("CDC_OUTBOX_TEST_DATA")
    if not named:
        return workspace()
    path = Path(tempfile.mkdtemp(prefix="cdc-outbox-", dir=named))
    path.chmod(0o711)
    _order(f"d{path}")
    return path


def directory(prefix: str, owner: pwd.struct_passwd | None = None) -> Path:
    """A new directory, private to `owner`, where the servers keep their data; removed at the session's end."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=_ground()))
    if owner is not None:
        os.chown(path, owner.pw_uid, owner.pw_gid)
    return path


@cache
def unprivileged() -> pwd.struct_passwd | None:
    """Whom to be instead of root; None when we aren't root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise RuntimeError("tests run as root, and there is no user 'postgres' or 'nobody' to run PostgreSQL as")


def may_reach(path: Path, user: pwd.struct_passwd) -> bool:
    """Whether `user` may enter each directory on the way to `path`."""
    for each in (path, *path.parents):
        status = each.stat()
        if status.st_uid == user.pw_uid:
            needed = 0o500
        elif status.st_gid == user.pw_gid:
            needed = 0o050
        else:
            needed = 0o005 if each == path else 0o001
        if status.st_mode & needed != needed:
            return False
    return True


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free, outside the range that the kernel gives to outgoing connections.

    From inside that range a server that is down for a while would lose its port to any client.
    """
    while True:
        port = random.choice(_OURS)
        if port in _given:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.append(port)
            return port


class Process:
    """A child process, its log file, and the signals that a test may want to send."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path | None = None,
        env: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
        cwd: Path | None = None,
        pipes: bool = False,
    ) -> None:
        """Start `command`. Output goes to `log` (appended); with `pipes` stdout and stderr are kept apart."""
        identity: dict[str, object] = {}
        if user is not None:
            identity = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        sink: IO[bytes] | int = subprocess.DEVNULL
        if log is not None:
            sink = log.open("ab")
        elif pipes:
            sink = subprocess.PIPE
        try:
            self.popen: subprocess.Popen[bytes] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.PIPE if pipes else subprocess.STDOUT,
                env=None if env is None else dict(env),
                cwd=cwd or workspace(),
                start_new_session=True,
                **identity,  # type: ignore[call-overload]
            )
        finally:
            if not isinstance(sink, int):
                sink.close()
        self.pid: int = self.popen.pid
        _order(f"+{self.pid}")
        self._forgotten = False

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        code = self.popen.poll()
        if code is not None and not self._forgotten:
            self._forgotten = True
            _order(f"-{self.pid}")
        return code

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone. Nothing happens when it is gone."""
        if self.running:
            self.popen.send_signal(number)

    def send_all(self, number: signal.Signals) -> set[int]:
        """Send a signal to the process and its descendants; answers their process ids."""
        if not self.running:
            return set()
        family = descendants({self.pid})
        for pid in family:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
        return family

    def wait(self, timeout: float) -> int:
        """The exit code. Raises AssertionError when the process still runs after `timeout` seconds."""
        try:
            self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.popen.args!r} still runs after {timeout:g} s") from None
        code = self.exit_code
        assert code is not None
        return code

    def kill(self) -> None:
        """SIGKILL for the process and its descendants; returns when all are gone."""
        family = self.send_all(signal.SIGKILL)
        self.popen.wait(30)
        assert self.exit_code is not None
        eventually(lambda: not _alive(family), 30, f"{self.popen.args!r} dead with all its children")


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _alive(pids: set[int]) -> bool:
    left = [str(pid) for pid in pids if _is_there(pid)]
    if not left:
        return False
    # A zombie that init hasn't collected yet is there too, but holds nothing any more.
    states = subprocess.run(
        ["ps", "-o", "stat=", "-p", ",".join(left)], capture_output=True, text=True, check=False
    ).stdout
    return any(not state.startswith("Z") for state in states.split())
