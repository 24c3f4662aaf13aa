"""One transaction of very many rows: it passes through, in order, in flat memory, without a pause in the keepalives.

The server sends a large transaction once it has committed (what doesn't fit in `logical_decoding_work_mem` it spills to
disk until then), and nothing of it can be confirmed before its end.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest

from cdc_outbox.lsn import LSN
from tests.servers.kafka import KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.wait import eventually

ROWS = int(os.environ.get("CDC_OUTBOX_TEST_LARGE_ROWS", "200000"))
LIMIT = 120 + ROWS // 1000
MEBIBYTE = 1 << 20
COMMIT: LiteralString = (
    "select pg_current_wal_insert_lsn()::text; commit; select pg_current_wal_flush_lsn()::text"
)
"""In one message, so that nobody else writes in between, such as the relay its witness row once a second."""


def write_many(dsn: str, aggregate_type: str, rows: int) -> tuple[LSN, LSN]:
    """One transaction of `rows` rows over ten keys, each with a counter; where its commit begins and ends."""
    with psycopg.connect(dsn) as connection:
        connection.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
            " select %s, 'key-' || n %% 10, 'counted', jsonb_build_object('n', n, 'padding', repeat('x', 200))"
            " from generate_series(1, %s) as n",
            (aggregate_type, rows),
        )
        cursor = connection.execute(COMMIT)
        before = cursor.fetchone()
        while cursor.nextset():
            pass
        after = cursor.fetchone()
        assert before is not None
        assert after is not None
        return LSN.parse(before[0]), LSN.parse(after[0])


@pytest.mark.timeout(2 * LIMIT)
def test_a_large_transaction_passes_in_flat_memory(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    outbox_topic: str,
    aggregate_type: str,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """F15. CDC_OUTBOX_TEST_LARGE_ROWS=1000000 makes it five times as large, and takes minutes."""
    server = make_postgres(settings={"wal_sender_timeout": "3s", "max_wal_size": "4GB"})
    pipeline = make_pipeline(server, own_kafka, flags=["--provenance-headers"]).prepare(4).init()
    relay = pipeline.start()
    walsender = pipeline.walsender()
    resting = relay.peak_rss()
    before_commit, end = write_many(server.dsn(), aggregate_type, ROWS)

    def confirmed() -> bool:
        assert pipeline.walsender() == walsender, relay.text()
        position = pipeline.confirmed()
        # The WAL of its rows may be passed while it is open; its commit only once all of them are settled.
        assert position <= before_commit or position >= end
        return position >= end

    eventually(confirmed, LIMIT, lambda: f"{ROWS} rows confirmed:\n{relay.text()}")
    peak = relay.peak_rss()
    print(f"{ROWS} rows: resting {resting / MEBIBYTE:.0f} MiB, peak {peak / MEBIBYTE:.0f} MiB")
    assert peak < 96 * MEBIBYTE
    spilled = server.value(
        "select spill_txns from pg_stat_replication_slots where slot_name = %s", (pipeline.slot,)
    )
    assert spilled > 0, "the server kept it all in memory: not large enough to tell"

    last: dict[bytes | None, int] = {}
    places: set[tuple[str | None, int]] = set()
    records = read_all(own_kafka.bootstrap, outbox_topic, timeout=LIMIT)
    for record in records:
        n = record.json()["n"]
        assert n > last.get(record.key, 0)
        last[record.key] = n
        places.add((record.header("cdc.lsn"), int(record.header("cdc.seq") or -1)))
    assert len(records) == ROWS
    assert len({lsn for lsn, _ in places}) == 1
    assert {seq for _, seq in places} == set(range(ROWS))


def test_a_large_transaction_waits_out_an_absent_broker_in_flat_memory(
    make_postgres: Callable[..., PostgresServer],
    own_kafka: KafkaBroker,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """The budget stops the reader in the middle of the transaction; small ones behind it keep their order."""
    rows = 80_000
    server = make_postgres(settings={"wal_sender_timeout": "2s"})
    pipeline = make_pipeline(server, own_kafka).prepare(4).init()
    relay = pipeline.start()
    walsender = pipeline.walsender()
    writer = pipeline.writer(padding=600)
    writer.write(10)
    pipeline.wait_confirmed(pipeline.end_of_wal())
    own_kafka.pause()
    writer.write(rows, rows_per_transaction=rows)
    writer.write(200)
    for _ in range(5):
        # Status updates go on: more than twice the server's time-out passes here.
        pipeline.wait_round()
    assert pipeline.walsender() == walsender, relay.text()
    stalled = relay.rss()
    own_kafka.resume()
    pipeline.wait_confirmed(pipeline.end_of_wal(), 120)
    print(f"stalled at {stalled / MEBIBYTE:.0f} MiB, peak {relay.peak_rss() / MEBIBYTE:.0f} MiB")
    assert relay.peak_rss() < 96 * MEBIBYTE
    assert pipeline.walsender() == walsender, relay.text()
    assert pipeline.books(writer).duplicates == ()
