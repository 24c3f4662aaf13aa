"""The aiokafka client as we set it up, and its deadlines against a server that accepts and never answers."""

from __future__ import annotations

import asyncio
import inspect
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import (
    AuthenticationFailedError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
)

from cdc_outbox.errors import ConfigError, KafkaUnavailable
from cdc_outbox.kafka import bearer, client, options, refusal
from tests.servers.security import certificates
from tests.unit.kafka_settings import settings

EVERYTHING = {
    "security__protocol": "SASL_SSL",
    "sasl__mechanism": "SCRAM-SHA-512",
    "sasl__username": "u",
    "sasl__password": "p",
    "client__id": "me",
    "request__timeout__ms": "1234",
    "retry__backoff__ms": "55",
    "metadata__max__age__ms": "7000",
    "connections__max__idle__ms": "8000",
    "ssl__endpoint__identification__algorithm": "none",
}


def test_options_are_those_of_the_client() -> None:
    arguments = options.connection(settings("a:1, b:2", **EVERYTHING))
    for constructor in (AIOKafkaClient, AIOKafkaProducer):
        assert arguments.keys() <= inspect.signature(constructor).parameters.keys()
    assert arguments["bootstrap_servers"] == ["a:1", "b:2"]
    assert arguments["security_protocol"] == "SASL_SSL"
    assert arguments["sasl_mechanism"] == "SCRAM-SHA-512"
    assert (arguments["sasl_plain_username"], arguments["sasl_plain_password"]) == ("u", "p")
    assert arguments["client_id"] == "me"
    assert arguments["request_timeout_ms"] == 1234
    assert arguments["retry_backoff_ms"] == 55
    assert arguments["metadata_max_age_ms"] == 7000
    assert arguments["connections_max_idle_ms"] == 8000
    assert arguments["ssl_context"].verify_mode is ssl.CERT_REQUIRED
    assert not arguments["ssl_context"].check_hostname


def test_plain_connections_have_no_proof() -> None:
    arguments = options.connection(settings())
    assert arguments["security_protocol"] == "PLAINTEXT"
    assert not {name for name in arguments if name.startswith(("sasl", "ssl"))}


@pytest.mark.parametrize("compression", [None, "none", "gzip", "snappy", "lz4", "zstd"])
def test_a_producer_that_keeps_the_promise(compression: str | None) -> None:
    async def make() -> None:
        given = {} if compression is None else {"compression__type": compression}
        producer: Any = client.producer(settings(**given))
        assert producer._txn_manager is not None, "it must be idempotent"
        assert producer._sender._acks == -1
        codec = producer._message_accumulator._compression_type
        assert codec == options.codec(settings(**given))
        assert producer._message_accumulator._linger_time == 0
        await producer.stop()

    asyncio.run(make())


def test_a_compression_whose_library_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AIOKafkaProducer._COMPRESSORS, "zstd", (lambda: False, 4))

    async def make() -> None:
        client.producer(settings(compression__type="zstd"))

    with pytest.raises(ConfigError, match="zstd, and its library isn't installed") as raised:
        asyncio.run(make())
    assert raised.value.next == "in the checkout: pip install '.[compression]'"


def test_a_request_has_a_limit() -> None:
    assert options.request_size(settings()) == options.REQUEST_BYTES
    assert options.request_size(settings(max__request__size="5000")) == 5000


