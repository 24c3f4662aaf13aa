"""The SQL files of the top-level directory `sql/`: the same text that a person reads and that `init` runs.

The wheel carries them as `cdc_outbox/sql`; a checkout or an editable install has them beside the package.
They are templates: names in braces are filled by `psycopg.sql`, in `postgres/`, and never formatted in.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent


def directory() -> Path:
    """Where the SQL files are."""
    packaged = _PACKAGE / "sql"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "sql"


@cache
def read(name: str) -> str:
    """The text of `sql/<name>.sql`.

    Raises FileNotFoundError when there is no such file.
    """
    return (directory() / f"{name}.sql").read_text(encoding="utf-8")
