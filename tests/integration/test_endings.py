"""Ends of sessions and of processes that once went wrong: each leaves nothing behind, in bounded time, and says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.kafka import client
from cdc_outbox.kafka.publisher import KafkaPublisher
from cdc_outbox.publisher import Deliveries
from cdc_outbox.settings import load
from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.ledger import create_outbox
from tests.servers.pipeline import Pipeline
from tests.servers.postgres import PostgresServer
from tests.servers.proxy import Proxy
from tests.servers.relay import RelayProcess
from tests.servers.wait import PATIENCE, eventually


def test_two_connections_that_are_cut_together_leave_no_third(
    own_postgres: PostgresServer,
    kafka: Kafka,
    make_proxy: Callable[[str, int], Proxy],
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """The round of the guard that makes its connection anew ends with the session, and the connection with it."""
    create_outbox(own_postgres.dsn())
    proxy = make_proxy("127.0.0.1", own_postgres.port)
    pipeline = make_pipeline(
        own_postgres, kafka, way=own_postgres.dsn(host="127.0.0.1", port=proxy.port)
    ).init()
    relay = pipeline.start()

    def connections() -> list[int]:
        rows = own_postgres.execute(
            "select pid from pg_stat_activity where application_name = %s", (f"cdc-outbox/{pipeline.slot}",)
        )
        return sorted(row[0] for row in rows)

    for _ in range(3):
        since, before = len(relay.records), connections()
        proxy.cut()
        relay.wait_for(lambda record: record.get("event") == "streaming", 60, since=since)
        pipeline.wait_round()
        eventually(
            lambda: len(connections()) == 2,
            PATIENCE,
            lambda: f"two connections; there are {connections()}.\n{relay.text()}",
        )
        assert not set(connections()) & set(before)
    assert relay.terminate()[0] == 0
    assert not [record for record in relay.records if record.get("event") == "library message"]


def test_a_record_that_the_broker_refuses_blocks_as_quietly_as_any(
    outbox: Database,
    kafka: Kafka,
    outbox_topic: str,
    aggregate_type: str,
    make_pipeline: Callable[..., Pipeline],
) -> None:
    """It rests its minute: no other session, walsender or producer meanwhile."""
    kafka.create_topic(outbox_topic, config={"max.message.bytes": "2000"})
    pipeline = make_pipeline(outbox, kafka).init()
    relay = pipeline.start("--on-poison", "block")
    outbox.server.execute(
        "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
        " values (%s, 'a', 'large', to_jsonb(repeat('x', 5000)))",
        (aggregate_type,),
        dbname=outbox.name,
    )
    relay.wait_state("blocked")
    walsender = eventually(pipeline.walsender, PATIENCE, "the slot active")
    for _ in range(3):
        pipeline.wait_round()
        assert pipeline.walsender() == walsender
    assert relay.state() == "blocked"
    code, seconds = relay.terminate()
    assert code == 0, relay.text()
    assert seconds < 10
    assert len([record for record in relay.records if record.get("event") == "blocked"]) == 1


def test_a_stop_while_all_of_postgresql_is_frozen_keeps_its_limit(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """The last confirmation can't be taken: exit 1 after the drain limit, and not after every time-out in turn."""
    create_outbox(own_postgres.dsn())
    pipeline = make_pipeline(own_postgres, kafka).init()
    relay = pipeline.start("--drain", "2s")
    pipeline.wait_round()
    own_postgres.pause()
    try:
        code, seconds = relay.terminate(60)
    finally:
        own_postgres.resume()
    print(f"ended after {seconds:.1f} s")
    assert code == 1
    assert seconds < 8
    assert "last confirmation" in relay.records[-1]["error"]


def test_being_caught_up_needs_no_foreign_wal_and_no_witness(
    own_postgres: PostgresServer, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    """Where nothing else writes, the end of WAL doesn't move: being confirmed up to it is enough."""
    create_outbox(own_postgres.dsn())
    pipeline = make_pipeline(own_postgres, kafka).init()
    own_postgres.execute("drop table cdc_outbox_witness")
    for _ in range(2):
        relay = pipeline.start("--until-caught-up")
        assert relay.wait(60) == 0
        took = moment(relay, "draining") - moment(relay, "streaming")
        print(f"caught up after {took.total_seconds():.1f} s")
        assert took < timedelta(seconds=5)


def moment(relay: RelayProcess, state: str) -> datetime:
    """When the relay entered a state for the first time."""
    record = next(record for record in relay.records if record.get("state") == state)
    return datetime.fromisoformat(record["ts"])


def test_an_idle_relay_needs_no_time_to_drain(
    outbox: Database, kafka: Kafka, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(outbox, kafka).init()
    relay = pipeline.start("--drain", "0s")
    pipeline.wait_round()
    assert relay.terminate()[0] == 0, relay.text()


def test_asking_the_bootstrap_list_again_disturbs_no_delivery(kafka: Kafka, topics: str) -> None:
    """The client keeps its topics: a batch for one that it doesn't know fails as if the topic had gone."""
    topic = f"{topics}busy"
    kafka.create_topic(topic, 3)
    settings = load("start", {"bootstrap_servers": kafka.bootstrap}, {}, Path("/nonexistent")).kafka

    async def test() -> None:
        ledger = Ledger()
        publisher = KafkaPublisher(settings, ledger, Deliveries())
        await publisher.start()
        try:
            await publisher.prepare(topic)
            ledger.begin(100)
            cluster = publisher._producer.client.cluster
            for seq in range(30):
                publisher.publish((topic, seq % 3, b"k", b"v", 1_700_000_000_000, []), 100, seq)
                publisher.flush()
                asking = asyncio.create_task(client.bootstrap_again(publisher._producer, settings))
                while not asking.done():
                    assert cluster.partitions_for_topic(topic) == {0, 1, 2}
                    await asyncio.sleep(0)
                await asking
            await publisher.settled()
            assert publisher.published == {topic: 30}
        finally:
            await publisher.stop(within=1)

    asyncio.run(asyncio.wait_for(test(), 60))
