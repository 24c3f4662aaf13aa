"""Connection strings: read as far as needed to see that one is well formed, and which parts of it are secret.

libpq reads them for real, in `postgres/`. This module is stricter in one way: an `@` that libpq would take for a
part of a host's or database's name is refused, because it is nearly always a piece of a password that would then
be printed as that name.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from cdc_outbox.settings.likeness import nearest
from cdc_outbox.settings.secret import MASK, SECRET_WORDS

_WORD_LIST: Final = """
    application_name authtype channel_binding client_encoding connect_timeout dbname
    fallback_application_name gssdelegation gssencmode gsslib host hostaddr keepalives keepalives_count
    keepalives_idle keepalives_interval krbsrvname load_balance_hosts max_protocol_version
    min_protocol_version oauth_client_id oauth_client_secret oauth_issuer oauth_scope options passfile
    password port replication require_auth requirepeer requiressl scram_client_key scram_server_key
    service servicefile ssl_max_protocol_version ssl_min_protocol_version sslcert sslcertmode
    sslcompression sslcrl sslcrldir sslkey sslkeylogfile sslmode sslnegotiation sslpassword sslrootcert
    sslsni target_session_attrs tcp_user_timeout tty user
"""
WORDS: Final = frozenset(_WORD_LIST.split())
"""The parameters that libpq knows, up to version 18 and a few older ones."""

LIBPQ_VARIABLES: Final = (
    "PGSERVICE",
    "PGHOST",
    "PGHOSTADDR",
    "PGPORT",
    "PGDATABASE",
    "PGUSER",
    "PGPASSWORD",
    "PGPASSFILE",
)
"""Where libpq takes from what a connection string leaves out, as far as somebody sets them to lead somewhere."""

_PUBLIC_WORDS: Final = frozenset({"user", "dbname", "host"})
_PATH_WORDS: Final = frozenset(
    {"passfile", "servicefile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslrootcert"}
)
_SCHEMES: Final = ("postgresql", "postgres")

_URL = re.compile(r"([A-Za-z][A-Za-z0-9]*)(\+[A-Za-z0-9_]+)?://(.*)", re.DOTALL)
_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")


@dataclass(frozen=True, slots=True)
class Dsn:
    """A connection string: the text for libpq, and the values in it that are secret, public, or the paths of files."""

    text: str
    secrets: tuple[str, ...]
    public: tuple[str, ...]
    paths: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Dsn({MASK})"


def parse_dsn(text: str) -> Dsn:
    """Read a connection string as libpq does, as far as we need to.

    `text` is a URL (`postgresql://…`; a driver suffix as in `postgresql+asyncpg://` is dropped) or
    `key=value` words. Raises ValueError, without any part of a possible secret in its message.
    """
    text = text.strip()
    if "\0" in text:
        raise ValueError("it contains a NUL character")
    url = _URL.fullmatch(text)
    try:
        # Python gives bytes that aren't UTF-8, of a variable say, as text that has no encoding.
        (text.encode() if url is None else unquote_to_bytes(text)).decode()
    except UnicodeError:
        raise ValueError("it isn't text in UTF-8") from None
    if url is not None:
        return _parse_url(url[1], url[2] or "", url[3])
    if not text:
        return Dsn("", (), ())
    return _parse_words(text)


def _parse_url(scheme: str, driver: str, rest: str) -> Dsn:
    if scheme not in _SCHEMES:
        raise ValueError(f"its scheme is {scheme!r}, not 'postgresql'")
    if any(letter.isspace() for letter in rest):
        raise ValueError("it has a blank in it (write %20)")
    found: list[tuple[str, str]] = []
    address, question, query = rest.partition("?")
    authority, slash, database = address.partition("/")
    if authority.count("@") > 1 or "@" in database:
        raise ValueError("an '@' in its user, password or database isn't written as %40, or a '/' not as %2F")
    userinfo, at, hosts = authority.rpartition("@")
    if at:
        user, _, password = userinfo.partition(":")
        found += [("user", user), ("password", password)]
    for host in hosts.split(","):
        name, port = _split_host(host)
        found += [("host", name), ("port", port)]
    if slash:
        found.append(("dbname", database))
    parameters = []
    if question:
        for pair in query.split("&"):
            name, equals, value = pair.partition("=")
            if not equals or "=" in value:
                raise ValueError("a parameter after '?' is not of the form name=value")
            if name == "ssl" and (driver == "+asyncpg" or value == "true"):
                # asyncpg's name for it, with libpq's values; JDBC has ssl=true.
                name, value = "sslmode", "require" if value == "true" else value
            found.append((name, value))
            parameters.append(f"{name}={value}")
    if any(_PERCENT.search(value) for _, value in found):
        raise ValueError("a '%' in it isn't followed by two hexadecimal digits (write a plain '%' as %25)")
    text = f"{scheme}://{address}{question}{'&'.join(parameters)}"
    pairs = [pair for name, value in found for pair in ((name, value), (name, unquote(value)))]
    return _sorted_out(text, pairs)


def _split_host(host: str) -> tuple[str, str]:
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not name or not bracket or (port and not port.startswith(":")):
            raise ValueError("the brackets around its IPv6 address aren't right")
        return name, port[1:]
    name, _, port = host.partition(":")
    return name, port


def _parse_words(text: str) -> Dsn:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        word = _WORD.match(text, at)
        if word is None:
            if not text[at:].strip():
                break
            raise ValueError("it is neither a URL (postgresql://…) nor words of the form key=value")
        value, at = _word_value(text, word.end())
        found.append((word[1], value))
    return _sorted_out(text, found)


def _word_value(text: str, at: int) -> tuple[str, int]:
    """One value of a `key=value` word, and where the next word begins."""
    quoted = text[at : at + 1] == "'"
    at += quoted
    value: list[str] = []
    while at < len(text):
        letter = text[at]
        if letter == "\\" and at + 1 < len(text):
            at += 1
            letter = text[at]
        elif letter == "'" if quoted else letter.isspace():
            return "".join(value), at + 1
        value.append(letter)
        at += 1
    if quoted:
        raise ValueError("a quote in it is not closed")
    return "".join(value), at


def _sorted_out(text: str, found: Sequence[tuple[str, str]]) -> Dsn:
    for name, value in found:
        if name not in WORDS:
            # A name is quoted only where it looks like one: it may be a piece of a password.
            shown = repr(name) if re.fullmatch(r"[a-z_]{2,30}", name) else "a parameter in it"
            raise ValueError(
                f"libpq doesn't know {shown}; the nearest that it knows is {nearest(name, WORDS)!r}"
            )
        if name == "port" and not all(_is_port(port) for port in value.split(",")):
            raise ValueError("its port is not a number between 1 and 65535")
    pairs = [(name, value) for name, value in found if value]
    return Dsn(
        text,
        tuple(dict.fromkeys(value for name, value in pairs if name in SECRET_WORDS)),
        tuple(dict.fromkeys(value for name, value in pairs if name in _PUBLIC_WORDS)),
        tuple(dict.fromkeys(value for name, value in pairs if name in _PATH_WORDS)),
    )


def _is_port(text: str) -> bool:
    text = text.strip()
    return not text or (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65536)
