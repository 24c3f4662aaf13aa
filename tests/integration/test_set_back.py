"""A server that goes back to an earlier state of itself under a relay that lives on.

A volume's snapshot that is put back keeps the system identifier and the timeline, so nothing names another server. But
it writes other rows at places where the relay has already delivered some, and its memory of deliveries must not take
the new for the old.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest

from cdc_outbox.faults import HOLD_CONFIRMATION
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import PATIENCE, eventually

BEFORE = 60
AFTER = 20
"""Fewer, so that all of them have places below the last of those."""


class Volume:
    """A server, and a snapshot of its data that can be put back."""

    def __init__(self, server: PostgresServer, aggregate_type: str) -> None:
        self.server = server
        self._aggregate_type = aggregate_type
        self._snapshot = server.home / "snapshot"
        create_outbox(server.dsn())

    def insert(self, rows: int) -> list[str]:
        """Rows with one key, each in a transaction of its own; their ids."""
        statement = (
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " values (%s, 'same', 'counted', '{}') returning id::text"
        )
        with self.server.connect() as connection:
            return [
                str(row[0])
                for _ in range(rows)
                for row in connection.execute(statement, (self._aggregate_type,))
            ]

    def snapshot(self) -> None:
        """Stop, copy, start."""
        self.server.stop()
        # Owners are kept as well: PostgreSQL doesn't run as root, and tests may.
        subprocess.run(["cp", "-a", self.server.data, self._snapshot], check=True)
        self.server.start()

    def put_back(self) -> None:
        """Crash, and start as the server was."""
        self.server.stop("immediate")
        rmtree(self.server.data)
        self._snapshot.rename(self.server.data)
        self.server.start()


@pytest.fixture
def volume(make_postgres: Callable[..., PostgresServer], aggregate_type: str) -> Volume:
    # Nothing else may write WAL: the new rows would have new places.
    return Volume(make_postgres(settings={"autovacuum": "off"}), aggregate_type)


def test_rows_at_places_that_were_delivered_before_arrive(
    volume: Volume, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(volume.server, kafka).prepare(1).init()
    relay = pipeline.start()
    expected = volume.insert(1)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    volume.snapshot()
    expected += volume.insert(BEFORE)
    delivered = pipeline.end_of_wal()
    pipeline.wait_confirmed(delivered)

    # The relay sleeps meanwhile, so that no end of WAL tells it before there are new rows.
    relay.signal(signal.SIGSTOP)
    volume.put_back()
    expected += volume.insert(AFTER)
    assert pipeline.end_of_wal() < delivered
    relay.signal(signal.SIGCONT)
    pipeline.wait_confirmed(pipeline.end_of_wal())

    assert [record.id for record in pipeline.read()] == expected
    assert relay.terminate()[0] == 0


def test_so_do_those_of_a_server_that_has_the_last_witness_row_and_has_written_on(
    volume: Volume, kafka: Kafka, make_pipeline: Callable[..., Pipeline], tmp_path: Path
) -> None:
    """Neither the witness row nor the end of WAL tells this one: it is newer than all that the relay knows of."""
    hold = tmp_path / "hold"
    pipeline = make_pipeline(volume.server, kafka, env={HOLD_CONFIRMATION: str(hold)}).prepare(1).init()
    relay = pipeline.start()
    expected = volume.insert(1)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    hold.touch()
    volume.snapshot()
    expected += volume.insert(BEFORE)
    delivered = pipeline.end_of_wal()

    def arrived() -> list[str | None]:
        return [record.id for record in pipeline.read()]

    eventually(lambda: arrived() == expected, PATIENCE, "the rows before")
    relay.signal(signal.SIGSTOP)
    volume.put_back()
    expected += volume.insert(BEFORE + AFTER)
    assert pipeline.end_of_wal() > delivered
    relay.signal(signal.SIGCONT)
    hold.unlink()
    pipeline.wait_confirmed(pipeline.end_of_wal())

    assert arrived() == expected
    assert relay.terminate()[0] == 0
