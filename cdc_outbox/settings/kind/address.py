"""Where something is found: servers, an address to listen on, a file, a database, a function."""

from __future__ import annotations

import re
from pathlib import Path

from cdc_outbox.settings.dsn import Dsn, parse_dsn
from cdc_outbox.settings.kind import Kind, Unquotable, one_or_more

_CALLABLE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]@,]+)(?::([0-9]{1,5}))?", re.ASCII)


def host_port(host: str, port: int) -> str:
    """An address as one types it: an IPv6 one in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Servers(Kind):
    """Kafka's bootstrap servers, `host:port` with commas between."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "HOST:PORT[,...]")

    def text(self, text: str) -> str:
        if "@" in text:
            raise Unquotable(
                "there is an '@' in it, and Kafka takes user and password as sasl.username and sasl.password"
            )
        servers = []
        for server in text.split(","):
            match = _HOST_PORT.fullmatch(server.strip())
            if match is None or not 0 < int(match[2] or 9092) < 65536:
                raise ValueError("it is not a list of HOST:PORT with commas between")
            if not match[1].startswith("[") and not all(
                0 < len(part) < 64 for part in match[1].removesuffix(".").split(".")
            ):
                raise ValueError("a host's name has parts of 1 to 63 letters, with dots between")
            servers.append(f"{match[1]}:{match[2] or 9092}")
        return ",".join(servers)

    def toml(self, value: object) -> str:
        if isinstance(value, list) and value and all(isinstance(server, str) for server in value):
            return self.text(",".join(value))
        return super().toml(value)  # type: ignore[no-any-return]  # ends in our own text()

    def schema(self) -> dict[str, object]:
        return one_or_more({"type": "string", "minLength": 1})


class Address(Kind):
    """`HOST:PORT` to listen on, or `off` (None)."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "HOST:PORT")

    def text(self, text: str) -> tuple[str, int] | None:
        word = text.strip()
        if word == "off":
            return None
        match = _HOST_PORT.fullmatch(word)
        if match is None or match[2] is None or int(match[2]) > 65535:
            raise ValueError("an address is HOST:PORT")
        return match[1].strip("[]"), int(match[2])

    def show(self, value: tuple[str, int] | None) -> object:
        return "off" if value is None else host_port(*value)


class FilePath(Kind):
    """A file's path, from the working directory."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "FILE")

    def text(self, text: str) -> Path:
        if not text or "\0" in text:
            raise ValueError("it is not a file's path")
        return Path(text)

    def show(self, value: Path | None) -> object:
        return None if value is None else str(value)


class Connection(Kind):
    """A connection string; never shown, and never part of a message."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "DSN")

    def text(self, text: str) -> Dsn:
        return parse_dsn(text)

    def schema(self) -> dict[str, object]:
        return {"type": "string"}


class Callable(Kind):
    """A Python callable, `module:callable`."""

    def __init__(self, example: str) -> None:
        super().__init__(example, "MODULE:CALLABLE")

    def text(self, text: str) -> str:
        if not _CALLABLE.fullmatch(text):
            raise ValueError("it must name a Python callable as module:callable")
        return text
