"""Answers over HTTP, small and hard to hurt.

One short request a connection, a deadline for each, and a bounded number of connections. At that bound those wait that
come, in the kernel's queue; and the one that has been here longest makes room, once it has had time to speak. So
slow clients can't keep a probe out, and many at once all get their answer. New ones are taken a few at a time, so that
the stream has its turns in between.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from cdc_outbox import log
from cdc_outbox.errors import SetupError
from cdc_outbox.settings.kind.address import host_port
from cdc_outbox.watch.http import is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from cdc_outbox.settings import HttpSettings
    from cdc_outbox.state import Status
    from cdc_outbox.watch.answers import Answers

_log = log.get(__name__)

_DEADLINE: Final = 5.0
_TIME_TO_SPEAK: Final = 2.0
_TIME_IN_A_CROWD: Final = 0.25
"""The same once as many have made room as there may be: it is no burst of scrapes, of which some are late by as much as
the network takes, and whoever has waited for his turn among those has spoken by then."""

_CROWD_IS_OVER: Final = 10.0
_HEAD_BYTES: Final = 8192
_CONNECTIONS: Final = 512
_QUEUE: Final = 4096
"""A short one drops the last word of a handshake: then who has long spoken comes late, and looks slow."""

_TAKEN_AT_ONCE: Final = 16
_PAUSE: Final = 0.02

_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""A name has an address that this machine hasn't: `localhost` in a container is `::1` too, with or without IPv6."""


@asynccontextmanager
async def serving(settings: HttpSettings, answers: Answers) -> AsyncIterator[None]:
    """Serve while the block runs.

    A taken default port is a warning, since a standby or a shard beside it is common; a port that was asked for is a
    SetupError.
    """
    if settings.listen is None:
        yield
        return
    host, port = settings.listen
    counter = Counter(answers)
    try:
        await counter.open_at(host, port)
        _log.info("http", host=host, port=port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        why = "the port is taken" if taken else error.strerror or error
        what = f"HTTP can't listen on {host_port(host, port)}: {why}"
        if settings.explicit or not taken:
            raise SetupError(
                what, next="choose another address with --http HOST:PORT, or --no-http"
            ) from error
        _log.warning(
            "no probes from this relay: the default port is taken, as by another relay on this machine",
            port=port,
            for_its_own="--http HOST:PORT",
        )
    else:
        if not is_loopback(host) and settings.token_file is None:
            _log.warning(
                "the status page is off: others than this machine may ask, and no token is set",
                host=host,
                to_have_it="name a file with a token as http.token_file",
            )
    try:
        yield
    finally:
        counter.close()


async def beat(status: Status) -> None:
    """Show that the event loop turns, and notice what has to be noticed when it begins."""
    while True:
        status.beat = time.monotonic()
        status.notice()
        await asyncio.sleep(1.0)


async def _addresses(host: str, port: int) -> Iterable[tuple[int, tuple[str, int]]]:
    """Family and address for each address of a host. Raises OSError.

    One that is an address already is spared the resolver, whose thread and tables would be 0.6 MB of memory for good.
    """
    with suppress(ValueError):
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        return [(family, (host, port))]
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return dict.fromkeys((family, (str(address[0]), int(address[1]))) for family, _, _, _, address in found)


class Counter:
    """Where connections are taken: it listens, and knows those that are open, the oldest first."""

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self._sockets: list[socket.socket] = []
        self._open: dict[asyncio.Transport, float] = {}
        self._greeting: set[asyncio.Task[object]] = set()
        self._pauses: set[asyncio.TimerHandle] = set()
        self._made_room, self._made_room_at = 0, 0.0

    async def open_at(self, host: str, port: int) -> None:
        """Listen at each address of the host that this machine has. Raises OSError, also where it has none."""
        loop = asyncio.get_running_loop()
        absent: OSError | None = None
        try:
            for family, address in await _addresses(host, port):
                try:
                    self._sockets.append(socket.create_server(address, family=family, backlog=_QUEUE))
                except OSError as error:
                    if error.errno not in _NOT_HERE:
                        raise
                    absent = error
            if absent is not None and not self._sockets:
                raise absent
        except OSError:
            self.close()
            raise
        for listening in self._sockets:
            listening.setblocking(False)
            loop.add_reader(listening, self._take, listening)

    def _take(self, listening: socket.socket) -> None:
        """Somebody is at the door."""
        loop = asyncio.get_running_loop()
        for _ in range(_TAKEN_AT_ONCE):
            if not self._has_room():
                return self._rest(listening)
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return None
            except OSError:
                # Out of descriptors: there may be some again, and the stream needs none.
                return self._rest(listening)
            connection.setblocking(False)
            greeting = loop.create_task(loop.connect_accepted_socket(lambda: Exchange(self), connection))
            self._greeting.add(greeting)
            greeting.add_done_callback(self._greeted)
        return None

    def _has_room(self) -> bool:
        if len(self._open) + len(self._greeting) < _CONNECTIONS:
            return True
        now = time.monotonic()
        if now - self._made_room_at > _CROWD_IS_OVER:
            self._made_room = 0
        patience = _TIME_TO_SPEAK if self._made_room < _CONNECTIONS else _TIME_IN_A_CROWD
        oldest, since = next(iter(self._open.items()), (None, 0.0))
        if oldest is None or now - since < patience:
            return False
        self._made_room, self._made_room_at = self._made_room + 1, now
        del self._open[oldest]
        oldest.abort()
        return True

    def _rest(self, listening: socket.socket) -> None:
        """Let them wait in the queue for a moment."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)

        def again() -> None:
            self._pauses.discard(pause)
            loop.add_reader(listening, self._take, listening)

        pause = loop.call_later(_PAUSE, again)
        self._pauses.add(pause)

    def _greeted(self, greeting: asyncio.Task[object]) -> None:
        self._greeting.discard(greeting)
        if not greeting.cancelled():
            greeting.exception()  # one that went at once

    def came(self, transport: asyncio.Transport) -> None:
        """A connection is open."""
        self._open[transport] = time.monotonic()

    def went(self, transport: asyncio.Transport) -> None:
        """A connection is over."""
        self._open.pop(transport, None)

    def close(self) -> None:
        """Listen no more, and end who is here."""
        loop = asyncio.get_running_loop()
        for pause in self._pauses:
            pause.cancel()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        for greeting in [*self._greeting]:
            greeting.cancel()
        for transport in [*self._open]:
            transport.abort()


class Exchange(asyncio.Protocol):
    """One request and its answer. Who is slow, over-long or gone is not worth a line in the log: it would be theirs."""

    _transport: asyncio.Transport
    _deadline: asyncio.TimerHandle

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._head = b""
        self._done = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what a TCP server hands over
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(_DEADLINE, transport.abort)
        self._counter.came(transport)

    def data_received(self, data: bytes) -> None:
        if self._done:
            return
        self._head += data
        head, end, _ = self._head.partition(b"\r\n\r\n")
        if len(head) > _HEAD_BYTES:
            self._transport.abort()
        elif end:
            self._done = True
            self._transport.write(self._counter.answers.answer(head))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._deadline.cancel()
        self._counter.went(self._transport)
