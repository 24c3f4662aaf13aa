"""A passage over a bus in memory that fails when it is told to: what arrives, in which order, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import CdcOutboxError, KafkaUnavailable, PoisonEvent, SetupError
from cdc_outbox.event import Encoded
from cdc_outbox.postgres.table_rows import Chunk, reader
from cdc_outbox.publisher import Deliveries, StartOver, Unpublishable
from cdc_outbox.repair import passage as module
from cdc_outbox.repair.passage import Passage
from cdc_outbox.settings import Settings, load
from cdc_outbox.table.mapping import Mapping, Plan
from tests.unit.mapped import TEXT, relation, settings
from tests.unit.memory_publisher import MemoryPublisher

COLUMNS = {"id": TEXT, "topic": TEXT, "aggregate_id": TEXT, "payload": TEXT, "bus": TEXT}


class Bus:
    """What all publishers of a test share: the messages that have arrived, and what is to go wrong."""

    def __init__(self) -> None:
        self.arrived: list[Encoded] = []
        self.sessions = 0
        """Publishers that were made: one to see whether there is a bus, then one for each session."""
        self.failures: dict[int, CdcOutboxError] = {}
        """Number of a row → what the delivery fails with, once, when it is to be confirmed."""
        self.refused: set[int] = set()
        """Rows that the broker refuses whenever they are sent."""
        self.topics: set[str] | None = None
        self.prepared: list[str] = []
        """Topics that were asked for."""
        self.most_inflight = 0
        self.away = False
        self.expired: str | None = None


class Scripted(MemoryPublisher):
    """A publisher that passes over what has arrived, as the real one does, and confirms at each flush."""

    bus: Bus

    def __init__(self, _settings: object, ledger: Ledger, deliveries: Deliveries) -> None:
        super().__init__(ledger, topics=self.bus.topics, patient=True)
        self._deliveries = deliveries
        self._numbers: list[int] = []
        self.bus.sessions += 1

    async def start(self) -> None:
        if self.bus.away:
            raise KafkaUnavailable("no broker", next="start one")

    async def prepare(self, topic: str) -> None:
        self.bus.prepared.append(topic)
        await super().prepare(topic)

    def expired(self, _encoded: Encoded) -> str | None:
        return self.bus.expired

    def publish(self, encoded: Encoded, lsn: int, seq: int) -> None:
        if (lsn, seq) <= self._deliveries.place(encoded[0], 0, 1):
            return
        super().publish(encoded, lsn, seq)
        self._numbers.append(seq)
        self.bus.most_inflight = max(self.bus.most_inflight, self.inflight_bytes)

    def flush(self, *, late: float = 0.0) -> None:
        while self._numbers and not self.failed.done():
            number = self._numbers[0]
            if number in self.bus.refused:
                refusal = Unpublishable(
                    "the broker refuses it", next="mend it", reason="refused", lsn=0, seq=number
                )
                self.fail(refusal)
                return
            failure = self.bus.failures.pop(number, None)
            if failure is not None:
                self.fail(failure)
                return
            self._numbers.pop(0)
            topic = self._waiting[0][1][0]
            self.confirm()
            self._deliveries.settle(topic, 0, (0, number))
            self.bus.arrived.append(self.messages[-1])

    async def room(self) -> None:
        await asyncio.sleep(0)


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Bus:
    made = Bus()
    monkeypatch.setattr(Scripted, "bus", made, raising=False)
    monkeypatch.setattr(module, "KafkaPublisher", Scripted)
    return made


def loaded(**flags: object) -> Settings:
    return load("backfill", flags, {}, Path("/nonexistent"))


def plan(**changes: object) -> Plan:
    return Mapping(settings(**changes), "s", source="backfill").plan(relation(COLUMNS))


def chunk(numbers: range, size: int | None = None, bus: str = "kafka", topic: str = "t") -> Chunk:
    lines = [f"{number}\t{topic}\tk\t{number}\t{bus}\n".encode() for number in numbers]
    return Chunk(lines, size or sum(map(len, lines)), reader(len(COLUMNS), range(len(COLUMNS))))


async def portions(*chunks: Chunk) -> AsyncIterator[tuple[Plan, Chunk]]:
    made = plan()
    for each in chunks:
        yield made, each


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 10))


def values(bus: Bus) -> list[int]:
    return [int(message[3] or b"") for message in bus.arrived]


def test_all_rows_arrive_in_their_order(bus: Bus) -> None:
    moved: list[int] = []

    async def work() -> None:
        made = Passage(loaded(), [], moved=moved.append)
        await made.run(portions(chunk(range(1, 4)), chunk(range(4, 6), bus="nats"), chunk(range(6, 9))))
        assert (made.taken, made.confirmed, made.left_out) == (8, 8, {"bus": 2})

    run(work())
    assert values(bus) == [1, 2, 3, 6, 7, 8]
    assert moved == sorted(moved)
    assert moved[-1] == 8
    assert bus.arrived[0][5][-1] == ("cdc.source", b"backfill")


@pytest.mark.parametrize(
    "failure",
    [StartOver("again"), KafkaUnavailable("gone", next="wait")],
    ids=lambda error: type(error).__name__,
)
def test_after_a_failure_what_has_not_arrived_is_sent_again_in_order(
    bus: Bus, failure: CdcOutboxError
) -> None:
    """Rows that a rule leaves out are counted once all the same."""
    bus.failures = {3: failure, 7: failure}

    async def work() -> None:
        made = Passage(loaded(), [])
        await made.run(portions(chunk(range(1, 5)), chunk(range(5, 7), bus="nats"), chunk(range(7, 11))))
        assert made.left_out == {"bus": 2}

    run(work())
    assert values(bus) == [1, 2, 3, 4, 7, 8, 9, 10]
    assert bus.sessions == 1 + 3


def test_no_broker_at_the_beginning_is_an_end(bus: Bus) -> None:
    bus.away = True
    with pytest.raises(KafkaUnavailable):
        run(Passage(loaded(), []).run(portions(chunk(range(1, 3)))))


def test_a_row_that_can_not_be_encoded_ends_it_after_what_comes_before(bus: Bus) -> None:
    keyless = Chunk([b"9\tt\t\\N\tx\tkafka\n"], 12, reader(len(COLUMNS), range(len(COLUMNS))))
    with pytest.raises(PoisonEvent, match=r"event 9 .* row 4 in order"):
        run(Passage(loaded(), []).run(portions(chunk(range(1, 4)), keyless, chunk(range(5, 7)))))
    assert values(bus) == [1, 2, 3]


def test_a_row_that_the_broker_refuses_is_tried_alone_and_named(bus: Bus) -> None:
    bus.refused = {3}
    with pytest.raises(
        PoisonEvent, match="event 3 in the table, row 3 in order, can't be published: the broker"
    ):
        run(Passage(loaded(), []).run(portions(chunk(range(1, 6)))))
    assert values(bus) == [1, 2]
    assert bus.sessions == 1 + 2


def test_what_is_kept_and_on_its_way_is_bounded(bus: Bus) -> None:
    """A chunk waits until those before it have gone, however large one is."""
    held: list[int] = []

    async def work() -> None:
        made = Passage(
            loaded(inflight_bytes="64KiB"), [], moved=lambda confirmed: held.append(made.taken - confirmed)
        )
        await made.run(portions(*(chunk(range(n, n + 10), 60_000) for n in range(1, 101, 10))))

    run(work())
    assert values(bus) == [*range(1, 101)]
    assert max(held) <= 10


def test_a_topic_that_is_the_same_for_all_rows_has_to_be_there(bus: Bus) -> None:
    bus.topics = {"other"}
    with pytest.raises(SetupError, match="no topic orders"):
        run(Passage(loaded(), [plan(topic="orders")]).run(portions(chunk(range(1, 3)))))


def test_a_topic_that_a_row_names_is_waited_for(bus: Bus) -> None:
    bus.topics = set()

    async def work() -> None:
        made = asyncio.create_task(Passage(loaded(), []).run(portions(chunk(range(1, 3)))))
        while not bus.prepared:
            await asyncio.sleep(0)
        assert not made.done()
        assert bus.topics is not None
        bus.topics.add("t")
        await made

    run(work())
    assert values(bus) == [1, 2]


def test_that_a_topic_will_not_keep_its_rows_is_said_once(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    bus.topics, bus.expired = set(), "gone within minutes"
    bus.failures[2] = StartOver("a broker was slow")

    async def work() -> None:
        made = asyncio.create_task(Passage(loaded(), []).run(portions(chunk(range(1, 3)))))
        while not bus.prepared:
            await asyncio.sleep(0)
        assert bus.topics is not None
        bus.topics.add("t")
        await made

    run(work())
    assert values(bus) == [1, 2]
    assert bus.sessions == 3
    assert caplog.messages.count("noticed") == 1
