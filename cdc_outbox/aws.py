"""Amazon's IAM instead of passwords: `cdc_outbox.aws:rds` for PostgreSQL, `cdc_outbox.aws:msk` for Kafka.

Both sign on this machine, for fifteen minutes, with the credentials that Amazon's SDK finds: variables, a profile, the
role of a pod, task or instance. These are kept for the process, and the SDK fetches new ones before they end.

https://docs.aws.amazon.com/AmazonRDS/latest/UserGuide/UsingWithRDS.IAMDBAuth.html
https://docs.aws.amazon.com/msk/latest/developerguide/iam-access-control.html
"""

from __future__ import annotations

import os
import re
from functools import cache
from typing import Final
from urllib.parse import urlencode

from cdc_outbox.errors import ConfigError, Unavailable

try:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    from botocore.auth import SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import CredentialProvider, Credentials
    from botocore.session import Session
except ImportError as error:
    raise ConfigError(
        "cdc_outbox.aws is named, and Amazon's packages aren't installed",
        next="in the checkout: pip install '.[aws]'",
    ) from error

LASTS: Final = 900
"""Seconds for which a token is good; longer is not to be had."""

_REGION: Final = re.compile(r"\.([a-z0-9-]+)\.rds\.amazonaws\.com$|\.rds\.([a-z0-9-]+)\.amazonaws\.com\.cn$")


def rds(*, host: str, port: str, user: str) -> str:
    """The password of a role of RDS or Aurora that has been granted `rds_iam`, for `postgres.password_provider`.

    `host` has to be Amazon's own name of the instance or cluster, which holds the region too, and the connection TLS.

    Raises ConfigError where no region is known, Unavailable where no credentials are.
    """
    found = _REGION.search(host.lower())
    region = (found[1] or found[2]) if found else _region(f"{host} is no name of Amazon's, and")
    query = urlencode({"Action": "connect", "DBUser": user})
    request = AWSRequest(method="GET", url=f"https://{host}:{port}/?{query}")
    SigV4QueryAuth(_credentials(), "rds-db", region, expires=LASTS).add_auth(request)
    return str(request.url).removeprefix("https://")


def msk() -> str:
    """A token for MSK with IAM, for `sasl.oauthbearer.token.provider`. Raises as `rds`."""
    token, _ = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(_region(), _Kept())
    return str(token)


class _Kept(CredentialProvider):
    """The credentials of this process, in the shape that the signer asks for."""

    def load(self) -> Credentials:
        return _credentials()


@cache
def _session() -> Session:
    return Session()


def _credentials() -> Credentials:
    found: Credentials | None = _session().get_credentials()
    if found is None:
        raise Unavailable(
            "Amazon's SDK finds no credentials",
            next="give the relay's pod, task or instance a role, or set AWS_PROFILE, or AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY",
        )
    return found


def _region(why: str = "") -> str:
    region = os.environ.get("AWS_REGION") or _session().get_config_variable("region")
    if not region:
        raise ConfigError(f"{why} the region isn't given".strip(), next="export AWS_REGION=eu-central-1")
    return str(region)
