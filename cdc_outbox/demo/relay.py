"""The relay of a run: `cdc-outbox start`, as its users run it, to be killed and started again."""

from __future__ import annotations

from typing import Final

from cdc_outbox.demo.stage import Child, Stage
from cdc_outbox.errors import CdcOutboxError
from cdc_outbox.faults import HOLD_CONFIRMATION

SLOT: Final = "demo_slot"

FIRST: Final = ("start", "--init", "--create-table", "--slot", SLOT)
AGAIN: Final = ("start", "--slot", SLOT)


class RelayProcess:
    """One relay at a time, between these servers."""

    def __init__(self, stage: Stage, dsn: str, bootstrap: str) -> None:
        self._stage = stage
        self._hold = stage.home / "hold"
        self._env = {
            "CDC_OUTBOX_DSN": dsn,
            "CDC_OUTBOX_BOOTSTRAP_SERVERS": bootstrap,
            HOLD_CONFIRMATION: str(self._hold),
        }
        self._process: Child | None = None

    def start(self, command: tuple[str, ...]) -> None:
        """Start it, and wait until it streams."""
        self._process = self._stage.python(
            "the relay", "-m", "cdc_outbox", *command, "--no-http", "--log-format", "json", env=self._env
        )
        while True:
            record = self._process.hear_json("event", what="streaming")
            if record["event"] == "streaming":
                return
            if "error" in record and record.get("level") == "error":
                raise CdcOutboxError(
                    f"the relay: {record['error']}", next=str(record.get("next", "report this"))
                )

    def hold_confirmation(self) -> None:
        """From now on it confirms nothing to PostgreSQL: its crash window stays open until it is killed."""
        self._hold.touch()

    def kill(self) -> None:
        """`kill -9`."""
        if self._process is not None:
            self._stage.kill(self._process)
        self._hold.unlink(missing_ok=True)