def test_batches_are_never_larger_than_a_request() -> None:
    assert options.batch_size(settings()) == options.BATCH_BYTES
    assert options.batch_size(settings(batch__size="1000")) == 1000
    assert options.batch_size(settings(max__request__size="5000")) == 5000
    assert options.max_request_size(settings()) == 1_048_576


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"security__protocol": "SSL", "ssl__ca__location": "/no/such.pem"}, "/no/such.pem, which can't be"),
        ({"security__protocol": "SSL", "ssl__ca__location": __file__}, "can't be used"),
        (
            {"security__protocol": "SSL", "ssl__certificate__location": "/no/such.pem"},
            "ssl.certificate.location is /no/such.pem",
        ),
    ],
)
def test_options_that_cant_work(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as raised:
        options.connection(settings(**given))
    assert raised.value.next


def test_a_key_with_a_password_is_never_asked_for_on_the_terminal(tmp_path: Path) -> None:
    import subprocess

    home = certificates()
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "pkey", "-in", home / "relay.key", "-aes256", "-passout", "pass:open", "-out", locked],
        check=True,
        capture_output=True,
    )
    given = {
        "security__protocol": "SSL",
        "ssl__certificate__location": str(home / "relay.pem"),
        "ssl__key__location": str(locked),
    }
    for wrong in ({}, {"ssl__key__password": "shut"}):
        with pytest.raises(ConfigError, match="can't be used"):
            options.connection(settings(**given, **wrong))
    options.connection(settings(**given, ssl__key__password="open"))


def plain_token() -> str:
    return "plain"


async def waiting_token() -> str:
    return "waiting"


class Tokens:
    @staticmethod
    def inner() -> str:
        return "inner"


NOT_CALLABLE = 1


@pytest.mark.parametrize(
    ("hook", "token"), [("plain_token", "plain"), ("waiting_token", "waiting"), ("Tokens.inner", "inner")]
)
def test_token_hooks(hook: str, token: str) -> None:
    arguments = options.connection(
        settings(
            security__protocol="SASL_PLAINTEXT",
            sasl__mechanism="OAUTHBEARER",
            sasl__oauthbearer__token__provider=f"{__name__}:{hook}",
        )
    )
    assert asyncio.run(arguments["sasl_oauth_token_provider"].token()) == token


@pytest.mark.parametrize(("answer", "ends"), [(b"", True), (b'{"status":"invalid_token"}', False)])
def test_a_broker_that_has_something_against_a_token_is_heard_out(answer: bytes, ends: bool) -> None:
    async def talk() -> list[object]:
        proof = bearer.Bearer(sasl_oauth_token_provider=options.TokenHook(plain_token))
        return [await proof.step(payload) for payload in (None, answer, answer)]

    first, second, third = asyncio.run(talk())
    assert first == (b"n,,\x01auth=Bearer plain\x01\x01", True)
    assert second == (None if ends else (b"\x01", True))
    assert third is None


@pytest.mark.parametrize("hook", ["no_such_module:x", f"{__name__}:nothing", f"{__name__}:NOT_CALLABLE"])
def test_token_hooks_that_arent_there(hook: str) -> None:
    with pytest.raises(ConfigError, match=r"token\.provider"):
        options.connection(
            settings(
                security__protocol="SASL_PLAINTEXT",
                sasl__mechanism="OAUTHBEARER",
                sasl__oauthbearer__token__provider=hook,
            )
        )


def test_a_token_hook_doesnt_hold_up_the_loop() -> None:
    async def meanwhile() -> int:
        turns = 0
        asked = threading.Event()

        def slow() -> str:
            asked.wait(10)
            return "t"

        waiting = asyncio.create_task(options.TokenHook(slow).token())
        while not waiting.done():
            turns += 1
            if turns > 3:
                asked.set()
            await asyncio.sleep(0.001)
        assert await waiting == "t"
        return turns

    assert asyncio.run(meanwhile()) > 3


def test_a_token_hook_that_hangs_holds_up_no_end() -> None:
    asked, free = threading.Event(), threading.Event()

    def hangs() -> str:
        asked.set()
        free.wait(60)
        return "t"

    async def given_up() -> None:
        waiting = asyncio.create_task(options.TokenHook(hangs).token())
        while not asked.is_set():
            await asyncio.sleep(0.001)
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=10)
        assert waiting.cancelled()

    try:
        began = time.monotonic()
        asyncio.run(given_up())
        assert time.monotonic() - began < 10
        [thread] = [each for each in threading.enumerate() if each.name == "hook"]
        assert thread.daemon, "the interpreter would wait for it"
    finally:
        free.set()
    thread.join(10)
    assert not thread.is_alive(), "its answer comes when the loop is closed"


