"""The relay as its users run it: a process, known by its command line, its log and its HTTP answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.servers.cache import CHECKOUT
from tests.servers.process import Process, free_port
from tests.servers.wait import PATIENCE, eventually
from tests.servers.warm import run_warm

LogRecord = dict[str, Any]

# What a developer's own shell may hold must not reach the relay under test.
_FOREIGN = ("CDC_OUTBOX_", "OTEL_", "PG", "KAFKA_", "DATABASE_URL", "PYTHONDONTWRITEBYTECODE")
_OF_PYTHON = ("PYTHON", "LC_", "LANG")

MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
    "from cdc_outbox.cli import main; main()"
)
"""`cdc-outbox` for `python -c`. A test run in the background of a shell ignores Ctrl-C, and so would its children."""


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Our environment without any setting of the relay, of libpq or of Kafka, plus `extra`.

    Python may keep its bytecode, as in any installation.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment["PYTHONPATH"] = str(CHECKOUT)
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(extra or {})
    return environment


def run_command(
    *arguments: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run `cdc-outbox ARGUMENTS` to its end; exit code, stdout and stderr as text.

    With variables that Python reads at its start in `env`, in an interpreter of its own, else in a warm one.
    """
    environment = clean_environment(env)
    if not any(name.startswith(_OF_PYTHON) for name in env or ()):
        return run_warm(arguments, env=environment, cwd=cwd, timeout=timeout)
    return subprocess.run(
        [sys.executable, "-m", "cdc_outbox", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        cwd=cwd,
        timeout=timeout,
        check=False,
    )


def complaint(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    """What is wrong, and what is next: the two lines with which a command that fails ends."""
    *_, error, remedy = done.stderr.splitlines()
    assert error.startswith("error: "), done.stderr
    assert remedy.startswith("next: "), done.stderr
    return error.removeprefix("error: "), remedy.removeprefix("next: ")


class RelayProcess:
    """One run of `cdc-outbox start`, or of another command that stays."""

    def __init__(
        self,
        dsn: str,
        bootstrap: str,
        *,
        slot: str,
        table: str | None = None,
        flags: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        http: bool = True,
        command: str = "start",
        module: str = "cdc_outbox",
        cwd: Path | None = None,
    ) -> None:
        """Start the process. `http` opens a port of its own, for `state()`; `flags` go at the end."""
        self.http_port = free_port() if http else None
        arguments = [sys.executable, "-m", module, command]
        arguments += ["--bootstrap-servers", bootstrap, "--slot", slot, "--log-format", "json"]
        if table is not None:
            arguments += ["--table", table]
        if command == "start":
            arguments += ["--http", f"127.0.0.1:{self.http_port}"] if http else ["--no-http"]
        # The DSN holds a password: by environment, as users are told.
        environment = clean_environment({"CDC_OUTBOX_DSN": dsn, **(env or {})})
        self.records: list[LogRecord] = []
        self.stray: list[str] = []
        self.output: list[str] = []
        self._news = threading.Condition()
        self._process = Process([*arguments, *flags], env=environment, pipes=True, cwd=cwd)
        self.pid = self._process.pid
        stdout, stderr = self._process.popen.stdout, self._process.popen.stderr
        assert stdout is not None
        assert stderr is not None
        self._readers = [
            threading.Thread(target=self._read_output, args=(stdout,), daemon=True),
            threading.Thread(target=self._read_log, args=(stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_output(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                with self._news:
                    self.output.append(line.decode(errors="replace").rstrip("\n"))
                    self._news.notify_all()

    def _read_log(self, pipe: IO[bytes]) -> None:
        with pipe:
            for raw in pipe:
                line = raw.decode(errors="replace").rstrip("\n")
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                with self._news:
                    if isinstance(record, dict):
                        self.records.append(record)
                    else:
                        self.stray.append(line)
                    self._news.notify_all()

    @property
    def running(self) -> bool:
        return self._process.running

    def text(self, last: int = 30) -> str:
        """The last lines of the log, for messages of failed tests."""
        with self._news:
            lines = [json.dumps(record) for record in self.records[-last:]] + self.stray[-last:]
        return "\n".join(lines) or "(no log)"

    def wait_for(
        self,
        condition: Callable[[LogRecord], object],
        timeout: float = PATIENCE,
        *,
        since: int = 0,
        message: str = "a log record",
    ) -> LogRecord:
        """The first log record from index `since` on that `condition` is true for.

        Raises AssertionError, with the log's end, after `timeout` seconds or when the process has ended
        without.
        """
        deadline = time.monotonic() + timeout
        seen = since
        while True:
            with self._news:
                while seen < len(self.records):
                    record = self.records[seen]
                    seen += 1
                    if condition(record):
                        return record
                left = deadline - time.monotonic()
                done = left <= 0 or not any(reader.is_alive() for reader in self._readers)
                if not done:
                    self._news.wait(min(left, 0.2))
            if done:
                how = (
                    f"ended with {self._process.exit_code}"
                    if not self.running
                    else f"not within {timeout:g} s"
                )
                raise AssertionError(f"{message}: {how}; the relay's log ends:\n{self.text()}")

    def get(
        self, path: str, timeout: float = 20, *, headers: Mapping[str, str] | None = None
    ) -> tuple[int, str]:
        """Code and body of an HTTP answer. Raises OSError while nothing listens."""
        assert self.http_port is not None, "this relay runs without HTTP"
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http_port}{path}", headers={**(headers or {})}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def state(self) -> str | None:
        """The relay's state: by `/readyz`, or by its log when it has no HTTP. None before there is one."""
        if self.http_port is not None:
            try:
                _, body = self.get("/readyz")
            except OSError:
                return None
            try:
                state = json.loads(body)["state"]
            except (ValueError, KeyError, TypeError):
                return body.split()[0] if body.split() else None
            return str(state)
        with self._news:
            return next(
                (str(record["state"]) for record in reversed(self.records) if "state" in record), None
            )

    def wait_state(self, *states: str, timeout: float = PATIENCE) -> str:
        """Wait until the relay is in one of `states`. Raises AssertionError when it ends before."""

        def reached() -> str | None:
            assert self.running, f"the relay ended with {self._process.exit_code}:\n{self.text()}"
            state = self.state()
            return state if state in states else None

        return str(eventually(reached, timeout, lambda: f"state {' or '.join(states)}:\n{self.text()}"))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, for example SIGSTOP."""
        self._process.send(number)

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._join()

    def terminate(self, timeout: float = 40) -> tuple[int, float]:
        """SIGTERM; the exit code, and the seconds that the end took."""
        began = time.monotonic()
        self._process.send(signal.SIGTERM)
        code = self.wait(timeout)
        return code, time.monotonic() - began

    def wait(self, timeout: float = 40) -> int:
        """The exit code of a process that ends by itself."""
        try:
            code = self._process.wait(timeout)
        except AssertionError as late:
            raise AssertionError(f"{late}; its log ends:\n{self.text()}") from None
        self._join()
        return code

    def _join(self) -> None:
        for reader in self._readers:
            reader.join(10)

    def close(self) -> None:
        """End the process if it still runs."""
        if self.running:
            self.kill()
        self._join()

    def rss(self) -> int:
        """Resident memory in bytes."""
        shown = subprocess.run(
            ["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True
        ).stdout
        return int(shown) * 1024

    def peak_rss(self) -> int:
        """The largest resident memory so far, in bytes (Linux)."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the kernel doesn't tell the peak")

    def cpu_seconds(self) -> float:
        """Processor time used so far, user and system (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
