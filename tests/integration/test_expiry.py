"""Rows from the table that are older than their topic keeps records: it is said before Kafka removes them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.integration.backfilled import TABLE_B, Backfilled, place
from tests.servers.kafka import Kafka

__all__ = ["place"]

OLD = (
    "insert into outbox (bus, topic, payload, created_at) select 'kafka', %s, '{}', now() - n * interval '1 day'"
    " from generate_series(3, 1, -1) n"
)
KEYED = ("--key", "event_id")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"retention.ms": "172800000"}, True),
        ({"retention.ms": "172800000", "cleanup.policy": "compact,delete"}, True),
        ({"retention.ms": "345600000"}, False),
        ({"retention.ms": "-1"}, False),
        ({"retention.ms": "172800000", "message.timestamp.type": "LogAppendTime"}, False),
        ({"retention.ms": "172800000", "cleanup.policy": "compact"}, False),
    ],
    ids=["older", "also compacted", "younger", "for ever", "counted from the arrival", "compacted alone"],
)
def test_a_topic_that_would_not_keep_them(
    place: Backfilled, kafka: Kafka, topics: str, config: Mapping[str, str], told: bool
) -> None:
    place.topic = f"{topics}kept"
    kafka.create_topic(place.topic, 1, config)
    place.execute(TABLE_B)
    place.execute(OLD, (place.topic,))
    place.ok("--only", "publication", "--only", "witness")
    done = place.command(*KEYED)
    assert done.returncode == 0, done.stderr
    words = f"topic {place.topic} keeps records for 2d from the time that they bear, and the first row for it bears 20"
    remedy = (
        f"kafka-configs.sh --bootstrap-server {kafka.bootstrap} --alter --topic {place.topic} --add-config "
        "message.timestamp.type=LogAppendTime"
    )
    assert done.stderr.count(words) == done.stderr.count(remedy) == told, done.stderr
