"""The lane of one partition, and the batches that wait in it and leave it one by one."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_outbox.acknowledge import Pin
    from cdc_outbox.kafka.records import Records


class Batch:
    """Rows for one partition, in stream order; `first` and `last` are their places, `pin` what they hold back.

    `size` is that of the whole batch before compression, `bytes` what counts against the budget; `closed_us` the
    commit time of what was published last when it was closed.
    """

    __slots__ = (
        "bytes",
        "closed_us",
        "count",
        "first",
        "lane",
        "last_lsn",
        "last_seq",
        "pin",
        "put",
        "records",
        "size",
    )

    def __init__(self, lane: Lane, records: Records, pin: Pin, first: tuple[int, int]) -> None:
        self.lane = lane
        self.records = records
        self.put = records.put
        self.pin = pin
        self.first = first
        self.last_lsn, self.last_seq = first
        self.count = 0
        self.bytes = 0
        self.size = 0
        self.closed_us = 0


class Lane:
    """One partition: an open batch, full ones that wait, and at most one that is out."""

    __slots__ = (
        "delivered",
        "full",
        "learnt_at",
        "max_bytes",
        "most",
        "number",
        "open",
        "out",
        "sent",
        "topic",
    )

    def __init__(
        self, topic: str, number: int, delivered: tuple[int, int], most: int, learnt: tuple[int, float] | None
    ) -> None:
        """`delivered`: the last row's place that was confirmed here, LSN and number. `most`: bytes of a batch at most.

        `learnt`: a lower limit that a refusal has shown, and when, in monotonic seconds.
        """
        self.topic = topic
        self.number = number
        self.delivered = delivered
        self.most = most
        self.max_bytes, self.learnt_at = (most, 0.0) if learnt is None else (min(most, learnt[0]), learnt[1])
        self.sent = 0
        self.open: Batch | None = None
        self.full: deque[Batch] = deque()
        self.out: Batch | None = None
