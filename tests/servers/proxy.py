"""A TCP proxy that misbehaves on request: what a network does to the relay, without root rights.

It runs an event loop in a thread of its own. Every method may be called from the test's thread and returns
when its effect holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tests.servers.process import free_port

T = TypeVar("T")
Address = tuple[str, int]

# SO_LINGER with a zero time makes close() send RST and forget what was unsent.
_RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Forwards a port of 127.0.0.1 to `upstream`, until told otherwise."""

    def __init__(self, upstream: Address) -> None:
        """Listen on `self.port` and forward to `upstream`, a host and a port."""
        self.port = free_port()
        self.upstream = upstream
        self.accepted = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self._delay = 0.0
        self._swallow = False
        self._trap: bytes | None = None
        self._open: dict[asyncio.Task[None], list[socket.socket]] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._loop = asyncio.new_event_loop()
        self._gate = asyncio.Event()
        self._gate.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()
        self._run(self._listen())

    @property
    def address(self) -> str:
        """`host:port`, as Kafka's clients want it."""
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        return len(self._open)

    def cut(self, client_port: int | None = None) -> None:
        """Reset every open connection, on both sides. New ones are welcome.

        `client_port`: only the one that comes from this port, as the server sees it.
        """
        self._run(self._cut(client_port))

    def freeze(self) -> None:
        """Forward nothing any more, in either direction, and close nothing.

        The kernels still acknowledge what they receive, so that no peer's TCP notices. A peer that closes
        isn't passed on either. New connections are accepted and frozen too.
        """
        self._run(self._freeze())

    def resume(self) -> None:
        """End `freeze`, `swallow_new` and `refuse_new`: go on with what was held back."""
        self._run(self._resume())

    def swallow_new(self) -> None:
        """Accept new connections and never answer them, as behind a silent firewall. Open ones go on."""
        self._swallow = True

    def swallow_from(self, word: bytes) -> None:
        """Forward nothing more from the client that sends `word` next, from that piece on, and close nothing."""
        self._trap = word

    def refuse_new(self) -> None:
        """Refuse new connections, as a machine without the server does. Open ones go on."""
        self._run(self._close_listener())

    def delay(self, seconds: float) -> None:
        """Hold each piece back for `seconds` in each direction; 0 ends it."""
        self._delay = seconds

    def retarget(self, upstream: Address) -> None:
        """Send new connections to another server, as a virtual IP that has moved. Open ones stay."""
        self.upstream = upstream

    def close(self) -> None:
        """End the proxy; its connections are reset."""
        if self._thread.is_alive():
            self._run(self._shut_down())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(10)
            self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        if self._listener is not None:
            return
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener = listener
        self._accepting = asyncio.ensure_future(self._accept(listener))

    async def _close_listener(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            self.accepted += 1
            sockets = [client]
            task = asyncio.ensure_future(self._serve(client, sockets))
            self._open[task] = sockets
            task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        for each in self._open.pop(task):
            each.close()

    async def _serve(self, client: socket.socket, sockets: list[socket.socket]) -> None:
        if self._swallow:
            await self._loop.create_future()
        server = socket.socket()
        sockets.append(server)
        for each in sockets:
            each.setblocking(False)
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await self._loop.sock_connect(server, self.upstream)
        except OSError:
            _reset(sockets)
            return
        halves = [
            asyncio.ensure_future(self._pump(client, server, upwards=True)),
            asyncio.ensure_future(self._pump(server, client, upwards=False)),
        ]
        try:
            await asyncio.gather(*halves)
        except OSError:
            _reset(sockets)
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)

    async def _pump(self, source: socket.socket, target: socket.socket, *, upwards: bool) -> None:
        while True:
            data = await self._loop.sock_recv(source, 1 << 16)
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._gate.wait()
            if upwards and self._trap is not None and self._trap in data:
                self._trap = None
                await self._loop.create_future()
            if not data:
                with contextlib.suppress(OSError):
                    target.shutdown(socket.SHUT_WR)
                return
            await self._loop.sock_sendall(target, data)
            if upwards:
                self.bytes_to_server += len(data)
            else:
                self.bytes_to_client += len(data)

    async def _cut(self, client_port: int | None = None) -> None:
        tasks = [
            task
            for task, sockets in self._open.items()
            if client_port is None or (len(sockets) > 1 and sockets[1].getsockname()[1] == client_port)
        ]
        for task in tasks:
            _reset(self._open[task])
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _freeze(self) -> None:
        self._gate.clear()

    async def _resume(self) -> None:
        self._swallow = False
        self._gate.set()
        await self._listen()

    async def _shut_down(self) -> None:
        await self._close_listener()
        await self._cut()


def _reset(sockets: list[socket.socket]) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
