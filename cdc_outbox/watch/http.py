"""As much of HTTP/1.1 as a probe, a scraper and a browser need: one request a connection, and its answer. Pure.

https://www.rfc-editor.org/rfc/rfc9112
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}

NOTHING: Final = "default-src 'none'; frame-ancestors 'none'"
"""The Content-Security-Policy of what is no page."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request's head. `headers` have lower-case names; one that comes twice has both values."""

    method: str
    path: str
    headers: dict[str, list[str]]

    def only(self, name: str) -> str | None:
        """A header's value, None where there is none or more than one."""
        values = self.headers.get(name, [])
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer but for what each has."""

    code: int
    content: bytes
    media_type: str = "application/json"
    policy: str = NOTHING
    extra: dict[str, str] = field(default_factory=dict)

    def encode(self, *, body: bool) -> bytes:
        """As it is sent; without `body` only the head, as for HEAD."""
        headers = {
            "Content-Type": self.media_type,
            "Content-Length": str(len(self.content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": self.policy,
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            **self.extra,
            "Connection": "close",
        }
        lines = [f"HTTP/1.1 {self.code} {REASONS[self.code]}", *(f"{k}: {v}" for k, v in headers.items())]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + (self.content if body else b"")


def parse(head: bytes) -> Request | None:
    """A request's head up to its empty line; None where it is no HTTP/1 request."""
    line, *rest = head.decode("latin-1").split("\r\n")
    words = line.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    headers: dict[str, list[str]] = {}
    for header in rest:
        name, _, value = header.partition(":")
        headers.setdefault(name.strip().lower(), []).append(value.strip())
    return Request(words[0], words[1].partition("?")[0], headers)


def is_loopback(host: str) -> bool:
    """Whether a host as in an address is this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(request: Request) -> bool:
    """Whether each Host is this machine. HTTP/1.0 clients send none; browsers always do."""
    hosts = (host.lower() for host in request.headers.get("host", []))
    return all(
        is_loopback(host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0])
        for host in hosts
    )
