"""A Kafka batch while it is filled.

aiokafka's builder of batches is written in C, and the Python around its `append` doubles its price. That is paid once
per event; so a record goes straight to the builder, and how many there are is told at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatchBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokafka.record._protocols import DefaultRecordMetadataProtocol

    from cdc_outbox.event import Encoded


def size_of(message: Encoded) -> int:
    """Bytes of a message as a record, by which it is held against a limit: the most that they may be."""
    _, _, key, value, _, headers = message
    return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(key, value, [*headers]))


class Records(BatchBuilder):
    """What `send_batch` takes, once it is sealed."""

    def __init__(self, limit: int, codec: int) -> None:
        """`limit`: bytes before compression, which only a first record may exceed."""
        super().__init__(limit, codec)
        self.put: Callable[..., DefaultRecordMetadataProtocol | None] = self._builder.append
        """`put(place, timestamp, key=, value=, headers=)` appends a record as number `place` from 0; None when full."""

    def seal(self, count: int) -> None:
        """That was it: `count` records."""
        self._relative_offset = count
        self.close()
