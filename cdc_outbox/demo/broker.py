"""The broker of a run, and how it is stopped and started again. See `mock_cluster` for what it is."""

from __future__ import annotations

from cdc_outbox.demo.stage import Stage


class Broker:
    """A broker that has these topics; clients find it at `address`."""

    def __init__(self, stage: Stage, *topics: str) -> None:
        self._process = stage.python("the broker", "-m", "cdc_outbox.demo.mock_cluster", *topics)
        self.address = self._process.hear(lambda line: line if line.startswith("127.") else None, "ready")

    def stop(self) -> None:
        """Close all connections and refuse new ones."""
        self._set("down")

    def start(self) -> None:
        """Come back at the same address, with the same records."""
        self._set("up")

    def _set(self, state: str) -> None:
        self._process.tell(state)
        self._process.hear(lambda line: line == f"is {state}" or None, state)
