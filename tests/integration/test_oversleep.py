"""A relay that was frozen for so long that another one took over, and then goes on."""

from __future__ import annotations

import signal
from collections.abc import Callable

from tests.servers.kafka import KafkaBroker
from tests.servers.ledger import Writer, create_outbox, read_all, verify
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer


def test_a_relay_that_stood_still_sends_nothing_behind_its_successor(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    outbox_topic: str,
    make_pipeline: Callable[..., Pipeline],
    make_writer: Callable[..., Writer],
) -> None:
    """It has batches for each partition, and what the kernel read for it; all of that is old news by then."""
    server = make_postgres(settings={"wal_sender_timeout": "2s"})
    create_outbox(server.dsn())
    own_kafka.create_topic(outbox_topic, 3)
    pipeline = make_pipeline(server, own_kafka).init()
    first = pipeline.start()
    writer = make_writer(server.dsn(), rate=None, threads=2).start()
    writer.wait_written(300)
    own_kafka.pause()
    writer.wait_written(600)
    first.signal(signal.SIGSTOP)
    committed = writer.stop()
    own_kafka.resume()
    pipeline.start()
    pipeline.wait_confirmed(pipeline.end_of_wal())
    before = read_all(own_kafka.bootstrap, outbox_topic)

    first.signal(signal.SIGCONT)
    # It names as its cause that it stood still, or that the server has hung up: both are true, and known at once.
    first.wait_state("standby", timeout=30)
    after = read_all(own_kafka.bootstrap, outbox_topic)
    assert len(after) == len(before)
    print(verify(committed, after))
