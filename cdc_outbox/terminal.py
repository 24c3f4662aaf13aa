"""What a terminal shows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any


def coloured(stream: IO[Any], environ: Mapping[str, str] = os.environ) -> bool:
    """Whether to write colours to a stream: a terminal that knows them, and nobody said no (https://no-color.org)."""
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def one_line(said: str) -> str:
    """The same, where it may have several lines: a blank for each piece of white space."""
    return printable(" ".join(said.split()))


def printable(said: str) -> str:
    """One line that a terminal shows as it is: names, ids and payloads are anybody's."""
    if said.isprintable():
        return said
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in said
    )
