"""Names of tables: read as SQL reads them, printed so that SQL reads them back."""

from __future__ import annotations

import pytest

from cdc_outbox.event import TableName, quote


@pytest.mark.parametrize(
    ("text", "schema", "name"),
    [
        ("outbox", "public", "outbox"),
        ("Outbox", "public", "outbox"),
        ("App.Outbox", "app", "outbox"),
        ('"App"."Outbox"', "App", "Outbox"),
        ('app."Out.box"', "app", "Out.box"),
        ('"a""b"', "public", 'a"b'),
        (" app . outbox ", "app", "outbox"),
        ("_x$1", "public", "_x$1"),
        ("GRÖSSE", "public", "grÖsse"),
        ('"order"', "public", "order"),
    ],
)
def test_reads_names_as_sql_does(text: str, schema: str, name: str):
    assert TableName.parse(text) == TableName(schema, name)


@pytest.mark.parametrize(
    "text", ["", " ", ".", "a.", ".a", "a.b.c", '"a', '""', "a b", "1a", "a-b", 'a"b"', "a;b", "a\0"]
)
def test_refuses_what_is_no_name(text: str):
    with pytest.raises(ValueError, match="not a table name"):
        TableName.parse(text)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        (TableName("public", "outbox"), "public.outbox"),
        (TableName("App", "Outbox"), '"App"."Outbox"'),
        (TableName("app", "order"), 'app."order"'),
        (TableName("app", 'a"b'), 'app."a""b"'),
        (TableName("app", "with space"), 'app."with space"'),
    ],
)
def test_prints_names_quoted_where_needed(name: TableName, printed: str):
    assert str(name) == printed
    assert TableName.parse(printed) == name


def test_quotes_reserved_words_only_as_a_whole():
    assert quote("user") == '"user"'
    assert quote("users") == "users"
