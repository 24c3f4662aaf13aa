"""Why a connection was not to be had: was the server not reached, or did it refuse us?

The first is waited for, the second ends the process, so the difference must not hang on a text. But libpq
tells an application the text only, in the server's language, and keeps the SQLSTATE to itself. What it
does offer is the verbosity of its messages: with PQERRORS_SQLSTATE the message *is* the SQLSTATE. psycopg
doesn't wrap that call, so where the English words aren't recognised, one more attempt is made on a libpq
connection of our own with this verbosity set. Where even that can't be had (psycopg without its C part),
an unknown text counts as an outage.

No message here holds a password: libpq's own words are recognised as they are and shown without it, and a host
that looks as if it held a part of one (an unescaped `@`) isn't printed.

https://www.postgresql.org/docs/current/libpq-control.html#LIBPQ-PQSETERRORVERBOSITY
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from cdc_outbox.errors import (
    CdcOutboxError,
    MissingRight,
    PasswordRefused,
    PostgresGone,
    PostgresUnavailable,
    SetupError,
)
from cdc_outbox.event import quote
from cdc_outbox.postgres import sqlstate
from cdc_outbox.settings.secret import SECRET_WORDS, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NETWORK: Final = "check that the server runs and that no firewall stops this machine"
_NAME: Final = "check the host's name in the DSN, and that this machine can look it up"

PROBE: Final = 3.0
"""Seconds for finding out why a server refused us, which has just answered."""

_CONNECT: Final = "CONNECT"
"""The right that is missing, in the server's second line, which no language translates."""

_PQERRORS_SQLSTATE: Final = 3
_SQLSTATE: Final = re.compile(r"(?:^|\s)([0-9A-Z]{5})\s*$")

_UNKNOWN: Final = "the name is not known"
_STRANGE: Final = "what answers there is not PostgreSQL"

# libpq's and the resolver's words for a server that wasn't reached -> ours.
_UNREACHED: Final = (
    ("Connection refused", "connection refused, nothing listens there"),
    ("timeout expired", "no answer in time"),
    ("timed out", "no answer in time"),
    ("failed to resolve host", _UNKNOWN),
    ("could not translate host name", _UNKNOWN),
    ("No such file or directory", "there is no such socket"),
    ("No route to host", "there is no route to it"),
    ("Network is unreachable", "the network is unreachable"),
    ("server closed the connection unexpectedly", "it closed the connection without a word"),
    ("Connection reset", "it reset the connection"),
    ("received invalid", _STRANGE),
    ("expected authentication request", _STRANGE),
)

# Nobody is there, as opposed to nobody that answers.
_GONE: Final = ("Connection refused", "No such file or directory")

# What a look at the settings mends, and waiting does not.
_SETTINGS: Final = (
    (
        "no password supplied",
        "the server asks for a password and there is none",
        "put it into CDC_OUTBOX_DSN, PGPASSWORD or ~/.pgpass",
    ),
    (
        "server does not support SSL",
        "the server speaks no TLS",
        "use sslmode=prefer in the DSN, or switch TLS on in PostgreSQL",
    ),
    (
        "certificate verify failed",
        "the server's certificate is not trusted",
        "name its authority's file by sslrootcert in the DSN",
    ),
    (
        "does not match host name",
        "the server's certificate is for another name",
        "use the name in the certificate as host in the DSN",
    ),
    (
        "root certificate file",
        "there is no file with trusted certificates",
        (
            "name by sslrootcert in the DSN one that the relay can see: as a service none in a home directory or "
            "/tmp, in a container none of the machine's; or use sslmode=require"
        ),
    ),
    (
        "could not load private key",
        "the client's TLS key can't be read",
        "name a readable key by sslkey in the DSN",
    ),
    (
        "could not read certificate",
        "the client's TLS certificate can't be read",
        "name a readable one by sslcert in the DSN",
    ),
    (
        "definition of service",
        "the service is not in the service file",
        "mend the service's name, or PGSERVICEFILE",
    ),
)

