"""Ways to prove to Kafka who we are, what happens when the proof fails, and compression."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exported without __all__
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from tests.integration.conftest import Database
from tests.integration.passage import Passage, last_words, payloads
from tests.servers.kafka import Kafka, KafkaBroker
from tests.servers.ledger import Writer, create_outbox, verify
from tests.servers.process import free_port
from tests.servers.security import USERS, Listener, Mechanism, certificates, client_settings, unsecured_token
from tests.servers.wait import eventually

Secured = Callable[..., Passage]

UNKNOWN = "(name or service not known|temporary failure in name resolution)"
"""What a resolver says of a name that there isn't; the second where it reaches no name server."""


@pytest.fixture
def secured(database: Database, secure_kafka: KafkaBroker, slot: str, topics: str) -> Secured:
    """Makes the passage by one of the secure listeners, with one row to relay to the topic `events`."""

    def make(listener: Listener, client: dict[str, str]) -> Passage:
        passage = Passage(
            *(database, secure_kafka, slot, topics), bootstrap=secure_kafka.address(listener), client=client
        )
        topic = passage.topic("events")
        secure_kafka.allow("relay", "write", topic)
        passage.table()
        passage.insert(topic, ("k", "v"))
        return passage

    return make


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("SSL", "PLAIN"),
        ("SASL_SSL", "PLAIN"),
        ("SASL_SSL", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ],
)
def test_ways_in(secured: Secured, listener: Listener, mechanism: Mechanism) -> None:
    passage = secured(listener, client_settings(listener, mechanism))
    done = passage.run()
    assert payloads(passage.read(f"{passage.topics}events")) == ["v"]
    assert USERS["relay"] not in done.stderr