@pytest.mark.parametrize("ending", [SystemExit, StopIteration, KeyboardInterrupt])
def test_a_token_hook_that_ends_its_thread_fails_as_others(ending: type[BaseException]) -> None:
    def ends() -> str:
        raise ending

    with pytest.raises(KafkaError, match="the token provider failed"):
        asyncio.run(options.TokenHook(ends).token())


def test_a_token_hook_that_fails_tells_no_secret() -> None:
    def broken() -> str:
        raise ValueError("secret")

    with pytest.raises(KafkaError, match="ValueError") as raised:
        asyncio.run(options.TokenHook(broken).token())
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "refuses"),
    [
        (SaslAuthenticationFailed(), True),
        (AuthenticationFailedError(), True),
        (ssl.SSLCertVerificationError("x"), True),
        (ssl.SSLError("wrong version"), True),
        (ssl.SSLEOFError("eof"), False),
        (KafkaConnectionError(), False),
        (ConnectionRefusedError(), False),
        (TimeoutError(), False),
    ],
)
def test_what_a_refusal_is(error: Exception, refuses: bool) -> None:
    assert refusal.is_refusal(error) is refuses


@asynccontextmanager
async def server(*, silent: bool) -> AsyncIterator[str]:
    """A server that accepts and says nothing, or hangs up at once; its address."""
    writers: list[asyncio.StreamWriter] = []

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if silent:
            await reader.read()
        writer.close()

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        listening.close()
        for writer in writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def test_a_start_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "START_LIMIT", 0.2)
    monkeypatch.setattr(client, "PROBE_LIMIT", 0.1)

    async def begin() -> None:
        async with server(silent=True) as address:
            producer = client.producer(settings(address))
            with pytest.raises(KafkaUnavailable, match=f"{address} doesn't answer"):
                await client.start(producer, settings(address))
            began = time.monotonic()
            await client.stop(producer, within=0.2)
            assert time.monotonic() - began < 2

    asyncio.run(begin())


def test_a_stop_is_bounded_whatever_the_client_does() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    class Stuck:
        def __init__(self, close: Callable[[], Any]) -> None:
            self.stop = forever
            self._sender = self._message_accumulator = object()
            self.client = type("C", (), {"close": staticmethod(close)})

    async def broken() -> None:
        raise KafkaConnectionError("no node")

    async def end() -> None:
        for close in (forever, broken):
            began = time.monotonic()
            stuck: Any = Stuck(close)
            await client.stop(stuck, within=0.1)
            assert time.monotonic() - began < 2

    asyncio.run(end())


def test_reasons_are_told_server_by_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PROBE_LIMIT", 0.5)
    monkeypatch.setattr(client, "START_LIMIT", 0.5)

    async def begin() -> None:
        async with server(silent=True) as silent, server(silent=False) as closing:
            bootstrap = f"127.0.0.1:1,{silent},{closing}"
            producer = client.producer(settings(bootstrap))
            with pytest.raises(KafkaUnavailable) as raised:
                await client.start(producer, settings(bootstrap))
            await client.stop(producer, within=0.2)
        text = str(raised.value)
        assert text.startswith("no Kafka broker can be used: 127.0.0.1:1: connection refused, ")
        assert f"{silent} doesn't answer" in text
        assert text.endswith(f"{closing}: it closes the connection")

    asyncio.run(begin())


def test_a_name_of_several_addresses_that_all_fail_alike_has_one_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `localhost` has, by IPv4 and IPv6, on most machines."""

    def addresses(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)) for port in (1, 2)]

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    error = asyncio.run(client.probe("two.test", 1, settings("two.test:1"), within=5))
    assert isinstance(error, OSError)
    assert error.errno is None
    assert refusal.in_short(error) == "connection refused"


def test_who_named_no_broker_is_told_the_default() -> None:
    assert refusal.where_to_look(settings("kafka:9092"), "that they run") == "check that they run"
    assert refusal.where_to_look(settings(), "that they run") == (
        "localhost:9092 is the default; where the brokers are elsewhere: "
        "export CDC_OUTBOX_BOOTSTRAP_SERVERS=HOST:9092"
    )
