"""A server that goes back to an earlier state of itself under a relay that lives on.

A volume's snapshot that is put back keeps the system identifier and the timeline, so nothing names another server. But
it writes other rows at places where the relay has already delivered some, and its memory of deliveries must not take
the new for the old.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from shutil import rmtree

from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox, read_all
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer

BEFORE = 60
AFTER = 20
"""Fewer, so that all of them have places below the last of those."""


def test_rows_at_places_that_were_delivered_before_arrive(
    make_postgres: Callable[..., PostgresServer],
    kafka: Kafka,
    outbox_topic: str,
    aggregate_type: str,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    # Nothing else may write WAL: the new rows would have new places.
    server = make_postgres(settings={"autovacuum": "off"})
    create_outbox(server.dsn())
    kafka.create_topic(outbox_topic)
    pipeline = make_pipeline(server, kafka).init()
    relay = pipeline.start()

    def insert(rows: int) -> list[str]:
        """Rows with one key, each in a transaction of its own."""
        statement = (
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " values (%s, 'same', 'counted', '{}') returning id::text"
        )
        with server.connect() as connection:
            return [
                str(row[0]) for _ in range(rows) for row in connection.execute(statement, (aggregate_type,))
            ]

    expected = insert(1)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    server.stop()
    snapshot = server.home / "snapshot"
    # Owners are kept as well: PostgreSQL doesn't run as root, and tests may.
    subprocess.run(["cp", "-a", server.data, snapshot], check=True)
    server.start()
    expected += insert(BEFORE)
    delivered = pipeline.end_of_wal()
    pipeline.wait_confirmed(delivered)

    # The relay sleeps meanwhile, so that no end of WAL tells it before there are new rows.
    relay.signal(signal.SIGSTOP)
    server.stop("immediate")
    rmtree(server.data)
    snapshot.rename(server.data)
    server.start()
    expected += insert(AFTER)
    assert pipeline.end_of_wal() < delivered
    relay.signal(signal.SIGCONT)
    pipeline.wait_confirmed(pipeline.end_of_wal())

    assert [record.id for record in read_all(kafka.bootstrap, outbox_topic)] == expected
    assert relay.terminate()[0] == 0
