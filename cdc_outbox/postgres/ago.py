"""A moment before now, by the server's clock, however long ago a person says that it is."""

from __future__ import annotations

from typing import Final

from psycopg import sql

FURTHEST: Final = 1e11
"""Seconds, some 3 000 years: a timestamp that lies further back than 4713 BC is an error to PostgreSQL."""


def ago(seconds: float) -> sql.Composed:
    """The moment as a timestamptz in SQL."""
    return sql.SQL("(clock_timestamp() - pg_catalog.make_interval(secs => {}))").format(
        sql.Literal(min(seconds, FURTHEST))
    )
