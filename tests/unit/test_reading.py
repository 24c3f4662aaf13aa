"""Topics that are read while a broker is away."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.kafka.reading import Place, Reading, Span
from cdc_outbox.settings import load


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
        reading = Reading(Away(), load("audit", {}, {}, Path("/nonexistent")).kafka)  # type: ignore[arg-type]
        async for _ in reading.records([Span(Place("orders", 0), 0, 9)], stalled=0.1):
            raise AssertionError

    with pytest.raises(KafkaUnavailable, match="nothing comes from orders/0"):
        asyncio.run(asyncio.wait_for(read(), 10))
