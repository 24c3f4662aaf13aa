"""What a person waits for after a set-up: the line that says that an event went all the way, and what was detected."""

from __future__ import annotations

from collections.abc import Callable

from cdc_outbox.lsn import LSN
from tests.integration.conftest import Database
from tests.servers.kafka import Kafka
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import PATIENCE


def test_the_first_event_is_told_once_and_the_mapping_too(
    outbox: Database, slot: str, kafka: Kafka, aggregate_type: str, make_relay: Callable[..., RelayProcess]
) -> None:
    topic = f"outbox.event.{aggregate_type}"
    kafka.create_topic(topic)
    done = run_command("init", "--slot", slot, env={"CDC_OUTBOX_DSN": outbox.dsn})
    assert done.returncode == 0, done.stderr
    relay = make_relay(outbox.dsn, kafka.bootstrap, slot=slot)

    def insert() -> None:
        outbox.server.execute(
            "insert into outbox (aggregate_type, aggregate_id, event_type) values (%s, '1', 'x')",
            (aggregate_type,),
            dbname=outbox.name,
        )

    relay.wait_state("streaming")
    insert()
    told = relay.wait_for(lambda record: record["event"] == "first event confirmed", PATIENCE)
    assert told["topic"] == topic
    ((position,),) = outbox.server.execute(
        "select position::text from cdc_outbox_witness", dbname=outbox.name
    )
    assert LSN(0) < LSN.parse(told["lsn"]) <= LSN.parse(position)
    assert 0 <= told["latency_ms"] < PATIENCE * 1000

    # Another session of the same process: neither is told anew.
    since = len(relay.records)
    outbox.server.execute(
        "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (slot,)
    )
    relay.wait_for(lambda record: record["event"] == "streaming", PATIENCE, since=since)
    insert()
    code, _ = relay.terminate()
    assert code == 0, relay.text()
    events = [record["event"] for record in relay.records]
    assert events.count("first event confirmed") == 1
    assert "mapping" not in events
    assert [list(record["mapping"]) for record in relay.records if "mapping" in record] == [["public.outbox"]]
