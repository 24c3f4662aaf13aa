"""Secrets: finding them in what we were given, and keeping them out of what we print.

A connection string is read here only as far as needed to see that it is one and which parts of it are secret;
libpq reads it for real. Whatever is printed passes `Redactor.redact`: it knows the secrets of this process by
value, and the shapes in which libraries print passwords.

https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-CONNSTRING
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

MASK: Final = "***"

_SECRET_WORDS: Final = frozenset({"password", "sslpassword", "oauth_client_secret", "scram_client_key"})
_PUBLIC_WORDS: Final = frozenset({"user", "dbname", "host"})
_SCHEMES: Final = ("postgresql", "postgres")
_SHORT: Final = 8

_URL = re.compile(r"([A-Za-z][A-Za-z0-9]*)(\+[A-Za-z0-9_]+)?://(.*)", re.DOTALL)
_WORD = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*")
_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})|%00")
_USERINFO = re.compile(r"(\w://[^\s:/@]*):[^\s/]*@")
_ASSIGNMENT = re.compile(
    r"""\b((?:ssl|sasl[._])?password|oauth_client_secret|scram_client_key)(\s*=\s*)"""
    r"""('(?:[^'\\]|\\.)*'?|"[^"]*"?|[^\s,;&]+)""",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Dsn:
    """A connection string: the text for libpq, and the values in it that are secret or public."""

    text: str
    secrets: tuple[str, ...]
    public: tuple[str, ...]

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
    if url is not None:
        return _parse_url(url[1], url[3])
    if not text:
        return Dsn("", (), ())
    return _parse_words(text)


def _parse_url(scheme: str, rest: str) -> Dsn:
    if scheme not in _SCHEMES:
        raise ValueError(f"its scheme is {scheme!r}, not 'postgresql'")
    found: list[tuple[str, str]] = []
    address, question, query = rest.partition("?")
    authority, slash, database = address.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    if at:
        user, _, password = userinfo.partition(":")
        found += [("user", user), ("password", password)]
    for host in hosts.split(","):
        name, port = _split_host(host)
        found.append(("host", name))
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError("its port is not a number between 1 and 65535")
    if slash:
        found.append(("dbname", database))
    if question:
        for pair in query.split("&"):
            name, equals, value = pair.partition("=")
            if not equals or not name:
                raise ValueError("a parameter after '?' is not of the form name=value")
            found.append((name, value))
    if any(_PERCENT.search(value) for _, value in found):
        raise ValueError("a '%' in it isn't followed by two hexadecimal digits (write a plain '%' as '%25')")
    text = f"{scheme}://{rest}"
    pairs = [pair for name, value in found for pair in ((name, value), (name, unquote(value)))]
    return _sorted_out(text, pairs)


def _split_host(host: str) -> tuple[str, str]:
    if host.startswith("["):
        name, bracket, port = host[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise ValueError("the brackets around its IPv6 address don't match")
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


def _sorted_out(text: str, found: Iterable[tuple[str, str]]) -> Dsn:
    pairs = [(name, value) for name, value in found if value]
    return Dsn(
        text,
        tuple(dict.fromkeys(value for name, value in pairs if name in _SECRET_WORDS)),
        tuple(dict.fromkeys(value for name, value in pairs if name in _PUBLIC_WORDS)),
    )


class Redactor:
    """Takes secrets out of text.

    A secret that is also a public word of the same connection (password `app` of user `app`) is masked only
    where it stands as a password, since the user's name has to be readable in an error. Short secrets are
    masked as whole words only.
    """

    __slots__ = ("_pattern", "_whole")

    def __init__(
        self, secrets: Iterable[str] = (), public: Iterable[str] = (), whole: Iterable[str] = ()
    ) -> None:
        """`secrets` are masked anywhere; `whole` are connection strings, masked as they stand."""
        known = set(public)
        parts = [
            _spellings(secret) for secret in sorted(set(secrets) - known, key=len, reverse=True) if secret
        ]
        self._pattern = re.compile("|".join(parts)) if parts else None
        self._whole = tuple(sorted({text for text in whole if text}, key=len, reverse=True))

    def redact(self, text: str) -> str:
        """The text without any secret."""
        for dsn in self._whole:
            if dsn in text:
                text = text.replace(dsn, MASK)
        if self._pattern is not None:
            text = self._pattern.sub(MASK, text)
        if "://" in text:
            text = _USERINFO.sub(rf"\1:{MASK}@", text)
        if "=" in text:
            text = _ASSIGNMENT.sub(rf"\1\2{MASK}", text)
        return text

    def __repr__(self) -> str:
        return "Redactor()"


def _spellings(secret: str) -> str:
    """A pattern for a secret as it is, and as `repr` would write it."""
    patterns = []
    for spelling in dict.fromkeys((secret, repr(secret)[1:-1])):
        pattern = re.escape(spelling)
        if len(spelling) < _SHORT:
            before = r"(?<!\w)" if re.match(r"\w", spelling) else ""
            after = r"(?!\w)" if re.search(r"\w\Z", spelling) else ""
            pattern = before + pattern + after
        patterns.append(pattern)
    return "|".join(patterns)
