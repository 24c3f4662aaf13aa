"""One run's directory and processes, which all end with it.

Each process has a session of its own, so that Ctrl-C reaches the demo alone, and is registered with the keeper. A
normal end goes the same way as a violent one: the keeper's pipe closes.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO, Any, Final, TypeVar

from cdc_outbox.demo import keeper
from cdc_outbox.errors import CdcOutboxError

T = TypeVar("T")

PATIENCE: Final = 20.0
"""Seconds for anything that takes less than one on a quiet machine."""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# What the user's own shell holds is about the user's own servers.
_FOREIGN: Final = ("CDC_OUTBOX_", "PG", "KAFKA_", "DATABASE_URL", "LC_", "LANG")


class Child:
    """A process of the demo, and the lines that it says."""

    def __init__(self, name: str, popen: subprocess.Popen[str]) -> None:
        self.name = name
        self.popen = popen
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._last: deque[str] = deque(maxlen=5)
        assert popen.stdout is not None  # noqa: S101 - the stage has made it with a pipe
        self._reader = threading.Thread(target=self._read, args=(popen.stdout,), daemon=True)
        self._reader.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self._last.append(line.strip())
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def tell(self, line: str) -> None:
        """Write a line to the process."""
        assert self.popen.stdin is not None  # noqa: S101 - as above
        try:
            self.popen.stdin.write(line + "\n")
            self.popen.stdin.flush()
        except OSError as error:
            raise self._failure("takes no orders") from error

    def hear(self, wanted: Callable[[str], T | None], what: str) -> T:
        """What `wanted` makes of the first line that it wants.

        Raises CdcOutboxError when the process ends without, or when it takes too long.
        """
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise self._failure(f"was not {what} within {PATIENCE:.0f} s") from None
            if line is None:
                raise self._failure(f"ended before it was {what}")
            found = wanted(line)
            if found is not None:
                return found

    def hear_json(self, *members: str, what: str) -> dict[str, Any]:
        """The first line that is a JSON object with one of these members."""

        def wanted(line: str) -> dict[str, Any] | None:
            try:
                document = json.loads(line)
            except ValueError:
                return None
            return (
                document if isinstance(document, dict) and not document.keys().isdisjoint(members) else None
            )

        return self.hear(wanted, what)

    def wait(self, what: str) -> None:
        """Wait for a process that ends by itself. Raises CdcOutboxError unless it ends well."""
        try:
            code = self.popen.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            raise self._failure(f"was not {what} within {PATIENCE:.0f} s") from None
        if code != 0:
            raise self._failure(f"ended with {code}")

    def close(self) -> None:
        """See its end, which the keeper has brought about."""
        assert self.popen.stdin is not None  # noqa: S101 - as above
        try:
            self.popen.wait(2 * keeper.PATIENCE)
        except subprocess.TimeoutExpired:
            self.popen.kill()  # somebody has killed the keeper
            self.popen.wait()
        self._reader.join(1)
        with suppress(OSError):  # what it was told last, and never read
            self.popen.stdin.close()

    def _failure(self, what: str) -> CdcOutboxError:
        self._reader.join(0.5 if self.popen.poll() is not None else 0)
        said = "; ".join(self._last)
        return CdcOutboxError(
            f"{self.name} {what}" + (f"; it said: {said}" if said else ""),
            next="run cdc-outbox demo once more; if it fails again, please report this line",
        )


class Stage:
    """Where a run takes place. A context manager; interruptions end it as exceptions."""

    def __init__(self, parent: Path) -> None:
        """`parent` is where the run's directory is made."""
        self._parent = parent
        self._keeper: subprocess.Popen[str] | None = None
        self._children: list[Child] = []
        self._before: dict[signal.Signals, Any] = {}
        self._holding = False
        self._pending: int | None = None
        self.home = parent

    def __enter__(self) -> Stage:
        for number in _SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._interrupted)
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _open(self) -> None:
        with self._whole():
            self._keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(keeper.__file__)), str(self._parent)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            assert self._keeper.stdout is not None  # noqa: S101 - it is a pipe
            with self._keeper.stdout as said:
                home = said.readline().strip()
            if not home:
                raise CdcOutboxError(
                    f"no directory can be made in {self._parent}",
                    next="set TMPDIR to a directory with room in it",
                )
            self.home = Path(home)

    def _close(self) -> None:
        # What is left takes less than a second: nothing shall interrupt it.
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)
        if self._keeper is not None:
            assert self._keeper.stdin is not None  # noqa: S101 - it is a pipe
            self._keeper.stdin.close()
            for child in self._children:
                child.close()
            self._keeper.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        user: int | None = None,
        group: int | None = None,
        cwd: Path | None = None,
        ending: signal.Signals = signal.SIGKILL,
    ) -> Child:
        """Start a process. `ending` is the signal by which it ends with the stage, if it still runs then."""
        with self._whole():
            popen = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env={**environment(), **(env or {})},
                user=user,
                group=group,
                extra_groups=None if user is None else [],
                cwd=cwd or self.home,
                start_new_session=True,
            )
            self._order(f"+{popen.pid} {ending.value}")
            child = Child(name, popen)
            self._children.append(child)
        return child

    def python(self, name: str, *arguments: str, env: Mapping[str, str] | None = None) -> Child:
        """Start `python ARGUMENTS` with our own interpreter and import path."""
        path = os.pathsep.join(str(Path(each).resolve()) for each in sys.path)
        return self.start(name, [sys.executable, *arguments], env={"PYTHONPATH": path, **(env or {})})

    def kill(self, child: Child) -> None:
        """`kill -9`, and see it dead."""
        with self._whole():
            child.popen.kill()
            child.popen.wait()
            self._order(f"-{child.popen.pid}")

    def _order(self, line: str) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None  # noqa: S101, PT018 - the stage is open
        self._keeper.stdin.write(line + "\n")
        self._keeper.stdin.flush()

    def _interrupted(self, number: int, _frame: FrameType | None) -> None:
        if self._holding:
            self._pending = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt
        else:
            raise SystemExit(128 + number)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """No interruption in here: a process that was started is a process that is registered."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._pending is not None:
            self._interrupted(self._pending, None)


def environment() -> dict[str, str]:
    """Our environment without what is about the user's own servers and language."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