_MALFORMED: Final = "invalid "
"""How libpq's words begin where it can make nothing of a setting."""


async def explain(
    failure: Exception, parameters: Mapping[str, str], *, provider: str | None = None
) -> CdcOutboxError:
    """Our error for a failed connection attempt with these connection parameters. `provider`: who gave the password."""
    text = _last(str(failure))
    shown = _redactor(parameters).redact(text)
    where = place(_with_defaults(parameters))
    for words, why in _UNREACHED:
        if words in text or (
            words == "timeout expired" and isinstance(failure, psycopg.errors.ConnectionTimeout)
        ):
            unreached = PostgresGone if words in _GONE else PostgresUnavailable
            remedy = _NAME if why == _UNKNOWN else NETWORK
            return unreached(f"can't reach PostgreSQL at {where}: {why}", next=remedy)
    for words, why, remedy in _SETTINGS:
        if words in text:
            return SetupError(f"can't connect to PostgreSQL at {where}: {why}: {shown}", next=remedy)
    if text.startswith(_MALFORMED):
        return SetupError(
            f"can't connect to PostgreSQL at {where}: a setting of the DSN is malformed: {shown}",
            next="mend it in --dsn or CDC_OUTBOX_DSN",
        )
    state = getattr(failure, "sqlstate", None) or sqlstate.from_text(text)
    if state is None:
        state = await asyncio.to_thread(probe, _reached(failure, parameters), PROBE)
    if state is None:
        return PostgresUnavailable(f"can't connect to PostgreSQL at {where}: {shown}", next=NETWORK)
    words = shown.removeprefix("FATAL:").strip()
    # By PAM, as Amazon checks its tokens, a wrong password is told by another SQLSTATE.
    if provider is not None and (state == "28P01" or (state == "28000" and "PAM" in words)):
        return PasswordRefused(
            f"PostgreSQL refuses the password that {provider} gives: {words}, at {where}",
            next=f"check that {provider} knows the password of role {_user(failure, parameters)}",
        )
    if state == "42501" and _CONNECT in str(failure):
        database, role = quote(_database(failure, parameters)), quote(_user(failure, parameters) or "NAME")
        return MissingRight(
            f"the role may not connect to the database: {words}, at {where} [{state}]",
            next=f"as the owner of the database: grant connect on database {database} to {role};",
        )
    return sqlstate.error(state, "connect", f"{words}, at {where}", role=_user(failure, parameters))


