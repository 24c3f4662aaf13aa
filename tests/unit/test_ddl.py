"""The SQL files: found, filled in by quoting and nothing else, and free of surprises."""

from __future__ import annotations

from pathlib import Path
from string import Formatter

import pytest
from psycopg import sql

from cdc_outbox import ddl

PLACEHOLDERS = {
    "outbox": {"table"},
    "witness": set[str](),
    "witness_owner": {"tables"},
    "publication": {"name", "tables"},
    "role": {"role_name"},
    "grants": {"role", "role_name"},
    "cleanup": {"role_name", "table_name"},
    "marks": {"role_name", "table_name", "written", "read"},
    "slot": {"slot", "failover", "publication", "timeout"},
}
RUN = sorted(set(PLACEHOLDERS) - {"witness"})


@pytest.mark.parametrize("name", RUN)
def test_a_file_has_the_placeholders_that_init_fills(name: str) -> None:
    found = {field for _, field, _, _ in Formatter().parse(ddl.read(name)) if field is not None}
    assert found == PLACEHOLDERS[name]


@pytest.mark.parametrize("name", RUN)
def test_a_hostile_name_stays_a_name(name: str) -> None:
    hostile = "a\"; drop table x; --'; $$"
    filled = (
        sql.SQL(ddl.read(name))
        .format(
            table=sql.Identifier(hostile),
            name=sql.Literal(hostile),
            tables=sql.Literal(hostile),
            role=sql.Identifier(hostile),
            role_name=sql.Literal(hostile),
            table_name=sql.Literal(hostile),
            written=sql.Literal(hostile),
            read=sql.Literal(hostile),
            slot=sql.Literal(hostile),
            failover=sql.Literal(True),
            publication=sql.Literal(hostile),
            timeout=sql.Literal("1s"),
        )
        .as_string()
    )
    outside = [line for line in filled.splitlines() if not line.lstrip().startswith("--")]
    for line in outside:
        quoted = line.replace(sql.Identifier(hostile).as_string(), "").replace(
            sql.Literal(hostile).as_string(), ""
        )
        assert "drop table" not in quoted


@pytest.mark.parametrize("path", sorted(ddl.directory().glob("*.sql")), ids=lambda path: path.stem)
def test_every_file_says_what_it_is_for_and_fits_a_screen(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("-- ")
    assert text.endswith("\n")
    assert max(map(len, text.splitlines())) <= 125
    assert "\t" not in text


def test_an_unknown_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        ddl.read("nonsense")
