"""Where HTTP listens: an address as it is, a name by the resolver."""

from __future__ import annotations

import asyncio
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
