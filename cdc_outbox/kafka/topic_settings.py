"""What topics are set to, as far as the cluster tells us: reading it takes the right DescribeConfigs, seldom granted.

https://kafka.apache.org/protocol.html#The_Messages_DescribeConfigs
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aiokafka.protocol.admin import DescribeConfigsRequest

MAX_BYTES: Final = "max.message.bytes"
MIN_IN_SYNC: Final = "min.insync.replicas"
CLEANUP: Final = "cleanup.policy"

_TOPIC: Final = 2
"""Kafka's number for a topic among the things that have settings."""


def question(topics: Iterable[str], *settings: str) -> DescribeConfigsRequest:
    """The request for these settings of these topics; `told` reads the answer."""
    return DescribeConfigsRequest([(_TOPIC, topic, list(settings)) for topic in topics])


def told(answer: Any) -> dict[str, dict[str, str]]:
    """The settings by topic; without those topics that we may not ask about, or that aren't there."""
    return {
        topic: {name: value for name, value, *_ in entries if value is not None}
        for code, _, _, topic, entries in answer.resources
        if code == 0
    }


def max_bytes(answer: Any, topic: str) -> int | None:
    """The topic's limit for a batch, as an answer to a question for MAX_BYTES has it; None where it has none.

    Raises ValueError for what is no number.
    """
    found = told(answer).get(topic, {})
    return int(found[MAX_BYTES]) if MAX_BYTES in found else None
