"""What a broker needs to demand proof of its clients, and what the clients need to give it.

A secure broker's plain listener stays open for the tests' own administration: whoever comes by it is a super
user. By every other listener a client is a user of `USERS` and may do what was allowed to that user.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from tests.servers.cache import run
from tests.servers.process import directory

Listener = Literal["SASL_PLAINTEXT", "SASL_SSL", "SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

LISTENERS: tuple[Listener, ...] = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
USERS: Mapping[str, str] = {"relay": 'relay\'s "own" secret', "stranger": "stranger-secret"}


@cache
def certificates() -> Path:
    """A directory with `ca.pem`, and for the server and each user `NAME.pem`, `NAME.key` and both in
    `NAME.all`.
    """
    home = directory("certificates-")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(
        ["openssl", "req", "-x509", *curve, "-days", "2", "-subj", "/CN=test authority",
         "-keyout", home / "ca.key", "-out", home / "ca.pem"],
        what="certificates",
    )  # fmt: skip
    (home / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", *USERS):
        run(
            ["openssl", "req", *curve, "-subj", f"/CN={name}", "-keyout", home / f"{name}.key",
             "-out", home / f"{name}.request"],
            what="certificates",
        )  # fmt: skip
        run(
            ["openssl", "x509", "-req", "-days", "2", "-in", home / f"{name}.request", "-CA", home / "ca.pem",
             "-CAkey", home / "ca.key", "-CAcreateserial", "-extfile", home / "names", "-out", home / f"{name}.pem"],
            what="certificates",
        )  # fmt: skip
        whole = (home / f"{name}.key").read_text() + (home / f"{name}.pem").read_text()
        (home / f"{name}.all").write_text(whole)
    return home


def server_settings() -> dict[str, str]:
    """The broker's settings for all LISTENERS, except their addresses."""
    home = certificates()
    users = "".join(f' user_{name}="{_quoted(password)}"' for name, password in USERS.items())
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(home / "server.all"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(home / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.ssl.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
    }
    package = "org.apache.kafka.common.security"
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.plain.sasl.jaas.config"] = f"{package}.plain.PlainLoginModule required{users};"
        for digest in ("256", "512"):
            settings[f"{prefix}.scram-sha-{digest}.sasl.jaas.config"] = (
                f"{package}.scram.ScramLoginModule required;"
            )
        settings[f"{prefix}.oauthbearer.sasl.jaas.config"] = (
            f'{package}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
        )
    return settings


def _quoted(text: str) -> str:
    # Once for the JAAS string, once more for the properties file.
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\\", "\\\\")


def client_settings(
    listener: Listener,
    mechanism: Mechanism = "SCRAM-SHA-512",
    user: str = "relay",
    *,
    password: str | None = None,
) -> dict[str, str]:
    """A client's settings, by the dotted names that librdkafka and the relay share."""
    home = certificates()
    settings: dict[str, str] = {"security.protocol": listener}
    if listener != "SASL_PLAINTEXT":
        settings["ssl.ca.location"] = str(home / "ca.pem")
    if listener == "SSL":
        settings["ssl.certificate.location"] = str(home / f"{user}.pem")
        settings["ssl.key.location"] = str(home / f"{user}.key")
    else:
        settings["sasl.mechanism"] = mechanism
        if mechanism != "OAUTHBEARER":
            settings["sasl.username"] = user
            settings["sasl.password"] = USERS[user] if password is None else password
    return settings


def unsecured_token(subject: str, seconds: int) -> str:
    """A token as the broker's unsecured validator takes it: claims without a signature."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + seconds})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return f"{encoded[0]}.{encoded[1]}."
