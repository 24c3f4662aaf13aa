"""Kafka's client options: their names, what is refused, and what has to come together."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_outbox.errors import ConfigError, UsageError
from cdc_outbox.settings import Settings, load
from cdc_outbox.settings.client import KINDS
from cdc_outbox.settings.kind.word import Choice


def load_client(*options: str, **environ: str) -> Settings:
    return load("start", {"kafka": options}, environ, Path("/nonexistent"))


def load_file(directory: Path, line: str) -> Settings:
    (directory / "cdc-outbox.toml").write_text(f"[kafka.client]\n{line}\n", encoding="utf-8")
    return load("start", {}, {}, directory)


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ("sasl.mechanisms=scram-sha-256", "sasl.mechanism", "SCRAM-SHA-256"),
        ("compression.codec=LZ4", "compression.type", "lz4"),
        ("message.max.bytes=2000000", "max.request.size", "2000000"),
        ("Client.ID=relay", "client.id", "relay"),
        ("ssl.endpoint.identification.algorithm=", "ssl.endpoint.identification.algorithm", "none"),
        ("acks=-1", "acks", "all"),
        ("request.required.acks=all", "acks", "all"),
        ("enable.idempotence=true", "enable.idempotence", "true"),
        ("linger.ms=0", "linger.ms", "0"),
        ("sasl.oauthbearer.token.provider=a.b:c", "sasl.oauthbearer.token.provider", "a.b:c"),
        ("sasl.username=a=b", "sasl.username", "a=b"),
    ],
)
def test_both_vocabularies(given: str, name: str, value: str) -> None:
    assert load_client(given).kafka.client == {name: value}


def test_what_goes_to_the_brokers_is_text_in_utf_8() -> None:
    with pytest.raises(UsageError, match=r"^--kafka sasl.password: it isn't text in UTF-8$"):
        load_client("sasl.password=p\udce9")
    with pytest.raises(ConfigError, match="it isn't text in UTF-8"):
        load_client(CDC_OUTBOX_KAFKA_CLIENT_ID="p\udce9")


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ("acks=1", "leave it out; it is all here"),
        ("acks=0", "leave it out; it is all here"),
        ("enable.idempotence=false", "leave it out; it is true here"),
        ("linger.ms=5", "leave it out; it is 0 here"),
        ("retries=3", "leave it out: the relay tries for ever, and skips nothing"),
        ("bootstrap.servers=a:1", "CDC_OUTBOX_BOOTSTRAP_SERVERS"),
        ("partitioner=random", "--partitioner"),
        ("sasl.jaas.config=x", "sasl.username"),
        ("transactional.id=x", "leave it out"),
    ],
)
def test_what_would_break_the_promise_is_refused(given: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_client(given)
    assert remedy in caught.value.next


def test_refused_in_the_environment_and_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="CDC_OUTBOX_KAFKA_ACKS is '1'"):
        load_client(CDC_OUTBOX_KAFKA_ACKS="1")
    (tmp_path / "cdc-outbox.toml").write_text(
        "[kafka.client]\nenable.idempotence = false\n", encoding="utf-8"
    )
    with pytest.raises(
        ConfigError, match=r"kafka\.client\.enable\.idempotence in cdc-outbox\.toml is 'False'"
    ):
        load("start", {}, {}, tmp_path)


def test_names_of_the_section_are_not_client_options() -> None:
    kafka = load_client(CDC_OUTBOX_KAFKA_PARTITIONER="crc32", CDC_OUTBOX_KAFKA_TOPICS_CREATE="yes").kafka
    assert kafka.partitioner == "crc32"
    assert kafka.topics.create is True
    assert kafka.client == {}


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (("security.protocol=SASL_SSL",), "sasl.mechanism isn't given"),
        (
            ("security.protocol=sasl_plaintext", "sasl.mechanism=PLAIN"),
            "sasl.username and sasl.password isn't given",
        ),
        (
            ("security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512", "sasl.username=u"),
            "and sasl.password isn't given",
        ),
        (("security.protocol=SASL_SSL", "sasl.mechanism=OAUTHBEARER"), "token.provider isn't given"),
    ],
)
def test_what_belongs_together(options: tuple[str, ...], missing: str) -> None:
    with pytest.raises(ConfigError, match=missing) as caught:
        load_client(*options)
    assert "CDC_OUTBOX_KAFKA_SASL_" in caught.value.next


@pytest.mark.parametrize("command", ["init", "drop", "health", "cleanup", "inbox"])
def test_who_never_reaches_kafka_needs_none_of_its_secrets(command: str, tmp_path: Path) -> None:
    (tmp_path / "cdc-outbox.toml").write_text(
        '[kafka.client]\n"security.protocol" = "SASL_SSL"\n"sasl.mechanism" = "PLAIN"\n"sasl.username" = "relay"\n'
    )
    unread = {"CDC_OUTBOX_KAFKA_SASL_PASSWORD_FILE": "not-here"}
    for environ in ({}, unread):
        assert load(command, {}, environ, tmp_path).kafka.client["sasl.username"] == "relay"
        with pytest.raises(ConfigError):
            load("start", {}, environ, tmp_path)


def test_options_without_effect_are_named() -> None:
    (notice,) = load_client("sasl.username=u", "ssl.ca.location=/ca", "client.id=x").notices
    assert notice.fields["options"] == "sasl.username, ssl.ca.location"
    assert not load_client("security.protocol=SSL", "ssl.ca.location=/ca").notices


def test_a_password_in_the_clear_is_named() -> None:
    options = ("security.protocol=SASL_PLAINTEXT", "sasl.username=u")
    variables = {"CDC_OUTBOX_KAFKA_SASL_PASSWORD": "p"}
    (notice,) = load_client(*options, "sasl.mechanism=PLAIN", **variables).notices
    assert "over the network as it is" in notice.text
    assert not load_client(*options, "sasl.mechanism=SCRAM-SHA-256", **variables).notices


@pytest.mark.parametrize(
    ("name", "typed", "meant"),
    [
        ("security.protocol", "SASLSSL", "SASL_SSL"),
        ("security.protocol", "sasl-ssl", "SASL_SSL"),
        ("security.protocol", "SASL_SLL", "SASL_SSL"),
        ("security.protocol", "SASLS", "SASL_SSL"),
        ("security.protocol", "TLS", "SSL"),
        ("security.protocol", "SASL_TLS", "SASL_SSL"),
        ("security.protocol", "PLAIN_TEXT", "PLAINTEXT"),
        ("sasl.mechanism", "SCRAM-SHA256", "SCRAM-SHA-256"),
        ("sasl.mechanism", "SCRAMSHA512", "SCRAM-SHA-512"),
        ("sasl.mechanism", "SHA-512", "SCRAM-SHA-512"),
        ("sasl.mechanism", "OAUTH", "OAUTHBEARER"),
        ("ssl.endpoint.identification.algorithm", "http", "https"),
        ("compression.type", "zst", "zstd"),
    ],
)
def test_a_mistyped_word_is_answered_with_what_it_was_to_be(
    tmp_path: Path, name: str, typed: str, meant: str
) -> None:
    variable = "CDC_OUTBOX_KAFKA_" + name.upper().replace(".", "_")
    with pytest.raises(UsageError, match=f"^--kafka {name} is '{typed}': it must be ") as by_flag:
        load_client(f"{name}={typed}")
    assert by_flag.value.next == f"write it like this: --kafka {name}={meant}"
    with pytest.raises(ConfigError, match=f"^{variable} is '{typed}': it must be ") as by_variable:
        load_client(**{variable: typed})
    assert by_variable.value.next == f"write it like this: {variable}={meant}"
    with pytest.raises(
        ConfigError, match=f"^kafka.client.{name} in cdc-outbox.toml is '{typed}': "
    ) as by_file:
        load_file(tmp_path, f'{name} = "{typed}"')
    line = f'{name} = "{meant}"'
    assert by_file.value.next == f"write it like this: {line}"
    if name == "compression.type":
        assert load_file(tmp_path, line).kafka.client == {name: meant}


@pytest.mark.parametrize(
    ("name", "typed"),
    [
        ("security.protocol", "PLAINTXT"),
        ("security.protocol", "PLAIN"),
        ("security.protocol", "SASL_PLAIN"),
        ("security.protocol", "SASL"),
        ("security.protocol", "secure"),
        ("sasl.mechanism", "PLAN"),
        ("sasl.mechanism", "PLAINTEXT"),
        ("sasl.mechanism", "SCRAM"),
        ("sasl.mechanism", "SCRAM-SHA-1"),
        ("sasl.mechanism", "GSSAPI"),
        ("ssl.endpoint.identification.algorithm", "non"),
    ],
)
def test_no_likeness_talks_anybody_into_less_protection(name: str, typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_client(f"{name}={typed}")
    choice = KINDS[name]
    assert isinstance(choice, Choice)
    assert caught.value.next == f"choose {', '.join(choice.values[:-1])} or {choice.values[-1]}"


def test_paths_are_shown_though_a_password_is_a_word_in_them() -> None:
    environ = {
        "CDC_OUTBOX_KAFKA_SASL_PASSWORD": "relay",
        "CDC_OUTBOX_DSN": "postgresql:///app?user=u&password=owner&sslkey=/pg/owner.key",
        "PGSSLROOTCERT": "/pg/relay.pem",
    }
    options = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=u")
    settings = load_client(*options, "ssl.ca.location=/kafka/relay.pem", **environ)
    said = "no /kafka/relay.pem, /pg/owner.key, /pg/relay.pem"
    assert settings.redactor.redact(f"{said} for relay and owner") == f"{said} for *** and ***"


def test_a_password_that_is_the_users_name_leaves_the_name_readable() -> None:
    options = ("security.protocol=SASL_SSL", "sasl.mechanism=PLAIN", "sasl.username=relay")
    settings = load_client(*options, CDC_OUTBOX_KAFKA_SASL_PASSWORD="relay")
    assert settings.redactor.redact("User:relay; sasl.password=relay") == "User:relay; sasl.password=***"
