"""What a pooler such as PgBouncer is to a client: it gives process ids of its own, and may refuse replication."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from types import TracebackType

_NO_ENCRYPTION = (80877103, 80877104)
PID = 424_242


class Pooler:
    """Stands before a PostgreSQL server on a port of 127.0.0.1; a context manager."""

    def __init__(self, upstream: tuple[str, int], *, replication: bool = False) -> None:
        """`replication`: pass on connections for replication, as newer poolers do."""
        self.upstream = upstream
        self.replication = replication
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Pooler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A shutdown wakes the thread that waits in accept; a close alone doesn't.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), client:
            start = self._start_of(client)
            if b"replication\0" in start and not self.replication:
                fields = b"SERROR\0C08P01\0Munsupported startup parameter: replication\0\0"
                client.sendall(b"E" + struct.pack("!i", len(fields) + 4) + fields)
                return
            with socket.create_connection(self.upstream, 10) as server:
                server.settimeout(None)
                server.sendall(start)
                threading.Thread(target=_copy, args=(client, server), daemon=True).start()
                self._rename(server, client)
                _copy(server, client)

    def _start_of(self, client: socket.socket) -> bytes:
        """The start-up packet, after a refusal of encryption."""
        while True:
            head = _exactly(client, 8)
            length, code = struct.unpack("!ii", head)
            if code not in _NO_ENCRYPTION:
                return head + _exactly(client, length - 8)
            client.sendall(b"N")

    def _rename(self, server: socket.socket, client: socket.socket) -> None:
        """Pass on messages up to BackendKeyData, which gets another process id."""
        while True:
            head = _exactly(server, 5)
            kind, length = struct.unpack("!ci", head)
            body = _exactly(server, length - 4)
            if kind == b"K":
                client.sendall(head + struct.pack("!i", PID) + body[4:])
                return
            client.sendall(head + body)


def _exactly(end: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = end.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
