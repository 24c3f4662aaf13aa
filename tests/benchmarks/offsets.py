"""What a topic's own clock says: with LogAppendTime the broker knows when the first and the last record came."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # re-exported without __all__

from tests.servers.wait import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka.admin import AdminClient

    from tests.servers.kafka import KafkaBroker

Place = tuple[str, int]

_NOT_YET = (
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._NOENT,  # no leader is known at all: a broker that was frozen has just come back
)
"""What a broker answers while it and the client don't agree yet on what the controller has made of it."""

_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_NEWEST: OffsetSpec = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Span:
    """When the first and the last record of a stretch were appended, in seconds since 1970, to the millisecond."""

    first: float
    last: float

    @property
    def seconds(self) -> float:
        return max(self.last - self.first, 0.001)


class Offsets:
    """The ends of some topics."""

    def __init__(self, broker: KafkaBroker, topics: Iterable[str], partitions: int) -> None:
        self._broker = broker
        self._admin: AdminClient = broker.admin()
        self._places = [(topic, number) for topic in topics for number in range(partitions)]

    def _ask(self, spec: OffsetSpec) -> dict[Place, tuple[int, int]]:
        asked = {TopicPartition(topic, number): spec for topic, number in self._places}
        answered: dict[Place, tuple[int, int]] = {}

        def answers() -> bool:
            try:
                for place, answer in self._admin.list_offsets(asked, request_timeout=30).items():
                    found = answer.result()
                    answered[place.topic, place.partition] = (found.offset, found.timestamp)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_YET:
                    raise
                self._admin = self._broker.admin()
                return False
            return True

        eventually(answers, 20, "an answer from every leader")
        return answered

    def ends(self) -> dict[Place, int]:
        """The offset that comes next, for each partition."""
        return {place: offset for place, (offset, _) in self._ask(_LATEST).items()}

    def count(self, since: Mapping[Place, int]) -> int:
        """How many records came since."""
        return sum(self.ends().values()) - sum(since.values())

    def span(self, began: float) -> Span:
        """First and last append since a time of the wall clock."""
        firsts = self._ask(OffsetSpec.for_timestamp(int(began * 1000)))
        lasts = self._ask(_NEWEST)
        return Span(
            min(stamp for offset, stamp in firsts.values() if offset >= 0) / 1000,
            max(stamp for _, stamp in lasts.values()) / 1000,
        )

    def after(self, moment: float) -> int:
        """How many records were appended from that time on."""
        ends = self.ends()
        firsts = self._ask(OffsetSpec.for_timestamp(int(moment * 1000)))
        return sum(ends[place] - offset for place, (offset, _) in firsts.items() if offset >= 0)
