"""The bus in memory, which shows what a bus has to do."""

from __future__ import annotations

import asyncio

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.event import Encoded
from cdc_outbox.publisher import (
    TopicMissing,
    TopicUnknown,
)
from tests.unit.memory_publisher import MemoryPublisher
from tests.unit.staged import T


def test_a_bus_in_memory() -> None:
    async def scene() -> None:
        ledger = Ledger()
        bus = MemoryPublisher(ledger, topics={T}, patient=True)
        ledger.begin(10)
        row: Encoded = (T, None, b"k", b"v", 0, [])
        bus.publish(row, 10, 0)
        bus.publish(row, 10, 1)
        ledger.commit(20)
        with pytest.raises(TopicUnknown):
            bus.publish(("other", None, b"k", b"v", 0, []), 10, 2)
        with pytest.raises(TopicMissing):
            await bus.prepare("other")
        bus.flush()
        assert ledger.confirmable == 0
        bus.confirm()
        assert ledger.confirmable == 0
        bus.confirm()
        assert ledger.confirmable == 20
        assert bus.published == {T: 2}
        await bus.settled()
        bus.publish(row, 30, 0)
        bus.fail(KafkaUnavailable("gone", next="wait"))
        with pytest.raises(KafkaUnavailable):
            await bus.settled()
        await bus.stop(within=0)

    asyncio.run(scene())
