"""What systemd is told, by a socket as its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cdc_outbox.state import State, Status
from cdc_outbox.watch import supervisor
from cdc_outbox.watch.supervisor import Supervisor

SECRET = "planted"


class Systemd:
    """The other end: a datagram socket at a path, or in the abstract namespace."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """The lines that have come since the last call."""
        lines: list[str] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                lines += self._socket.recv(4096).decode().splitlines()
        return lines

    async def hears(self, line: str) -> list[str]:
        """Wait for a line; all that came up to it."""
        lines: list[str] = []
        async with asyncio.timeout(10):
            while line not in lines:
                lines += self.heard()
                await asyncio.sleep(0.01)
        return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK", 0.02)


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    name = f"@cdc-outbox-{os.getpid()}-{id(request)}" if request.param == "abstract" else f"{tmp_path}/notify"
    listening = Systemd(name)
    yield listening
    listening.close()


@contextlib.asynccontextmanager
async def told(status: Status, **environment: str) -> AsyncIterator[asyncio.Task[None]]:
    telling = Supervisor(status, lambda text: text.replace(SECRET, "***"), environment)
    task = asyncio.create_task(telling.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_it_is_ready_once_its_set_up_is_judged_and_says_how_it_is(systemd: Systemd) -> None:
    status = Status("outbox_slot")

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=systemd.address):
            assert await systemd.hears("STATUS=connecting") == ["STATUS=connecting"]
            status.change(State.STANDBY, f"walsender 7 has the\npassword {SECRET}")
            assert await systemd.hears("STATUS=standby: walsender 7 has the password ***") == [
                "READY=1",
                "STATUS=standby: walsender 7 has the password ***",
            ]
            status.change(State.STREAMING)
            assert await systemd.hears("STATUS=streaming") == ["STATUS=streaming"]
            status.change(State.DRAINING)
            assert await systemd.hears("STATUS=draining") == ["STOPPING=1", "STATUS=draining"]
            status.change(State.STOPPED)
        assert systemd.heard() == ["STATUS=stopped"]

    asyncio.run(life())


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (State.CONNECTING, "nothing listens at db:5432"),
        (State.HELD, "no Kafka broker can be used"),
        (State.HELD, "the cluster has no topic orders"),
        (State.BLOCKED, "event 1 can't be published"),
        (State.STREAMING, ""),
    ],
)
def test_whoever_starts_it_waits_for_no_outage(systemd: Systemd, state: State, reason: str) -> None:
    status = Status("outbox_slot")
    said = f"STATUS={state.value}: {reason}" if reason else f"STATUS={state.value}"

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=systemd.address):
            await systemd.hears("STATUS=connecting")
            status.change(state, reason)
            assert await systemd.hears(said) == ["READY=1", said]

    asyncio.run(life())


@pytest.mark.parametrize("state", [State.DRAINING, State.STOPPED])
def test_one_that_ends_before_was_never_ready(systemd: Systemd, state: State) -> None:
    status = Status("outbox_slot")

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=systemd.address):
            await systemd.hears("STATUS=connecting")
            status.change(state, "another word")
        assert systemd.heard() == ["STOPPING=1", f"STATUS={state.value}: another word"]

    asyncio.run(life())


def test_the_end_is_told_whatever_it_comes_by(systemd: Systemd) -> None:
    async def life() -> None:
        async with told(Status("outbox_slot"), NOTIFY_SOCKET=systemd.address):
            await systemd.hears("STATUS=connecting")
        assert systemd.heard() == ["STOPPING=1", "STATUS=ended: the last line of its log says why"]

    asyncio.run(life())


def test_an_end_by_an_error_is_no_state_that_goes_on(systemd: Systemd) -> None:
    status = Status("outbox_slot")

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=systemd.address):
            status.change(State.STREAMING)
            await systemd.hears("STATUS=streaming")
        assert systemd.heard() == ["STOPPING=1", "STATUS=ended: the last line of its log says why"]

    asyncio.run(life())


@pytest.mark.parametrize("whose", [{}, {"WATCHDOG_PID": str(os.getpid())}])
def test_it_is_alive_while_the_loop_turns(systemd: Systemd, whose: dict[str, str]) -> None:
    async def life() -> None:
        environment = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "200000", **whose}
        async with told(Status("outbox_slot"), **environment):
            began = asyncio.get_running_loop().time()
            for _ in range(5):
                await systemd.hears("WATCHDOG=1")
            assert asyncio.get_running_loop().time() - began > 0.1  # no more often than need be

    asyncio.run(life())


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}],
)
def test_a_watchdog_of_nobody_or_of_another_hears_nothing(systemd: Systemd, watchdog: dict[str, str]) -> None:
    status = Status("outbox_slot")

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=systemd.address, **watchdog):
            await systemd.hears("STATUS=connecting")
            status.change(State.STREAMING)
            assert await systemd.hears("STATUS=streaming") == ["READY=1", "STATUS=streaming"]

    asyncio.run(life())


def test_without_a_supervisor_nothing_runs() -> None:
    async def life() -> None:
        async with told(Status("outbox_slot")) as task:
            await asyncio.wait_for(task, 5)

    asyncio.run(life())


def test_nobody_at_the_socket_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    status = Status("outbox_slot")

    async def life() -> None:
        async with told(status, NOTIFY_SOCKET=f"{tmp_path}/nobody"):
            async with asyncio.timeout(10):
                while not caplog.records:
                    await asyncio.sleep(0.01)

    asyncio.run(life())  # whose last word finds nobody either
    assert [each.getMessage() for each in caplog.records] == ["systemd can't be told how the relay is"]
