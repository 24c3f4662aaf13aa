"""Liveness and readiness over HTTP, small and hard to hurt.

`/livez` is 200 while the loop beats; Kafka's or PostgreSQL's absence doesn't fail it, for a restart would cure neither.
`/readyz` is 200 while the relay streams or stands by. GET and HEAD only, short requests, a deadline for each, a
bounded number of connections of which the oldest makes room for a new one (so that slow clients can't keep a probe
out), and the Host checked on loopback, so that a page in a browser can't reach it. No request causes SQL, and what is
said has passed the redactor.
"""

from __future__ import annotations

import asyncio
import errno
import time
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import orjson

from cdc_outbox import log
from cdc_outbox.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from cdc_outbox.settings import HttpSettings
    from cdc_outbox.state import Status

_log = log.get(__name__)

MISSED_BEAT: Final = 10.0
"""Seconds without a turn of the event loop's heartbeat that make the process count as dead."""

_DEADLINE: Final = 5.0
_REQUEST_BYTES: Final = 8192
_CONNECTIONS: Final = 32
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@asynccontextmanager
async def serving(
    settings: HttpSettings, status: Status, redact: Callable[[str], str]
) -> AsyncIterator[None]:
    """Serve the probes while the block runs; `redact` takes secrets out of reasons.

    A taken default port is a warning, since a standby or a shard beside it is common; a port that was asked for is a
    SetupError.
    """
    if settings.listen is None:
        yield
        return
    host, port = settings.listen
    probes = Probes(status, redact, loopback=_is_loopback(host))
    beating = asyncio.create_task(_beat(status), name="heartbeat")
    server: asyncio.Server | None = None
    try:
        server = await asyncio.start_server(probes.handle, host, port, limit=_REQUEST_BYTES)
        _log.info("http", host=host, port=port)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        what = (
            f"HTTP can't listen on {host}:{port}: {'the port is taken' if taken else error.strerror or error}"
        )
        if settings.explicit or not taken:
            raise SetupError(
                what, next="choose another address with --http HOST:PORT, or --no-http"
            ) from error
        _log.warning(
            "no probes from this relay: the default port is taken, as by another relay on this machine",
            port=port,
            for_its_own="--http HOST:PORT",
        )
    try:
        yield
    finally:
        beating.cancel()
        if server is not None:
            server.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await server.wait_closed()


async def _beat(status: Status) -> None:
    while True:
        status.beat = time.monotonic()
        await asyncio.sleep(1.0)


class Probes:
    """The answers to `/livez` and `/readyz`."""

    def __init__(self, status: Status, redact: Callable[[str], str], *, loopback: bool) -> None:
        self._status = status
        self._redact = redact
        self._loopback = loopback
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request of one connection."""
        if len(self._open) >= _CONNECTIONS:
            next(iter(self._open)).transport.abort()
        self._open[writer] = None
        try:
            async with asyncio.timeout(_DEADLINE):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer(head))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass  # slow, over-long or gone: not worth a line in the log, which would be theirs to fill
        finally:
            del self._open[writer]
            writer.close()

    def answer(self, head: bytes) -> bytes:
        """The whole response to a request's head, a pure function of it and the status."""
        line, *headers = head.decode("latin-1").split("\r\n")
        words = line.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _response(400, {"error": "not an HTTP/1 request"}, body=True)
        method, target, _ = words
        body = method != "HEAD"
        if method not in ("GET", "HEAD"):
            return _response(405, {"error": "GET and HEAD only"}, body=True)
        if self._loopback and not _names_loopback(headers):
            return _response(403, {"error": "this Host is not served on loopback"}, body=body)
        path = target.partition("?")[0]
        if path == "/livez":
            alive = time.monotonic() - self._status.beat < MISSED_BEAT
            return _response(200 if alive else 503, {"status": "alive" if alive else "stuck"}, body=body)
        if path == "/readyz":
            state = self._status.state
            document = {"state": state.value, "reason": self._redact(self._status.reason)}
            return _response(200 if state.ready else 503, document, body=body)
        return _response(404, {"error": "there are /livez and /readyz"}, body=body)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _names_loopback(headers: list[str]) -> bool:
    """Whether each Host is ours. HTTP/1.0 clients send none; browsers always do."""
    named = (header.partition(":") for header in headers)
    hosts = [value.strip().lower() for name, _, value in named if name.strip().lower() == "host"]
    return all(
        _is_loopback(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        for host in hosts
    )


def _response(code: int, document: dict[str, str], *, body: bool) -> bytes:
    content = orjson.dumps(document) + b"\n"
    head = (
        f"HTTP/1.1 {code} {_REASONS[code]}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "Content-Security-Policy: default-src 'none'\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (content if body else b"")
