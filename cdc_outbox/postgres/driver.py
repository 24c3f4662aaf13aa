"""Which psycopg this is: its C implementation reads a row in a microsecond or two, the Python one takes many."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import pq


@dataclass(frozen=True, slots=True)
class Driver:
    """`implementation` is `binary`, `c` or `python`; `libpq` its version, like 170002."""

    version: str
    implementation: str
    libpq: int


def driver() -> Driver:
    """The driver in use."""
    return Driver(psycopg.__version__, pq.__impl__, pq.version())
