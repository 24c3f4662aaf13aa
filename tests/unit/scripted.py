"""A walsender that says what a test has written down, and the few messages that it says."""

from __future__ import annotations

import asyncio
from collections import deque

from cdc_outbox.errors import CdcOutboxError, PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.pgoutput import AnyMessage, Begin, Commit, Insert
from cdc_outbox.postgres.protocol import Keepalive, XLogData, encode_keepalive, encode_xlog

COMMIT_US = 1_705_497_250_250_999
OID = 16_400


def frame(message: AnyMessage | bytes, *, sent_us: int = COMMIT_US + 1000) -> bytes:
    """The frame in which a message of pgoutput comes."""
    payload = message if isinstance(message, bytes) else message.encode()
    return encode_xlog(XLogData(LSN(0), LSN(0), sent_us, payload))


def begin(lsn: int, *, commit_us: int = COMMIT_US, sent_us: int = COMMIT_US + 1000) -> bytes:
    return frame(Begin(LSN(lsn), commit_us, 700), sent_us=sent_us)


def commit(lsn: int, end: int | None = None) -> bytes:
    return frame(Commit(0, LSN(lsn), LSN(lsn + 8 if end is None else end), COMMIT_US))


def insert(values: list[bytes | None], oid: int = OID) -> bytes:
    return frame(Insert(oid, values))


def keepalive(end: int, *, reply: bool = False) -> bytes:
    return encode_keepalive(Keepalive(LSN(end), COMMIT_US, reply))


class ScriptedStream:
    """What `Intake`, `Flow` and `pulse` ask of a stream. A portion of frames arrives with each `receive`."""

    def __init__(self, *portions: list[bytes]) -> None:
        self.here: deque[bytes] = deque()
        self.coming = deque(portions)
        self.end: CdcOutboxError | None = None
        self.over = False
        self.over_tcp = True
        self.sender_timeout = 0.0
        self.heard_up_to: list[int] = []
        self.confirmed = LSN(0)
        self.statuses: list[tuple[int, bool]] = []
        self.broken: type[Exception] = BufferError
        self.torn: Exception | None = None
        self.silence = 0.0
        self.storm = False
        self.reply_due = False
        self.closed = False
        self._news = asyncio.Event()

    def say(self, *frames: bytes) -> None:
        """One more portion, which a reader that waits is woken by."""
        self.coming.append(list(frames))
        self._news.set()

    def break_with(self, error: CdcOutboxError) -> None:
        """The copy ends once everything that was said has been read."""
        self.end = error
        self._news.set()

    def frame(self, _how: int) -> tuple[int, memoryview]:
        if self.torn is not None and not self.here and not self.coming:
            raise self.torn
        if self.here:
            data = self.here.popleft()
            return len(data), memoryview(data)
        if self.end is not None and not self.coming:
            return -1, memoryview(b"")
        return 0, memoryview(b"")

    def receive(self) -> None:
        if self.coming:
            self.here.extend(self.coming.popleft())

    def ended(self) -> CdcOutboxError:
        self.over = True
        return self.end or PostgresUnavailable("ended", next="nothing")

    def gone(self, error: Exception) -> PostgresUnavailable:
        return PostgresUnavailable(f"lost: {error}", next="nothing")

    async def readable(self) -> None:
        while not self.here and not self.coming and self.end is None:
            self._news.clear()
            await self._news.wait()

    def alive(self) -> None:
        self.silence = 0.0

    def heard(self, position: int) -> None:
        self.heard_up_to.append(position)

    def asked(self) -> bool:
        self.reply_due = True
        return self.storm

    def confirm(self, lsn: LSN) -> bool:
        if lsn <= self.confirmed:
            return False
        self.confirmed = lsn
        return True

    def reply_if_due(self, _now: float) -> None:
        if self.reply_due:
            self.send_status()

    def silent_for(self, _now: float) -> float:
        return self.silence

    def send_status(self, *, ask: bool = False) -> None:
        self.reply_due = False
        self.statuses.append((int(self.confirmed), ask))

    async def close(self, *, within: float = 1.0) -> None:
        assert within > 0
        self.closed = True