def _with_defaults(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """The parameters with the address that libpq takes from its variables, where they have none."""
    if parameters.keys() & {"host", "hostaddr", "service"} or os.environ.get("PGSERVICE"):
        return parameters
    variables = {"host": "PGHOST", "hostaddr": "PGHOSTADDR", "port": "PGPORT"}
    return {name: os.environ.get(variable, "") for name, variable in variables.items()} | dict(parameters)


def without_dsn(explained: CdcOutboxError, *, owner: bool) -> CdcOutboxError:
    """The same error where nobody said which server, unless for the `owner`: the next step is to say it."""
    but, beside = (" but the owner's", "name the relay's beside it: ") if owner else ("", "")
    return type(explained)(
        f"no DSN is set{but}, and libpq's defaults don't lead anywhere: {explained}",
        next=f"{beside}export CDC_OUTBOX_DSN=postgresql://USER@HOST:5432/DATABASE",
    )


def place(parameters: Mapping[str, str]) -> str:
    """Where connection parameters lead to, as `host:port` (or several)."""
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = (parameters.get("port") or "5432").split(",")
    if len(ports) < len(hosts):
        ports = ports[:1] * len(hosts)
    return ", ".join(_place(host, port) for host, port in zip(hosts, ports, strict=False))


def _place(host: str, port: str) -> str:
    if "@" in host and not host.startswith("@"):
        return f"the DSN's host (it holds an @: is the password percent-encoded?), port {port}"
    if not host:
        return f"the local socket, port {port}"
    if host.startswith(("/", "@")):
        return f"{host} port {port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _redactor(parameters: Mapping[str, str]) -> Redactor:
    """Takes out of a text the parameters that are secret, and a host that may hold a part of a password."""
    host = parameters.get("host", "")
    secrets = [parameters.get(name, "") for name in SECRET_WORDS]
    return Redactor(
        [*secrets, host if "@" in host else ""], [parameters.get(name, "") for name in ("user", "dbname")]
    )


def _last(text: str) -> str:
    """The first line of a message, without the words that libpq and psycopg put before the server's."""
    line = text.strip().partition("\n")[0]
    _, failed, rest = line.rpartition(" failed: ")
    return (rest if failed else line).removeprefix("connection is bad: ").strip()


def _user(failure: Exception, parameters: Mapping[str, str]) -> str | None:
    """The role that was refused: of the parameters, or as libpq took it from the environment."""
    pgconn = failure.pgconn if isinstance(failure, psycopg.Error) else None
    return parameters.get("user") or (pgconn.user.decode() if pgconn is not None else None)


def _database(failure: Exception, parameters: Mapping[str, str]) -> str:
    """The database that was asked for: of the parameters, or as libpq took it from elsewhere."""
    pgconn = failure.pgconn if isinstance(failure, psycopg.Error) else None
    return parameters.get("dbname") or (pgconn.db.decode() if pgconn is not None else "NAME")


def _reached(failure: Exception, parameters: Mapping[str, str]) -> dict[str, str]:
    """The parameters narrowed to the one host that answered, of several."""
    narrowed = dict(parameters)
    pgconn = failure.pgconn if isinstance(failure, psycopg.Error) else None
    if pgconn is not None and pgconn.host:
        narrowed |= {"host": pgconn.host.decode(), "port": pgconn.port.decode()}
        narrowed.pop("hostaddr", None)
        if pgconn.hostaddr:
            narrowed["hostaddr"] = pgconn.hostaddr.decode()
    return narrowed


def probe(parameters: Mapping[str, str], limit: float) -> str | None:
    """Connect once more and read the SQLSTATE of the refusal; None when there is none to be had. Blocks."""
    verbosity = _set_error_verbosity()
    if verbosity is None:
        return None
    conn = pq.PGconn.connect_start(make_conninfo("", **parameters).encode())
    try:
        pointer: int | None = getattr(conn, "pgconn_ptr", None)  # not in psycopg's protocol class
        if conn.status == pq.ConnStatus.BAD or pointer is None:
            return None
        verbosity(pointer, _PQERRORS_SQLSTATE)
        deadline = time.monotonic() + limit
        while (left := deadline - time.monotonic()) > 0:
            status = conn.connect_poll()
            if status == pq.PollingStatus.FAILED:
                found = _SQLSTATE.search(conn.error_message.decode("ascii", "replace"))
                return found[1] if found else None
            if status == pq.PollingStatus.OK:
                return None
            reading = [conn.socket] if status == pq.PollingStatus.READING else []
            writing = [conn.socket] if status == pq.PollingStatus.WRITING else []
            select.select(reading, writing, [], left)
        return None
    finally:
        conn.finish()


def _set_error_verbosity() -> Callable[[int, int], int] | None:
    """libpq's PQsetErrorVerbosity, from the very libpq that psycopg's C part is bound to."""
    for name in ("psycopg_binary.pq", "psycopg_c.pq"):
        module = sys.modules.get(name)
        if module is None or module.__file__ is None:
            continue
        # A symbol is looked up in the module's own dependencies too, so this is its libpq and no other.
        function = getattr(ctypes.CDLL(module.__file__), "PQsetErrorVerbosity", None)
        if function is not None:
            function.argtypes = [ctypes.c_void_p, ctypes.c_int]
            function.restype = ctypes.c_int
            return function  # type: ignore[no-any-return]  # ctypes has no types for foreign functions
    return None
