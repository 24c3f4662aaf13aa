"""Each way into a secured Kafka of `docs/how-to/connect-to-a-secured-kafka.md`, gone as it stands there.

The brokers' own tools aren't among the tests' jars: what the page's `kafka-acls.sh` grants an admin client grants.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integration.conftest import Database
from tests.servers.cache import CHECKOUT
from tests.servers.kafka import KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.process import free_port
from tests.servers.security import USERS, certificates, unsecured_token
from tests.servers.shell import FENCE, Running, Shell, blocks, shell_of_checkout

PAGE = (CHECKOUT / "docs" / "how-to" / "connect-to-a-secured-kafka.md").read_text()
BLOCKS = blocks(PAGE)
KEY_PASSWORD = "the key's own secret"


def test_each_block_is_marked_and_has_a_test() -> None:
    assert [*BLOCKS] == ["password", "file", "certificate", "token", "msk", "rights", "check"]
    assert len(FENCE.findall(PAGE)) == len(BLOCKS)


@pytest.fixture
def shell(database: Database, slot: str, tmp_path: Path) -> Shell:
    """A shell in a directory with the files that the page names, and an outbox with one row."""
    files = certificates()
    for name in ("ca.pem", "relay.pem"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    subprocess.run(
        ["openssl", "pkey", "-in", files / "relay.key", "-aes256", "-passout", f"pass:{KEY_PASSWORD}",
         "-out", tmp_path / "relay.key"],
        check=True,
    )  # fmt: skip
    (tmp_path / "key-password").write_text(f"{KEY_PASSWORD}\n")
    (tmp_path / "kafka-password").write_text(f"{USERS['relay']}\n")
    token = unsecured_token("relay", 600)
    (tmp_path / "tokens.py").write_text(f"def fetch():\n    return {token!r}\n")
    return shell_of_checkout(
        tmp_path,
        CDC_OUTBOX_DSN=database.dsn,
        CDC_OUTBOX_SLOT=slot,
        CDC_OUTBOX_LOG_FORMAT="text",
        CDC_OUTBOX_HTTP=f"127.0.0.1:{free_port()}",
    )


@pytest.fixture
def topic(shell: Shell, secure_kafka: KafkaBroker, topics: str) -> Iterator[str]:
    """A topic that the relay may write to by the page's command and no other, with one row on its way there."""
    name = f"{topics}secured"
    secure_kafka.create_topic(name)
    words = BLOCKS["rights"].replace("\\\n", " ").split()
    user, operation = (words[words.index(flag) + 1] for flag in ("--allow-principal", "--operation"))
    secure_kafka.allow(user.removeprefix("User:"), operation.lower(), name)
    shell.export(CDC_OUTBOX_OUTBOX_TOPIC=name)
    shell.run("cdc-outbox init --create-table")
    shell.run(
        'psql "$CDC_OUTBOX_DSN" -c "insert into outbox (aggregate_type, aggregate_id, event_type, payload)'
        " values ('order', '1', 'placed', '{}')\""
    )
    yield name
    secure_kafka.withdraw("relay", operation.lower(), name)


def relayed(
    shell: Shell, launch: Callable[[Shell, str], Running], secure_kafka: KafkaBroker, topic: str
) -> None:
    """`check`, as it stands there, brings the row to the topic, and no secret to the log."""
    doctor, start = BLOCKS["check"].splitlines()
    said = shell.run(doctor).stdout
    running = launch(shell, start)
    running.wait(lambda: read_all(secure_kafka.bootstrap, topic))
    assert running.terminate() == 0
    for secret in (USERS["relay"], KEY_PASSWORD):
        assert secret not in said + running.log.read_text()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_password(
    shell: Shell,
    launched: Callable[[Shell, str], Running],
    secure_kafka: KafkaBroker,
    topic: str,
    mechanism: str,
) -> None:
    assert mechanism in BLOCKS["password"]
    shell.export(KAFKA=secure_kafka.address("SASL_SSL"))
    shell.run(BLOCKS["password"].replace("MECHANISM=SCRAM-SHA-512", f"MECHANISM={mechanism}"))
    relayed(shell, launched, secure_kafka, topic)


def test_the_file(
    shell: Shell, launched: Callable[[Shell, str], Running], secure_kafka: KafkaBroker, topic: str
) -> None:
    (shell.home / "cdc-outbox.toml").write_text(BLOCKS["file"])
    shell.export(
        CDC_OUTBOX_BOOTSTRAP_SERVERS=secure_kafka.address("SASL_SSL"),
        CDC_OUTBOX_KAFKA_SASL_PASSWORD_FILE="kafka-password",
    )
    relayed(shell, launched, secure_kafka, topic)


def test_a_certificate(
    shell: Shell, launched: Callable[[Shell, str], Running], secure_kafka: KafkaBroker, topic: str
) -> None:
    shell.export(KAFKA=secure_kafka.address("SSL"))
    shell.run(BLOCKS["certificate"])
    relayed(shell, launched, secure_kafka, topic)


def test_a_token(
    shell: Shell, launched: Callable[[Shell, str], Running], secure_kafka: KafkaBroker, topic: str
) -> None:
    shell.export(KAFKA=secure_kafka.address("SASL_SSL"))
    shell.run(BLOCKS["token"])
    relayed(shell, launched, secure_kafka, topic)


def test_amazon_msk_with_iam(shell: Shell, secure_kafka: KafkaBroker, topic: str) -> None:
    """A broker that isn't Amazon's gets the token, and refuses it."""
    secret = "planted/secret+key"
    shell.export(
        KAFKA=secure_kafka.address("SASL_SSL"),
        CDC_OUTBOX_KAFKA_SSL_CA_LOCATION="ca.pem",
        AWS_ACCESS_KEY_ID="AKIAPLANTEDPLANTED00",
        AWS_SECRET_ACCESS_KEY=secret,
    )
    shell.run(BLOCKS["msk"])
    said = shell.run("cdc-outbox start --no-http", code=78).stderr
    assert "refuses us" in said
    assert secret not in said
