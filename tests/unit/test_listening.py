"""Where HTTP listens: an address as it is, a name by the resolver."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import cast

import pytest

from cdc_outbox.watch import server
from cdc_outbox.watch.answers import Answers
from cdc_outbox.watch.server import Counter, _addresses


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("0.0.0.0", socket.AF_INET), ("::1", socket.AF_INET6)],
)
def test_an_address_needs_no_resolver(host: str, family: int) -> None:
    before = threading.active_count()

    async def threads() -> int:
        assert list(await _addresses(host, 9464)) == [(family, (host, 9464))]
        return threading.active_count()

    assert asyncio.run(threads()) == before


def test_a_name_is_resolved() -> None:
    assert (socket.AF_INET, ("127.0.0.1", 9464)) in asyncio.run(_addresses("localhost", 9464))


def test_a_name_that_is_none_is_an_error_of_the_system() -> None:
    with pytest.raises(socket.gaierror):
        asyncio.run(_addresses("no-such-host.invalid", 9464))


ELSEWHERE = (socket.AF_INET6, ("2001:db8::1", 0))
"""An address of documents, which no machine has."""


def test_an_address_that_this_machine_has_not_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, tuple[str, int]]] = [ELSEWHERE, (socket.AF_INET, ("127.0.0.1", 0))]

    async def resolved(*_: object) -> list[tuple[int, tuple[str, int]]]:
        return found

    async def listens() -> None:
        counter = Counter(cast("Answers", None))
        await counter.open_at("localhost", 0)
        counter.close()
        found.pop()
        with pytest.raises(OSError, match=r"assign requested address|not supported"):
            await Counter(cast("Answers", None)).open_at("localhost", 0)

    monkeypatch.setattr(server, "_addresses", resolved)
    asyncio.run(listens())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_it_listens_there(host: str) -> None:
    async def taken() -> None:
        counter = Counter(cast("Answers", None))
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(OSError, match="in use"):
                await counter.open_at(host, port)
        await counter.open_at(host, port)
        with socket.create_connection(("127.0.0.1", port)):
            pass
        counter.close()

    asyncio.run(taken())


class _Answering:
    """Answers, as far as they matter here."""

    def answer(self, head: bytes) -> bytes:
        return head


@pytest.mark.parametrize("said", [b"", b"GET /livez HTTP/1.1\r\nX: "], ids=["silent", "never done"])
def test_a_crowd_that_says_nothing_makes_room_soon(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has waited for his turn has spoken by then; so whoever hasn't needs no long time to."""
    monkeypatch.setattr(server, "_CONNECTIONS", 4)

    async def asked() -> float:
        loop, counter = asyncio.get_running_loop(), Counter(cast("Answers", _Answering()))
        await counter.open_at("127.0.0.1", 0)
        address = counter._sockets[0].getsockname()
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(12)]
            for each in crowd:
                each.sendall(said)
            began, probe = loop.time(), stack.enter_context(socket.create_connection(address))
            probe.setblocking(False)
            await loop.sock_sendall(probe, b"a probe\r\n\r\n")
            assert await loop.sock_recv(probe, 100) == b"a probe"
            took = loop.time() - began
        counter.close()
        return took

    assert asyncio.run(asked()) < 4, "a crowd of three times as many as there may be"
