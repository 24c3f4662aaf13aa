"""The replication stream over a connection that does what the test says: full buffers, dead and frozen peers."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from psycopg import OperationalError
from psycopg.pq import ExecStatus

from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import stream as streams
from cdc_outbox.postgres.protocol import EPOCH_US, Status, decode_status
from cdc_outbox.postgres.stream import ReplicationStream, start_command


class FakePgconn:
    """The part of libpq's connection that a stream uses, over a real pair of sockets."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.host = b"db.example"
        self.backend_pid = 4711
        self.sent: list[bytes] = []
        self.frames: deque[tuple[int, bytes]] = deque()
        self.room = True
        self.unflushed = 0
        self.dead = False
        self.ends = 0
        self.result: ExecStatus | None = None

    def _check(self) -> None:
        if self.dead:
            raise OperationalError("server closed the connection unexpectedly\n\tThis probably means …")

    @property
    def socket(self) -> int:
        self._check()
        return self.ours.fileno()

    def put_copy_data(self, data: bytes) -> int:
        self._check()
        if self.room:
            self.sent.append(bytes(data))
        return int(self.room)

    def flush(self) -> int:
        self._check()
        self.unflushed = max(0, self.unflushed - 1)
        return int(self.unflushed > 0)

    def put_copy_end(self) -> int:
        self._check()
        self.ends += 1
        if self.ends > 1:
            raise OperationalError("no COPY in progress")
        return 1

    def get_copy_data(self, _how: int) -> tuple[int, memoryview]:
        length, data = self.frames.popleft() if self.frames else (0, b"")
        return length, memoryview(data)

    def consume_input(self) -> None:
        self._check()

    def is_busy(self) -> bool:
        return False

    def get_result(self) -> Any:
        self._check()
        return None if self.result is None else SimpleNamespace(status=self.result, error_message=b"")


class Over:
    """A stream over such a connection."""

    def __init__(self) -> None:
        self.pgconn = FakePgconn()
        self.closed = False

        async def close() -> None:
            self.closed = True

        connection = SimpleNamespace(pgconn=self.pgconn, info=SimpleNamespace(encoding="utf-8"), close=close)
        self.stream = ReplicationStream(cast(Any, connection), sender_timeout=60.0)

    @property
    def statuses(self) -> list[Status]:
        return [decode_status(update) for update in self.pgconn.sent]

    def end(self) -> None:
        self.pgconn.ours.close()
        self.pgconn.theirs.close()


def run(test: Callable[[Over], Coroutine[Any, Any, None]]) -> None:
    async def within() -> None:
        over = Over()
        try:
            async with asyncio.timeout(20):
                await test(over)
        finally:
            over.end()

    asyncio.run(within())


@given(st.text(alphabet=st.characters(exclude_characters="\0", codec="utf-8"), min_size=1))
def test_no_name_of_a_publication_leaves_its_quotes(name: str) -> None:
    command = start_command("outbox_slot", name).decode()
    head = "START_REPLICATION SLOT \"outbox_slot\" LOGICAL 0/0 (proto_version '1', publication_names '"
    assert command.startswith(head)
    assert command.endswith("')")
    inside = command[len(head) : -2]
    assert "'" not in inside.replace("''", "")
    identifier = inside.replace("''", "'")
    assert (identifier[0], identifier[-1]) == ('"', '"')
    assert '"' not in identifier[1:-1].replace('""', "")
    assert identifier[1:-1].replace('""', '"') == name


def test_the_confirmed_position_only_rises() -> None:
    async def test(over: Over) -> None:
        stream = over.stream
        taken = [stream.confirm(LSN(position)) for position in (100, 100, 50, 0, 101)]
        assert taken == [True, False, False, False, True]
        assert stream.confirmed == LSN(101)

    run(test)


def test_a_status_says_what_was_received_and_what_was_confirmed() -> None:
    async def test(over: Over) -> None:
        over.stream.send_status(ask=True)
        over.stream.heard(500)
        over.stream.confirm(LSN(300))
        over.stream.send_status()
        over.stream.confirm(LSN(700))
        over.stream.send_status()
        first, second, third = over.statuses
        assert (first.written, first.flushed, first.applied, first.reply) == (0, 0, 0, True)
        assert (second.written, second.flushed, second.applied, second.reply) == (500, 300, 300, False)
        assert (third.written, third.flushed, third.applied) == (700, 700, 700)
        assert abs(third.now_us_since_2000 + EPOCH_US - time.time_ns() / 1000) < 5e6

    run(test)


def test_a_full_buffer_loses_nothing_but_one_repetition() -> None:
    async def test(over: Over) -> None:
        over.stream.confirm(LSN(300))
        over.pgconn.room = False
        over.stream.send_status(ask=True)
        assert over.stream.status_updates == 0
        over.pgconn.room = True
        over.stream.send_status()
        assert [status.flushed for status in over.statuses] == [300]

    run(test)


