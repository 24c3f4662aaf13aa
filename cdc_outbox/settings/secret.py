"""Keeping secrets out of what is printed.

Whatever is printed passes `Redactor.redact`: it knows the secrets of this process by value, and the shapes in which
libraries print passwords, for those that it doesn't know.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MASK: Final = "***"

SECRET_WORDS: Final = (
    "password",
    "sslpassword",
    "oauth_client_secret",
    "scram_client_key",
    "scram_server_key",
)
"""libpq's parameters whose values are secret."""


_SHORT: Final = 8

# The word "password" there is an example's; as a secret it is known by value.
_USERINFO = re.compile(r"(\w://[^\s:/@]*):(?!password@)[^\s/]*@")
_ASSIGNMENT = re.compile(
    rf"""\b({"|".join(SECRET_WORDS)}|sasl[._]password|ssl[._]key[._]password)(\s*=\s*)"""
    r"""('(?:[^'\\]|\\.)*'?|"[^"]*"?|[^\s,;&]+)""",
    re.IGNORECASE,
)


class Redactor:
    """Takes secrets out of text.

    A secret that is also a public word of the same connection (password `app` of user `app`) is masked only
    where it stands as a password, since the user's name has to be readable in an error. Short secrets are
    masked as whole words only. The path of a file that the settings name is no secret, whatever words are in it.
    """

    __slots__ = ("_paths", "_pattern", "_whole")

    def __init__(
        self,
        secrets: Iterable[str] = (),
        public: Iterable[str] = (),
        whole: Iterable[str] = (),
        paths: Iterable[str] = (),
    ) -> None:
        """`secrets` are masked anywhere but in `paths`; `whole` are connection strings, masked as they stand."""
        hidden = {secret for secret in set(secrets) - set(public) if secret}
        self._paths = {
            path for path in set(paths) - hidden if "/" in path and any(secret in path for secret in hidden)
        }
        parts = [rf"(?<![\w/.-]){re.escape(path)}(?![\w/-]|\.\w)" for path in _longest_first(self._paths)]
        parts += [_spellings(secret) for secret in _longest_first(hidden)]
        self._pattern = re.compile("|".join(parts)) if parts else None
        self._whole = tuple(_longest_first({text for text in whole if text}))

    def redact(self, text: str) -> str:
        """The text without any secret."""
        for dsn in self._whole:
            if dsn in text:
                text = text.replace(dsn, MASK)
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: found[0] if found[0] in self._paths else MASK, text)
        if "://" in text:
            text = _USERINFO.sub(rf"\1:{MASK}@", text)
        if "=" in text:
            text = _ASSIGNMENT.sub(rf"\1\2{MASK}", text)
        return text

    def __repr__(self) -> str:
        return "Redactor()"


def _longest_first(texts: set[str]) -> list[str]:
    return sorted(texts, key=len, reverse=True)


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
