"""The replication stream: one socket with one owner.

It starts the slot's walsender at 0/0 (the slot alone knows where to go on), hands out what has arrived without
ever waiting inside, and writes status updates. The confirmed position is one monotonic value with one writer,
`confirm()`; a status update repeats it, so that any of them may be lost.

libpq reads at most a buffer's worth a call, hence `receive()` after the frames that it brought were taken, until it
brings nothing. https://www.postgresql.org/docs/current/protocol-replication.html

The buffer has 16 KiB at first and never shrinks, so it is widened once, for two reasons. All that a Unix socket holds
then comes with one call, and the walsender fills it again while we work: with short calls it slept until the
socket was nearly empty. And over TLS a buffer with too little room would leave the rest of a record with OpenSSL, where
it makes no socket readable (libpq 17.2, say; 18.6 takes it along). Room for a known frame is made in time, so that a
buffer that is full holds a whole one; while no more than a piece of a frame's header is there, the buffer has to have
room for the largest record.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from psycopg import OperationalError
from psycopg.pq import ExecStatus

from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres import refusal, sqlstate
from cdc_outbox.postgres.connection import ANSWER_TIMEOUT, execute, in_short, place
from cdc_outbox.postgres.protocol import EPOCH_US, encode_status
from cdc_outbox.postgres.readiness import ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from psycopg.pq.abc import PGresult

    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.postgres.backend import Backend
    from cdc_outbox.postgres.connection import Connection

REPLY_SPACING: Final = 0.1
"""Seconds between answers to keepalives that ask for one: a server that shuts down asks anew after each."""

_WIDE: Final = "select pg_catalog.repeat(' ', 200000)"
"""An answer for which libpq widens its buffer to 256 KiB: more than a Unix socket holds, or a TLS record."""

_STORM: Final = 3
"""Keepalives that ask for a reply within a second, beside those that the server's patience with us explains: more than
any server sends that isn't shutting down.

