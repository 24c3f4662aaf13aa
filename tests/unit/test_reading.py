"""Topics that are read while a broker is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.metadata import MetadataResponse_v1

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.kafka.placement import Placement
from cdc_outbox.kafka.reading import Place, Reading, Span, reading
from cdc_outbox.settings import load
from tests.servers.process import free_port

SETTINGS = load("audit", {}, {}, Path("/nonexistent")).kafka


class Away:
    """A consumer that gets nothing, and doesn't learn where it stands: nobody leads the partition."""

    class _client:  # noqa: N801 - the client's own name
        set_topics = staticmethod(lambda _topics: None)

    def assign(self, _partitions: object) -> None:
        pass

    def seek(self, _partition: object, _offset: int) -> None:
        pass

    async def getmany(self, **_options: object) -> dict[Any, Any]:
        return {}

    async def position(self, _partition: object) -> int:
        await asyncio.Event().wait()
        return 0


def test_a_partition_whose_position_nobody_knows_ends_the_reading_in_time() -> None:
    async def read() -> None:
        away = Reading(Away(), SETTINGS)  # type: ignore[arg-type]
        async for _ in away.records([Span(Place("orders", 0), 0, 9)], stalled=0.1):
            raise AssertionError

    with pytest.raises(KafkaUnavailable, match="nothing comes from orders/0"):
        asyncio.run(asyncio.wait_for(read(), 10))


def test_an_answer_that_takes_too_long_is_told_in_words() -> None:
    class Slow(Away):
        class _client(Away._client):  # noqa: N801 - the client's own name
            @staticmethod
            async def force_metadata_update() -> bool:
                raise TimeoutError

    with pytest.raises(KafkaUnavailable, match="the cluster doesn't answer: it takes too long"):
        asyncio.run(Reading(Slow(), SETTINGS).topics())  # type: ignore[arg-type]


@pytest.fixture
def astray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bootstrap server answers, and all brokers advertise an address where nobody listens."""

    async def bootstrap(self: Any) -> None:
        self.cluster.update_metadata(MetadataResponse_v1([(0, "127.0.0.1", free_port(), None)], 0, []))
        self._sync_task = asyncio.create_task(self._md_synchronizer())

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)


@pytest.mark.usefixtures("astray")
def test_brokers_that_advertise_another_address_are_no_cluster_without_topics() -> None:
    async def read() -> None:
        async with reading(SETTINGS) as topics:
            await topics.topics()

    with pytest.raises(KafkaUnavailable, match="no broker answers at the address that it advertises"):
        asyncio.run(read())
    placement = Placement(SETTINGS)
    with pytest.raises(KafkaUnavailable, match="says which topics there are"):
        asyncio.run(placement.look())
    assert not placement.reached
