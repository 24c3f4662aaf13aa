"""Passwords and tokens by Amazon's IAM: signed here, with planted credentials, and held against Amazon's own SDK."""

from __future__ import annotations

import asyncio
import base64
import datetime
import subprocess
import sys
from collections.abc import Callable, Iterator
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import botocore.session
import pytest
from aiokafka.errors import KafkaError

from cdc_outbox import aws, hook
from cdc_outbox.errors import ConfigError, PostgresUnavailable, Unavailable
from cdc_outbox.kafka.options import TokenHook
from cdc_outbox.postgres import password
from cdc_outbox.postgres.refusal import explain
from tests.servers.cache import CHECKOUT

HOST = "app.abcdefghijkl.eu-central-1.rds.amazonaws.com"
PLANTED = {
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00",
    "AWS_SECRET_ACCESS_KEY": "planted/secret+key",
    "AWS_SESSION_TOKEN": "planted/session+token==",
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine of Amazon's SDK with nothing on it, neither files nor the service that instances have."""
    for name in (*PLANTED, "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ROLE_ARN",
                 "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                 "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    aws._session.cache_clear()
    yield monkeypatch
    aws._session.cache_clear()


@pytest.fixture
def planted(machine: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The same with credentials in its variables."""
    for name, value in PLANTED.items():
        machine.setenv(name, value)
    return machine


def ask_rds(host: str = HOST) -> str:
    asked = {"host": host, "port": "5432", "user": "outbox_relay"}
    return asyncio.run(password.ask("cdc_outbox.aws:rds", asked, within=10))


def scope(query: dict[str, list[str]]) -> list[str]:
    """Region and service that a token is signed for."""
    return query["X-Amz-Credential"][0].split("/")[2:4]


@pytest.mark.usefixtures("planted")
def test_a_password_for_rds() -> None:
    where, _, query = ask_rds().partition("/?")
    assert where == f"{HOST}:5432"
    fields = parse_qs(query, strict_parsing=True)
    assert fields["Action"] == ["connect"]
    assert fields["DBUser"] == ["outbox_relay"]
    assert fields["X-Amz-Expires"] == ["900"]
    assert fields["X-Amz-Security-Token"] == [PLANTED["AWS_SESSION_TOKEN"]]
    assert fields["X-Amz-Credential"][0].startswith(PLANTED["AWS_ACCESS_KEY_ID"])
    assert scope(fields) == ["eu-central-1", "rds-db"]
    assert len(fields["X-Amz-Signature"][0]) == 64


@pytest.mark.parametrize("user", ["outbox_relay", "a relay/ü+1&2"])
def test_it_is_what_amazons_sdk_signs(planted: pytest.MonkeyPatch, user: str) -> None:
    now = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    planted.setattr(botocore.auth, "get_current_datetime", lambda *_, **__: now.replace(tzinfo=None))
    session = botocore.session.Session()  # type: ignore[no-untyped-call]
    client = session.create_client("rds", region_name="eu-central-1")
    theirs = client.generate_db_auth_token(HOST, 5432, user)
    assert "X-Amz-Date=20260102T030405Z" in theirs
    assert aws.rds(host=HOST, port="5432", user=user) == theirs


@pytest.mark.parametrize(
    ("host", "region"),
    [
        (HOST.upper(), "eu-central-1"),
        ("app.cluster-abcdefghijkl.us-gov-west-1.rds.amazonaws.com", "us-gov-west-1"),
        ("app.abcdefghijkl.rds.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("db.example.org", "ap-south-1"),
    ],
)
def test_the_region_is_that_of_the_name_else_the_machines(
    planted: pytest.MonkeyPatch, host: str, region: str
) -> None:
    planted.setenv("AWS_REGION", "ap-south-1")
    query = urlsplit(f"https://{ask_rds(host)}").query
    assert scope(parse_qs(query)) == [region, "rds-db"]


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_a_token_for_msk(planted: pytest.MonkeyPatch, variable: str) -> None:
    planted.setenv(variable, "eu-west-1")
    token = asyncio.run(TokenHook(hook.find("setting", "cdc_outbox.aws:msk", answers="token")).token())
    url = urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    assert url.netloc == "kafka.eu-west-1.amazonaws.com"
    fields = parse_qs(url.query)
    assert fields["Action"] == ["kafka-cluster:Connect"]
    assert fields["X-Amz-Security-Token"] == [PLANTED["AWS_SESSION_TOKEN"]]
    assert scope(fields) == ["eu-west-1", "kafka-cluster"]


def test_without_credentials_it_is_tried_again(machine: pytest.MonkeyPatch) -> None:
    machine.setenv("AWS_REGION", "eu-west-1")
    with pytest.raises(Unavailable, match="finds no credentials"):
        aws.msk()
    with pytest.raises(KafkaError, match="finds no credentials"):
        asyncio.run(TokenHook(aws.msk).token())
    with pytest.raises(PostgresUnavailable, match="finds no credentials") as raised:
        ask_rds()
    assert "AWS_PROFILE" in raised.value.next
    for name, value in PLANTED.items():
        machine.setenv(name, value)
    assert ask_rds()


@pytest.mark.usefixtures("planted")
@pytest.mark.parametrize("ask", [aws.msk, lambda: ask_rds("db.example.org")], ids=["Kafka", "PostgreSQL"])
def test_without_a_region_it_is_a_wrong_setting(ask: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match="the region isn't given") as raised:
        ask()
    assert raised.value.next == "export AWS_REGION=eu-central-1"


def test_credentials_are_asked_for_once(planted: pytest.MonkeyPatch) -> None:
    """A role's come from a service, which need not hear of each attempt to connect."""
    ask_rds()
    for name in PLANTED:
        planted.delenv(name)
    assert ask_rds()


@pytest.mark.usefixtures("planted")
def test_a_token_that_is_refused_is_not_printed() -> None:
    token = ask_rds()
    failure = ValueError(f'FATAL:  PAM authentication failed for user "outbox_relay" {token}')
    parameters = {"host": HOST, "user": "outbox_relay", "password": token}
    error = asyncio.run(explain(failure, parameters, provider="cdc_outbox.aws:rds"))
    assert "refuses the password that cdc_outbox.aws:rds gives" in str(error)
    assert token not in str(error)
    assert PLANTED["AWS_SESSION_TOKEN"] not in str(error)


def test_without_the_extra_the_next_step_is_to_install_it() -> None:
    script = """
import sys
sys.modules["botocore.auth"] = None
from cdc_outbox import hook
from cdc_outbox.errors import ConfigError
try:
    hook.find("setting", "cdc_outbox.aws:rds", answers="password")
except ConfigError as error:
    print(error.next)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "in the checkout: pip install '.[aws]'\n"