@pytest.mark.parametrize("hook", ["plain", "waiting"])
def test_a_token_hook(secured: Secured, tmp_path: Path, hook: str) -> None:
    (tmp_path / "hooks.py").write_text(
        f"token = {unsecured_token('relay', 600)!r}\n"
        "def plain():\n    return token\n"
        "async def waiting():\n    return token\n"
    )
    passage = secured(
        "SASL_SSL",
        {**client_settings("SASL_SSL", "OAUTHBEARER"), "sasl.oauthbearer.token.provider": f"hooks:{hook}"},
    )
    passage.run(env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"})
    assert payloads(passage.read(f"{passage.topics}events")) == ["v"]


def test_a_stop_waits_for_no_token_hook_that_hangs(secured: Secured, tmp_path: Path) -> None:
    """The hook never answers, and nobody waits for it."""
    asked = tmp_path / "asked"
    (tmp_path / "hooks.py").write_text(
        "import pathlib, threading\n"
        f"def hangs():\n    pathlib.Path({str(asked)!r}).touch()\n    threading.Event().wait()\n"
    )
    passage = secured(
        "SASL_SSL",
        {**client_settings("SASL_SSL", "OAUTHBEARER"), "sasl.oauthbearer.token.provider": "hooks:hangs"},
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    with passage.relay("--drain", "2s", env=environment) as relay:
        eventually(asked.exists, 60, relay.text)
        code, seconds = relay.terminate()
        assert code == 0, relay.text()
        assert seconds < 10
        assert relay.records[-1]["event"] == "stopped"


def test_a_token_hook_that_fails(secured: Secured, tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text("def broken():\n    raise LookupError('the secret of secrets')\n")
    passage = secured(
        "SASL_SSL",
        {**client_settings("SASL_SSL", "OAUTHBEARER"), "sasl.oauthbearer.token.provider": "hooks:broken"},
    )
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
    done = passage.run("--fail-fast", env=environment, code=1)
    assert "LookupError" in last_words(done)[0]
    assert "the secret of secrets" not in done.stderr


@pytest.mark.parametrize(
    ("listener", "change", "complaint", "remedy"),
    [
        ("SASL_SSL", {"sasl.mechanism": "PLAIN", "sasl.password": "wrong-pw"}, "refuses us", "sasl.*"),
        ("SASL_SSL", {"sasl.password": "wrong-pw"}, "refuses us", "sasl.*"),
        ("SASL_SSL", {"sasl.username": "nobody"}, "refuses us", "sasl.*"),
        ("SASL_SSL", {"ssl.ca.location": "server.pem"}, "not trusted", "ssl.ca.location"),
        (
            "SASL_SSL",
            {"ssl.ca.location": "missing.pem"},
            "missing.pem, which can't be read",
            "ssl.ca.location",
        ),
    ],
    ids=["plain", "scram", "unknown user", "wrong authority", "no such file"],
)
def test_what_a_restart_cant_cure(
    secured: Secured, listener: Listener, change: dict[str, str], complaint: str, remedy: str
) -> None:
    change = {
        name: str(certificates() / value) if value.endswith(".pem") else value
        for name, value in change.items()
    }
    passage = secured(listener, {**client_settings(listener, "SCRAM-SHA-512"), **change})
    done = passage.run(code=78)
    error, next_step = last_words(done)
    assert complaint in error
    assert remedy in next_step
    assert "wrong-pw" not in done.stderr
    assert not passage.read(f"{passage.topics}events")


def test_a_key_that_is_being_replaced_holds_a_relay_that_runs(secured: Secured, tmp_path: Path) -> None:
    """What would end a start is waited for by who runs: the other half of it may be on its way."""
    whole, key = (certificates() / "relay.key").read_bytes(), tmp_path / "relay.key"
    key.write_bytes(whole)
    passage = secured("SSL", {**client_settings("SSL"), "ssl.key.location": str(key)})
    topic = f"{passage.topics}events"
    with passage.relay() as relay:
        relay.wait_state("streaming", timeout=60)
        key.write_bytes(whole[:100])
        since = len(relay.records)
        passage.sql(
            "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s",
            passage.slot,
        )
        relay.wait_for(
            lambda record: "the TLS files of [kafka.client] can't be used" in str(record.get("error")),
            60,
            since=since,
        )
        relay.wait_state("held")
        passage.insert(topic, ("k", "w"))
        key.write_bytes(whole)
        eventually(lambda: payloads(passage.read(topic)) == ["v", "w"], 60, relay.text)
        relay.wait_state("streaming")


def test_a_key_that_is_being_replaced_holds_a_relay_that_stands_by(secured: Secured, tmp_path: Path) -> None:
    """As PostgreSQL cuts all connections, which is when a standby is needed."""
    whole, key = (certificates() / "relay.key").read_bytes(), tmp_path / "relay.key"
    key.write_bytes(whole)
    passage = secured("SSL", {**client_settings("SSL"), "ssl.key.location": str(key)})
    topic = f"{passage.topics}events"
    with passage.relay() as first, passage.relay() as second:
        eventually(lambda: {first.state(), second.state()} == {"streaming", "standby"}, 60, second.text)
        key.write_bytes(whole[:100])

        def both_held() -> bool:
            states = {first.state(), second.state()}
            # One that took over meanwhile has a connection that wasn't cut.
            if states - {"connecting", "held"}:
                passage.sql(
                    "select pg_terminate_backend(pid) from pg_stat_activity where application_name = %s",
                    f"cdc-outbox/{passage.slot}",
                )
            return states == {"held"}

        eventually(both_held, 60, lambda: first.text() + second.text())
        passage.insert(topic, ("k", "w"))
        key.write_bytes(whole)

        def arrived() -> list[str]:  # the first comes twice where it wasn't confirmed before the cut
            return list(dict.fromkeys(payloads(passage.read(topic))))

        eventually(lambda: arrived() == ["v", "w"], 60, second.text)
        eventually(lambda: {first.state(), second.state()} == {"streaming", "standby"}, 60, second.text)


def test_a_certificate_for_another_name(secured: Secured) -> None:
    passage = secured("SASL_SSL", client_settings("SASL_SSL"))
    assert passage.bootstrap is not None
    passage.bootstrap = passage.bootstrap.replace("127.0.0.1", "127.1")
    *_, error, remedy = passage.run("--log-format", "text", code=78).stderr.splitlines()
    assert error.startswith("error: the certificate of Kafka at 127.1:")
    assert "is not trusted: " in error
    assert remedy == "next: name the server in kafka.bootstrap_servers as its certificate does"
    passage.run("--kafka", "ssl.endpoint.identification.algorithm=none")
    assert payloads(passage.read(f"{passage.topics}events")) == ["v"]


def test_no_broker_and_fail_fast(database: Database, kafka: Kafka, slot: str, topics: str) -> None:
    passage = Passage(database, kafka, slot, topics).table()
    passage.bootstrap = f"127.0.0.1:{free_port()},no-such-host.invalid:9092"
    done = passage.run("--fail-fast", "--log-format", "text", code=1)
    *_, error, remedy = done.stderr.splitlines()
    assert error.startswith("error: no Kafka broker can be used: 127.0.0.1:")
    assert re.search(f"connection refused, no-such-host.invalid:9092: {UNKNOWN}$", error)
    assert remedy == "next: check kafka.bootstrap_servers, security.protocol, and that the brokers run"
    assert "library message" not in done.stderr


def test_a_host_that_nobody_knows(database: Database, kafka: Kafka, slot: str, topics: str) -> None:
    passage = Passage(database, kafka, slot, topics).table()
    passage.bootstrap = "no-such-host.invalid:9092"
    done = passage.run("--fail-fast", "--log-format", "text", code=1)
    *_, error, remedy = done.stderr.splitlines()
    assert re.fullmatch(f"error: no Kafka broker can be used: no-such-host.invalid:9092: {UNKNOWN}", error), (
        error
    )
    assert remedy == "next: check the names in kafka.bootstrap_servers: getent hosts no-such-host.invalid"
    assert "library message" not in done.stderr


@pytest.mark.parametrize(
    ("listener", "protocol"), [("SASL_SSL", "PLAINTEXT"), ("SASL_PLAINTEXT", "SASL_SSL")]
)
def test_the_wrong_protocol(secured: Secured, listener: Listener, protocol: Listener) -> None:
    """The broker hangs up without a reason, as one does that is being stopped: so it is waited for."""
    passage = secured(listener, {**client_settings("SASL_SSL"), "security.protocol": protocol})
    error, remedy = last_words(passage.run("--fail-fast", code=1))
    assert f"no Kafka broker can be used: {passage.bootstrap}: " in error
    assert "security.protocol" in remedy


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_compression_arrives_readable(
    database: Database, kafka: Kafka, slot: str, topics: str, compression: str
) -> None:
    passage = Passage(database, kafka, slot, topics).table()
    topic = passage.topic("compressed")
    sent = [f"{n:05} " + "abcdefgh" * (n % 50) for n in range(3000)]
    passage.insert(topic, *(("k", text) for text in sent))
    passage.run("--kafka", f"compression.type={compression}")
    assert payloads(passage.read(topic)) == sent


@pytest.mark.patient
def test_sessions_that_the_broker_ends_are_routine(
    database: Database,
    make_kafka: Callable[..., KafkaBroker],
    slot: str,
    topics: str,
    make_writer: Callable[..., Writer],
    outbox_topic: str,
) -> None:
    """A broker hangs up on who doesn't prove himself again in time, as it does when a token ends."""
    broker = make_kafka(secure=True, settings={"connections.max.reauth.ms": "2000"})
    create_outbox(database.dsn)
    passage = Passage(
        *(database, broker, slot, topics),
        bootstrap=broker.address("SASL_SSL"),
        client=client_settings("SASL_SSL", "SCRAM-SHA-256"),
    ).init()
    broker.create_topic(outbox_topic, 2)
    broker.allow("relay", "write", outbox_topic)
    with passage.relay() as relay:
        relay.wait_state("streaming")
        writer = make_writer(database.dsn, rate=20).start()
        writer.wait_written(160)
        committed = writer.stop()
        eventually(lambda: len(passage.read(outbox_topic)) >= len(committed), 60, relay.text)
        assert relay.terminate()[0] == 0
        events = [record.get("event") for record in relay.records]
        assert not {"waiting", "held"} & {*events}, relay.text()
        assert events.count("streaming") == 1
    assert not verify(committed, passage.read(outbox_topic)).duplicates


def set_password(broker: KafkaBroker, user: str, password: str) -> None:
    information = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, information, password.encode())
    ]
    admin = broker.admin()
    for done in admin.alter_user_scram_credentials(changes).values():
        done.result(30)


def test_a_password_that_changes_while_we_run(secured: Secured, secure_kafka: KafkaBroker) -> None:
    """It holds a relay that has streamed, rather than end it: credentials come back as rights do."""
    passage = secured("SASL_SSL", client_settings("SASL_SSL", "SCRAM-SHA-256", "stranger"))
    topic = f"{passage.topics}events"
    secure_kafka.allow("stranger", "write", topic)
    inserted = time.monotonic()

    def held() -> bool:
        nonlocal inserted
        # The connection ends after a second without work; the next one has to prove itself again.
        if time.monotonic() - inserted > 2:
            passage.insert(topic, ("k", "w"))
            inserted = time.monotonic()
        return relay.state() == "held"

    with passage.relay("--kafka", "connections.max.idle.ms=1000") as relay:
        relay.wait_state("streaming")
        eventually(lambda: payloads(passage.read(topic)) == ["v"], 60, relay.text)
        set_password(secure_kafka, "stranger", "changed")
        try:
            eventually(held, 60, relay.text)
            code, body = relay.get("/readyz")
        finally:
            set_password(secure_kafka, "stranger", USERS["stranger"])
        assert code == 503, body
        relay.wait_state("streaming")
        assert relay.terminate()[0] == 0
    passage.run()
    [(written,)] = passage.sql("select count(*) from outbox")
    assert payloads(passage.read(topic)) == ["v", *["w"] * (written - 1)]
    secure_kafka.withdraw("stranger", "write", topic)
