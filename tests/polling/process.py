"""The polling relay as a child of the tests: stopped as an operator stops it, or killed."""

from __future__ import annotations

import signal
import sys
import threading

from tests.polling.table import Table
from tests.servers.cache import CHECKOUT
from tests.servers.process import Process, directory
from tests.servers.relay import clean_environment


class PollingRelay:
    """One run of `python -m tests.polling`."""

    def __init__(
        self,
        table: Table,
        dsn: str,
        bootstrap: str,
        *,
        name: str,
        batch: int = 50,
        lease: float = 30,
        slowness: float = 0,
    ) -> None:
        self.name = name
        self._log = directory("polling-") / "log"
        options = {
            "table": table.letter,
            "name": name,
            "dsn": dsn,
            "bootstrap": bootstrap,
            "batch": batch,
            "lease": lease,
            "slowness": slowness,
        }
        flags = [word for option, value in options.items() for word in (f"--{option}", str(value))]
        self._process = Process(
            [sys.executable, "-m", "tests.polling", *flags],
            env=clean_environment(),
            cwd=CHECKOUT,
            log=self._log,
        )
        self.pid = self._process.pid
        # Somebody has to collect it when others end it by its process id, or they would see it for ever.
        threading.Thread(target=self._process.popen.wait, daemon=True).start()

    @property
    def running(self) -> bool:
        return self._process.running

    def text(self) -> str:
        """What it said."""
        return self._log.read_text()

    def wait_stopped(self) -> None:
        """Wait for the end of one that was told to stop. Raises AssertionError if it didn't end well."""
        code = self._process.wait(60)
        assert code == 0, f"the polling relay ended with {code}:\n{self.text()}"

    def stop(self) -> None:
        """SIGTERM: it ends its batch."""
        self._process.send(signal.SIGTERM)
        self.wait_stopped()

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()

    def close(self) -> None:
        """End it if it still runs."""
        if self.running:
            self.kill()
