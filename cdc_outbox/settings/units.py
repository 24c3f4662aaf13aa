"""Durations and sizes as people write them: `200ms`, `30s`, `7d`; `16MiB`, `1GiB`, `64kB`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

SECONDS: Final = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
BYTES: Final = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)\s?(ms|s|m|h|d)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s?([A-Za-z]{0,3})", re.ASCII)


def parse_duration(text: str) -> float:
    """Read `200ms`, `30s`, `5m`, `2h`, `7d` as seconds.

    Raises ValueError on anything else, a number without a unit included.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("a duration is a number and a unit: ms, s, m, h or d")
    return float(Fraction(match[1]) * SECONDS[match[2]])


def format_duration(seconds: float) -> str:
    """Write seconds in the largest unit that stays whole; `parse_duration` reads it back."""
    exact = Fraction(repr(seconds))
    for unit in ("d", "h", "m", "s", "ms"):
        count = exact / SECONDS[unit]
        if count and count.denominator == 1:
            return f"{count}{unit}"
    if not exact:
        return "0s"
    return f"{float(exact * 1000):.9f}".rstrip("0").rstrip(".") + "ms"


def parse_size(text: str) -> int:
    """Read `16MiB`, `512KiB`, `64kB` or a plain number of bytes.

    Raises ValueError on anything else, and on fractions of a byte.
    """
    match = _SIZE.fullmatch(text.strip())
    factor = None if match is None else BYTES.get(match[2])
    if match is None or factor is None:
        raise ValueError("a size is a number of bytes, or a number and a unit: kB, MB, GB, KiB, MiB or GiB")
    size = Fraction(match[1]) * factor
    if size.denominator != 1:
        raise ValueError("a size is a whole number of bytes")
    return int(size)


def format_size(size: int) -> str:
    """Write bytes in the largest binary unit that stays whole; `parse_size` reads it back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit] == 0:
            return f"{size // BYTES[unit]}{unit}"
    return str(size)
