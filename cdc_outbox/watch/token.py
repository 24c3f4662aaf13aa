"""The token that opens health, metrics and status to other machines: a file's content, read anew when the file changes.

So a secret that is rotated under us counts at once. While the file is away or empty in the middle of that, the token
that was there before goes on to count.
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from cdc_outbox import log
from cdc_outbox.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_log = log.get(__name__)

_MOST = 4096


class Token:
    """A secret that is compared and never told."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError where the file can't be read or holds no token."""
        self._file = file
        self._seen = self._stamp()
        self._token = self._read()
        self._unreadable = False

    def matches(self, authorization: str | None) -> bool:
        """Whether an Authorization header is `Bearer` with the token, in the same time for each wrong one."""
        self._reread()
        scheme, _, given = (authorization or "").strip().partition(" ")
        same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._token)
        return same and scheme.lower() == "bearer"

    def _reread(self) -> None:
        try:
            stamp = self._stamp()
            if stamp == self._seen:
                return
            if not self._file.is_file():  # to open a pipe would wait for its writer, and the stream with it
                raise self._wrong("is no file any more")
            self._token = self._read()
        except ConfigError as error:
            if not self._unreadable:
                _log.warning("the token stays as it was", reason=str(error))
            self._unreadable = True
        else:
            self._seen = stamp
            self._unreadable = False
            _log.info("the token was read anew", file=self._file)

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._file.stat()
        except OSError as error:
            raise self._wrong(f"can't be read: {error.strerror}") from error
        return found.st_mtime_ns, found.st_ino, found.st_size

    def _read(self) -> bytes:
        try:
            with self._file.open("rb") as opened:
                token = opened.read(_MOST + 1).strip()
        except OSError as error:
            raise self._wrong(f"can't be read: {error.strerror}") from error
        if not token:
            raise self._wrong("is empty")
        if len(token) > _MOST or not all(0x21 <= byte <= 0x7E for byte in token):
            raise self._wrong("holds more than one word of ASCII")
        return token

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(
            f"http.token_file {self._file} {what}",
            next=f"write one long random word into it: openssl rand -hex 32 > {self._file}",
        )