def test_what_could_not_be_flushed_goes_when_there_is_room() -> None:
    async def test(over: Over) -> None:
        over.pgconn.unflushed = 4
        over.stream.send_status()
        over.stream.send_status()
        while over.pgconn.unflushed:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not asyncio.get_running_loop().remove_writer(over.pgconn.ours.fileno())

    run(test)


def test_answers_are_spaced() -> None:
    async def test(over: Over) -> None:
        over.stream.reply_if_due(time.monotonic())
        assert over.statuses == []
        over.stream.asked()
        over.stream.reply_if_due(time.monotonic())
        assert len(over.statuses) == 1
        for _ in range(1000):
            over.stream.asked()
            over.stream.reply_if_due(time.monotonic())
        assert len(over.statuses) < 20
        over.stream.reply_if_due(time.monotonic() + streams.REPLY_SPACING)
        before = len(over.statuses)
        over.stream.reply_if_due(time.monotonic() + 60)
        assert len(over.statuses) == before

    run(test)


@pytest.mark.parametrize("patience", [0.1, 0.2, 0.4, 1.0])
def test_a_server_of_little_patience_that_asks_whenever_it_has_heard_nothing_does_not_shut_down(
    monkeypatch: pytest.MonkeyPatch, patience: float
) -> None:
    async def test(over: Over) -> None:
        now = 1000.0
        monkeypatch.setattr(streams, "time", SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns))
        over.stream.sender_timeout = patience
        for _ in range(500):
            now += patience / 2
            assert not over.stream.asked()

    run(test)


def test_a_server_that_asks_as_often_as_it_is_answered_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose patience is short asks as well, twice within it."""

    async def test(over: Over) -> None:
        now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: now, time_ns=time.time_ns)
        monkeypatch.setattr(streams, "time", clock)
        signs = []
        for _ in range(500):
            now += 0.5
            signs.append(over.stream.asked())
        assert not any(signs)
        for _ in range(10):
            now += 2 * streams.REPLY_SPACING
            signs.append(over.stream.asked())
        assert any(signs)

    run(test)


def test_silence_counts_while_somebody_listens_for_an_answer() -> None:
    async def test(over: Over) -> None:
        stream = over.stream
        later = time.monotonic() + 100
        assert stream.silent_for(later) == 0
        stream.send_status(ask=True)
        assert stream.silent_for(later) == 0
        listening = asyncio.create_task(stream.readable())
        await asyncio.sleep(0)
        assert 99 < stream.silent_for(later) <= 100
        stream.send_status(ask=True)
        assert 99 < stream.silent_for(later) <= 100
        stream.alive()
        assert stream.silent_for(later) == 0
        over.pgconn.theirs.send(b"!")
        await listening

    run(test)


def test_a_dead_connection_is_an_outage_whoever_meets_it_first() -> None:
    async def test(over: Over) -> None:
        over.pgconn.dead = True
        for meet in (over.stream.send_status, over.stream.receive):
            with pytest.raises(PostgresUnavailable, match=r"closed the connection unexpectedly$"):
                meet()
        with pytest.raises(PostgresUnavailable):
            await over.stream.readable()
        assert isinstance(over.stream.ended(), PostgresUnavailable)
        await over.stream.close()
        assert over.closed

    run(test)


def test_an_end_without_a_reason_is_an_outage() -> None:
    async def test(over: Over) -> None:
        assert isinstance(over.stream.ended(), PostgresUnavailable)

    run(test)


@pytest.mark.parametrize("end", [ExecStatus.COMMAND_OK, ExecStatus.FATAL_ERROR])
def test_goodbye_is_said_once_and_reads_to_the_end(end: ExecStatus) -> None:
    """What was sent before is taken where the server answers, and not where it just ends."""

    async def test(over: Over) -> None:
        over.pgconn.result = end
        over.pgconn.unflushed = 3
        over.pgconn.frames.extend([(4, b"more"), (4, b"more"), (-1, b"")])
        await over.stream.close()
        assert over.pgconn.ends == 1
        assert over.pgconn.unflushed == 0
        assert not over.pgconn.frames
        assert over.closed
        assert over.stream.taken is (end is ExecStatus.COMMAND_OK)

    run(test)


def test_a_frozen_peer_keeps_nobody_waiting() -> None:
    async def test(over: Over) -> None:
        began = time.monotonic()
        await over.stream.close(within=0.05)
        assert time.monotonic() - began < 5
        assert over.closed

    run(test)


@pytest.mark.parametrize("socket", [b"/run/postgresql", b"@postgresql"])
def test_the_way_to_the_server_is_known(socket: bytes) -> None:
    async def test(over: Over) -> None:
        assert over.stream.pid == 4711
        by_tcp = over.stream.over_tcp
        over.pgconn.host = socket
        assert (by_tcp, over.stream.over_tcp) == (True, False)

    run(test)
