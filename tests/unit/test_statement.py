"""A statement of somebody else's is told by its shape: no value of it gets into a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.postgres.blocker import Blocker
from cdc_outbox.postgres.statement import shape


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("insert into written default values", "insert into written default values"),
        ("insert into cards values ('4111 1111', 12.5, -3)", "insert into cards values (?, ?, -?)"),
        ("update t2 set a1 = $1 where id = 17", "update t2 set a1 = $1 where id = ?"),
        ("alter role joe password 'it''s secret'", "alter role joe password ?"),
        (r"select E'it\'s secret', e'\\'", "select ?, ?"),
        (r"select 'C:\', name", "select ?, name"),
        ("select b'01', X'ff', n'x', U&'d\\0061t', date'2026-01-01'", "select ?, ?, ?, ?, date?"),
        ("do $$ begin perform 'secret'; end $$", "do ?"),
        ("do $body$ $$ secret $$ $body$ language plpgsql", "do ? language plpgsql"),
        ("select 1.5e-3, .5, 0x1F, 1_000, 1e10", "select ?, ?, ?, ?, ?"),
        ('select "it\'s 5" from "Odd ""name"""', 'select "it\'s 5" from "Odd ""name"""'),
        ("select 1 -- don't, 'secret'\n , 'x'", "select ? , ?"),
        ("select /* it's a\nsecret */ a", "select a"),
        ("select\n  a,\n\tb", "select a, b"),
        ("select größe from straße where ä = 'ö'", "select größe from straße where ä = ?"),
        ("select 'cut off in the mid", "select ?"),
        (r"select E'cut off \'", "select ?"),
        ("do $x$ cut off", "do ?"),
        ("select /* cut off", "select"),
        ("", ""),
    ],
)
def test_shapes(query: str, told: str) -> None:
    assert shape(query) == told


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Z"]), min_size=1), st.integers(0, 60))
def test_no_string_is_told_wherever_the_server_cuts_it_off(text: str, cut: int) -> None:
    literal = "'" + text.replace("'", "''") + "'"
    assert shape(f"select a from t where b = {literal} and c") == "select a from t where b = ? and c"
    assert not set(shape(f"b = {literal}"[:cut])) - set("b =?")


def test_a_transaction_that_is_waited_for_is_named_without_its_values() -> None:
    blocker = Blocker(7, "joe", "shop", "app", 3.0, "insert into cards values ('4111', 5)", None)
    assert str(blocker).endswith("query: insert into cards values (?, ?))")
    assert "4111" not in str(blocker)