One that does asks again as soon as it is answered. Else it asks when it has heard nothing for half of its patience.
"""

_STUCK: Final = 0.005
"""Seconds in which a walsender that floods us fills its socket, and so has to look at what we say."""


def start_command(slot: str, publication: str) -> bytes:
    """START_REPLICATION for pgoutput. The publication is an identifier inside a string: `"` doubles, then `'`."""
    quoted_slot = '"' + slot.replace('"', '""') + '"'
    quoted_publication = ('"' + publication.replace('"', '""') + '"').replace("'", "''")
    return (
        f"START_REPLICATION SLOT {quoted_slot} LOGICAL 0/0"
        f" (proto_version '1', publication_names '{quoted_publication}')"
    ).encode()


class ReplicationStream:
    """A started logical replication connection."""

    broken: Final = OperationalError
    """What `frame` raises where libpq can make nothing of the bytes; `gone` says it in our words."""

    def __init__(
        self, connection: Connection, *, sender_timeout: float, backend: Backend | None = None
    ) -> None:
        self.sender_timeout = sender_timeout
        """The server ends the walsender after so many seconds without a word from us; 0 for never."""
        self.backend = backend
        """The walsender, as `stand_by` tells it from others."""
        self._connection = connection
        self._slot: str | None = None
        self._pgconn = connection.pgconn
        self._confirmed = LSN(0)
        self._received = 0
        self._last_status = 0.0
        self._asked_at: float | None = None
        self._listening_since: float | None = None
        self._reply_due = False
        self._storm_since = 0.0
        self._storm_count = 0
        self._flushing: int | None = None
        """The socket that is watched for room, by its number: libpq forgets it when the connection breaks."""
        self.over = False
        """Whether the server has ended the copy, so that nothing can be confirmed any more."""
        self.taken = False
        """Whether the server has read all that we sent: it ended the copy in order, since we asked or to shut down."""
        self.status_updates = 0
        self.keepalives = 0
        self.frame: Callable[[int], tuple[int, memoryview]] = self._pgconn.get_copy_data
        """`frame(1)` takes the next CopyData: its length (0: none yet, -1: the copy has ended) and its bytes."""

    @property
    def pid(self) -> int:
        """The walsender's process id."""
        return self._pgconn.backend_pid

    @property
    def over_tcp(self) -> bool:
        """Whether each message of the walsender wakes the reader, as over TCP and unlike on a Unix socket."""
        return not self._pgconn.host.startswith((b"/", b"@"))  # a directory, or a name of Linux's own

    @property
    def confirmed(self) -> LSN:
        """The position that the server has been told to forget up to."""
        return self._confirmed

    async def start(self, slot: str, publication: str) -> None:
        """Send START_REPLICATION and wait until the server streams: it says so before it decodes anything.

        Raises PostgresUnavailable after 10 seconds, SlotBusy, SlotMissing, SlotLost and the rest of `sqlstate`'s table.
        """
        self._slot = slot
        pgconn = self._pgconn
        await execute(self._connection, _WIDE, stage="start")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                pgconn.send_query(start_command(slot, publication))
                while pgconn.flush():
                    await self._wait(write=True)
                while True:
                    self.receive()
                    if not pgconn.is_busy():
                        break
                    await self.readable()
        except TimeoutError:
            raise PostgresUnavailable(
                f"PostgreSQL at {place(self._connection)} did not begin to stream within {ANSWER_TIMEOUT:g} s",
                next=refusal.NETWORK,
            ) from None
        result = pgconn.get_result()
        if result is None:
            raise self.gone(OperationalError("no answer to START_REPLICATION"))
        if result.status != ExecStatus.COPY_BOTH:
            raise sqlstate.from_result(result, stage="start", encoding=self._encoding, slot=slot)

    @property
    def _encoding(self) -> str:
        return self._connection.info.encoding

    async def readable(self) -> None:
        """Wait until the socket has something to read. Silence is counted only meanwhile."""
        self._listening_since = time.monotonic()
        try:
            await self._wait(write=False)
        finally:
            self._listening_since = None

    async def _wait(self, *, write: bool) -> None:
        try:
            await ready(self._pgconn, write=write)
        except OperationalError as error:  # in the middle of a status update, for one
            raise self.gone(error) from error

    def receive(self) -> None:
        """Take what the socket has, without waiting.

        Raises PostgresUnavailable when the connection is gone.
        """
        try:
            self._pgconn.consume_input()
        except OperationalError as error:
            raise self.gone(error) from error

    def heard(self, position: int) -> None:
        """A keepalive came, with how far the server has sent."""
        self.keepalives += 1
        self._received = position

    def alive(self) -> None:
        """Bytes came."""
        self._asked_at = None

    def asked(self) -> bool:
        """The server wants an answer; return whether it asks so often that it must be shutting down."""
        now = time.monotonic()
        self._reply_due = True
        if now - self._storm_since > 1.0:
            self._storm_since, self._storm_count = now, 0
        self._storm_count += 1
        explained = 2 / self.sender_timeout if self.sender_timeout else 0.0
        return self._storm_count > _STORM + explained

    def ended(self) -> CdcOutboxError:
        """The error that says why the copy ended (after `frame` answered -1)."""
        self.over = True
        try:
            result = self._pgconn.get_result()
        except OperationalError as error:
            return self.gone(error)
        self.taken = _in_order(result)
        if result is None or not result.error_message:
            return self.gone(OperationalError("the server ended the stream"))
        return sqlstate.from_result(result, stage="stream", encoding=self._encoding, slot=self._slot)

    def gone(self, error: Exception) -> PostgresUnavailable:
        """The error for one of libpq's, after which the connection is of no use."""
        return PostgresUnavailable(
            f"the replication connection was lost: {in_short(error)}",
            next="nothing to do: the relay reconnects by itself",
        )

    def confirm(self, lsn: LSN) -> bool:
        """Raise the confirmed position; the next status update carries it. Never lowers it."""
        if lsn <= self._confirmed:
            return False
        self._confirmed = lsn
        return True

    def reply_if_due(self, now: float) -> None:
        """Answer keepalives that asked for it, a few times a second at most."""
        if self._reply_due and now - self._last_status >= REPLY_SPACING:
            self.send_status()

    def silent_for(self, now: float) -> float:
        """Seconds for which we have listened in vain for a reply; 0 when none is awaited.

        While nobody reads, because Kafka is behind, nothing can be concluded; afterwards the clock starts anew.
        """
        if self._asked_at is None or self._listening_since is None:
            return 0.0
        return now - max(self._asked_at, self._listening_since)

    def send_status(self, *, ask: bool = False) -> None:
        """Write a status update without waiting; `ask` requests a keepalive in return."""
        confirmed = int(self._confirmed)
        received = max(confirmed, self._received)
        now_us = time.time_ns() // 1000 - EPOCH_US
        update = encode_status(received, confirmed, confirmed, now_us, ask)
        try:
            if self._pgconn.put_copy_data(update) == 0:
                return  # the send buffer is full: the next status update says it all again
            pending = self._pgconn.flush()
        except OperationalError as error:
            raise self.gone(error) from error
        now = time.monotonic()
        self._last_status = now
        self._reply_due = False
        self.status_updates += 1
        if ask and self._asked_at is None:
            self._asked_at = now
        if pending and self._flushing is None:
            self._flushing = self._pgconn.socket
            asyncio.get_running_loop().add_writer(self._flushing, self._flush)

    def _flush(self) -> None:
        try:
            done = self._pgconn.flush() == 0
        except OperationalError:
            done = True  # the reader meets the same error and raises it
        if done:
            self._flushed()

    def _flushed(self) -> None:
        if self._flushing is not None:
            asyncio.get_running_loop().remove_writer(self._flushing)
            self._flushing = None

    async def close(self, *, within: float = 1.0) -> None:
        """Say CopyDone and close; never takes longer than `within` seconds and never raises for a dead peer."""
        try:
            async with asyncio.timeout(within):
                await self._say_goodbye()
        except (TimeoutError, OperationalError, PostgresUnavailable):
            pass  # the peer is gone or frozen: closing the socket is all that is left
        finally:
            self._flushed()
            await self._connection.close()

    async def _say_goodbye(self) -> None:
        """Within a transaction a walsender hears us only while it can't send: so it is read with pauses."""
        pgconn = self._pgconn
        while pgconn.put_copy_end() == 0:
            await self._wait(write=True)
        while pgconn.flush():
            await self._wait(write=True)
        while True:
            length, _ = self.frame(1)
            if length < 0:
                break
            if length == 0:
                await asyncio.sleep(_STUCK)
                await self.readable()
                self.receive()
        # An error comes as a whole; after its CopyDone a server that shuts down says no more.
        self.taken = bool(pgconn.is_busy()) or _in_order(pgconn.get_result())


def _in_order(result: PGresult | None) -> bool:
    return result is not None and result.status == ExecStatus.COMMAND_OK
