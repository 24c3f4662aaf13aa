"""What a test of a session's flow begins with: a scripted stream, a bus in memory, a settlement that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import (
    CdcOutboxError,
    DrainExceeded,
)
from cdc_outbox.flow import Flow
from cdc_outbox.intake import Intake
from cdc_outbox.settings import Settings, load
from cdc_outbox.state import State, Status
from cdc_outbox.table.mapping import Mapping
from tests.unit.memory_publisher import MemoryPublisher
from tests.unit.scripted import ScriptedStream, begin, commit
from tests.unit.taken import relation, row

SETTINGS = load("start", {}, {}, Path("/nonexistent"))


class FakeSettlement:
    """Confirms what the ledger allows when it is told to, as the real one does after guard and witness."""

    def __init__(self, ledger: Ledger, stream: ScriptedStream) -> None:
        self._ledger = ledger
        self._stream = stream
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.caught_up = asyncio.Event()
        self.finished = 0
        self.answered = True
        """Whether PostgreSQL takes the last confirmation."""

    async def run(self, caught_up: asyncio.Event) -> None:
        ends: list[asyncio.Future[Any]] = [self.broken, asyncio.ensure_future(self.caught_up.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if self.broken.done():
            self.broken.result()
        caught_up.set()
        await self.broken

    async def finish(self, *, within: float) -> CdcOutboxError | None:
        assert within > 0
        self.finished += 1
        if not self.answered:
            return DrainExceeded("PostgreSQL didn't take the last confirmation", next="")
        self._stream.confirm(self._ledger.confirmable)
        return None


class Bus(MemoryPublisher):
    """Says when somebody waits for room."""

    waits_for_room = False

    async def room(self) -> None:
        self.waits_for_room = True
        try:
            await super().room()
        finally:
            self.waits_for_room = False


class Session:
    """A flow over a scripted stream and a bus in memory."""

    def __init__(
        self,
        settings: Settings = SETTINGS,
        *,
        topics: set[str] | None = None,
        suspect: tuple[int, int] | None = None,
    ) -> None:
        self.stream = ScriptedStream()
        self.ledger = Ledger()
        self.publisher = Bus(self.ledger, topics=topics, patient=True)
        self.intake = Intake(
            cast(Any, self.stream), self.ledger, Mapping(settings.outbox, "outbox_slot"), self.publisher
        )
        self.settlement = FakeSettlement(self.ledger, self.stream)
        self.status = Status("outbox_slot", State.STREAMING)
        self.stop = asyncio.Event()
        self.flow = Flow(
            settings,
            self.status,
            cast(Any, self.stream),
            self.ledger,
            self.publisher,
            self.intake,
            cast(Any, self.settlement),
            suspect,
        )
        self.running = asyncio.create_task(self.flow.run(self.stop, asyncio.Event()))

    @property
    def keys(self) -> list[bytes | None]:
        return [message[2] for message in self.publisher.messages]

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the session run until a condition holds; the test's own limit ends a wait in vain."""
        while not condition():
            assert not self.running.done(), self.running
            await asyncio.sleep(0.001)

    async def drain_one(self) -> None:
        """Take one row, and be asked to stop while it is out."""
        self.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
        await self.taken(1)
        self.stop.set()
        await self.until(lambda: self.status.state is State.DRAINING)

    async def stopping_for_room(self) -> None:
        """Be asked to stop, and wait until what is out holds that up."""
        self.stop.set()
        await self.until(lambda: self.status.state is State.DRAINING and self.publisher.waits_for_room)

    async def taken(self, rows: int) -> None:
        await self.until(lambda: self.intake.received >= rows)

    async def error(self) -> CdcOutboxError:
        with pytest.raises(CdcOutboxError) as raised:
            await self.running
        return raised.value


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test()

    asyncio.run(within())
