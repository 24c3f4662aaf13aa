"""Why Kafka can't be used, in words: whether it is for what we are or say, and what to do about it."""

from __future__ import annotations

import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, Final

from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    ClusterAuthorizationFailedError,
    IllegalSaslStateError,
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)

from cdc_outbox.errors import KafkaUnavailable
from cdc_outbox.kafka import tool
from cdc_outbox.publisher import BusRefused
from cdc_outbox.settings import BY_KEY

if TYPE_CHECKING:
    from cdc_outbox.settings import KafkaSettings

UNCOVERED: Final = NotImplementedError
"""aiokafka raises this built-in where it and the broker know no version of a request in common: the broker is too old,
or too new. Nothing of ours is unfinished here; the name is for those who catch it."""

_CERTIFICATE_REMEDIES: Final = {
    10: "have the broker's certificate renewed",
    62: "name the server in kafka.bootstrap_servers as its certificate does",
    64: "name the server in kafka.bootstrap_servers as its certificate does",
}
"""By OpenSSL's number of what is wrong. https://docs.openssl.org/master/man3/X509_STORE_CTX_get_error/"""

_EACH_ADDRESS: Final = re.compile(r"\[Errno (\d+)\]")
"""In asyncio's one error for a name of several addresses, all of which failed, each in words of its own."""


def is_refusal(error: BaseException) -> bool:
    """Whether a connection failed for what we are or say, so that trying again won't help."""
    if isinstance(error, ssl.SSLError):
        return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return isinstance(
        error,
        AuthenticationFailedError
        | AuthenticationMethodNotSupported
        | IllegalSaslStateError
        | SaslAuthenticationFailed
        | UnsupportedSaslMechanismError,
    )


def refused(server: str, error: Exception, settings: KafkaSettings) -> BusRefused:
    """The error for a server, or a list of them, that doesn't take us as we are."""
    remedy = "check security.protocol and sasl.*, under [kafka.client] or in CDC_OUTBOX_KAFKA_SASL_…"
    if isinstance(error, ssl.SSLCertVerificationError):
        what = f"the certificate of Kafka at {server} is not trusted: {error.verify_message}"
        remedy = _CERTIFICATE_REMEDIES.get(
            error.verify_code, "set ssl.ca.location under [kafka.client] to the authority that signed it"
        )
    elif isinstance(error, ssl.SSLError):
        what = f"TLS with Kafka at {server} fails: {error.reason or error}"
        remedy = "check security.protocol and ssl.* under [kafka.client]"
    elif isinstance(error, ClusterAuthorizationFailedError):
        what = f"Kafka at {server} doesn't allow us an idempotent producer"
        remedy = (
            f"grant Write on the topics: kafka-acls.sh {tool.address(settings)} --add --allow-principal "
            f"{tool.principal(settings)} --producer --topic TOPIC"
        )
    elif isinstance(error, IncompatibleBrokerVersion):
        what = f"Kafka at {server} is too old: {in_short(error)}"
        remedy = "use brokers of version 0.11 or later"
    else:
        what = f"Kafka at {server} refuses us: {in_short(error)}"
    return BusRefused(what, next=remedy)


def silent(error: Exception) -> KafkaUnavailable:
    """The error for a question that no broker answers, though the cluster was reached."""
    return KafkaUnavailable(
        f"the cluster doesn't answer: {in_short(error)}",
        next="check that all brokers can be reached at the addresses that they advertise",
    )


def in_short(error: Exception) -> str:
    """An error's own words, without Python's around them."""
    if isinstance(error, socket.gaierror):
        return (error.strerror or "name or service not known").lower()
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    if isinstance(error, OSError) and (found := _EACH_ADDRESS.findall(str(error))):
        return ", ".join(dict.fromkeys(os.strerror(int(number)).lower() for number in found))
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, KafkaConnectionError):
        return "it closes the connection"
    text = str(error.args[0]) if error.args and error.args[0] else ""
    return text if text and not text.startswith("<") else type(error).__name__  # some only hold an object


def where_to_look(settings: KafkaSettings, what: str) -> str:
    """The next step where no broker answers: check `what`, or name the brokers where nobody did."""
    default = BY_KEY["kafka.bootstrap_servers"].default
    if settings.bootstrap_servers != default:
        return f"check {what}"
    return (
        f"{default} is the default; where the brokers are elsewhere: "
        "export CDC_OUTBOX_BOOTSTRAP_SERVERS=HOST:9092"
    )
