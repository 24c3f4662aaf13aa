"""Rows that are older than their topic keeps records: Kafka removes them within minutes, read or not.

By itself Kafka counts from the time that a record bears. A row that is sent from the table bears that of its writing.

https://kafka.apache.org/documentation/#topicconfigs_retention.ms
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from cdc_outbox.instant import iso_seconds
from cdc_outbox.kafka import tool
from cdc_outbox.kafka.topic_settings import CLEANUP, told
from cdc_outbox.settings.units import format_duration

if TYPE_CHECKING:
    from cdc_outbox.settings import KafkaSettings

RETENTION: Final = "retention.ms"
TIME: Final = "message.timestamp.type"
ASKED: Final = (RETENTION, TIME, CLEANUP)


def lifetime(answer: Any, topic: str) -> float | None:
    """Seconds for which the topic keeps a record from the time that it bears, as an answer to a question for ASKED has
    it; None where it removes none for that, or isn't told to us.

    Raises ValueError for what is no number.
    """
    found = told(answer).get(topic, {})
    if "delete" not in found.get(CLEANUP, "") or found.get(TIME) != "CreateTime":
        return None
    kept = int(found.get(RETENTION, "-1"))
    return kept / 1000 if kept >= 0 else None


def expired(topic: str, written_ms: int, lifetime: float | None, settings: KafkaSettings) -> str | None:
    """That the topic won't keep a row of that time, in ms since 1970, and what to do; None where it will."""
    written = written_ms / 1000
    if lifetime is None or written > time.time() - lifetime:
        return None
    return (
        f"topic {topic} keeps records for {format_duration(lifetime)} from the time that they bear, and the first row "
        f"for it bears {iso_seconds(written)}: Kafka removes it within minutes, read or not; have it count from their "
        f"arrival until they are read: kafka-configs.sh {tool.address(settings)} --alter --topic {topic} --add-config "
        f"{TIME}=LogAppendTime; or raise its {RETENTION}"
    )
