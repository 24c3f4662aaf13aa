"""What became of a publication between two looks, and its identity as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc_outbox.errors import PublicationWrong
from cdc_outbox.postgres.publication import PublicationState
from cdc_outbox.postgres.publication_identity import Change, Identity, Member, Row, compare

TABLE = Member(table=16390, schema=2200, rows=frozenset({Row(16401, "744")}))
BEFORE = Identity(Row(16400, "743"), (("public.outbox", TABLE),))


def with_member(**changes: object) -> Identity:
    return replace(BEFORE, members=(("public.outbox", replace(TABLE, **changes)),))  # type: ignore[arg-type]


def test_an_identity_survives_its_text() -> None:
    assert Identity.parse(str(BEFORE)) == BEFORE
    everything = with_member(rows=frozenset())
    assert Identity.parse(str(everything)) == everything
    two = replace(BEFORE, members=(*BEFORE.members, ('"Odd ""name"""."t"', replace(TABLE, table=3))))
    assert Identity.parse(str(two)) == two


def test_the_text_does_not_depend_on_the_order_of_rows() -> None:
    rows = [Row(oid, "1") for oid in range(50)]
    assert str(with_member(rows=frozenset(rows))) == str(with_member(rows=frozenset(reversed(rows))))


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '"x"', '{"publication": [1]}', '{"publication": [1, "2"]}']
)
def test_other_text_is_no_identity(text: str) -> None:
    with pytest.raises(ValueError, match="identity"):
        Identity.parse(text)


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (BEFORE, Change.UNCHANGED),
        (replace(BEFORE, publication=Row(16400, "800")), Change.ALTERED),
        (replace(BEFORE, publication=Row(16500, "743")), Change.MADE_AGAIN),
        (with_member(rows=frozenset({Row(16401, "801")})), Change.ALTERED),
        (with_member(rows=frozenset({Row(16501, "744")})), Change.MADE_AGAIN),
        (with_member(rows=frozenset()), Change.MADE_AGAIN),
        (with_member(rows=TABLE.rows | {Row(16501, "801")}), Change.ALTERED),
        (with_member(table=16391), Change.MADE_AGAIN),
        (with_member(schema=2201), Change.MADE_AGAIN),
    ],
)
def test_what_became_of_it(now: Identity, change: Change) -> None:
    assert compare(BEFORE, now) is change


def test_for_all_tables_has_no_row_to_compare() -> None:
    everything = with_member(rows=frozenset())
    assert compare(everything, everything) is Change.UNCHANGED


def test_another_table_in_the_settings_is_no_gap_in_the_first() -> None:
    two = replace(BEFORE, members=(*BEFORE.members, ("public.outbox_b", replace(TABLE, table=5))))
    assert compare(BEFORE, two) is Change.ALTERED
    assert compare(two, BEFORE) is Change.ALTERED


def test_a_problem_is_required_away() -> None:
    sound = PublicationState("p", None, "", BEFORE, None)
    sound.require()
    with pytest.raises(PublicationWrong, match="it hides rows") as caught:
        replace(sound, problem="it hides rows", next="show them").require()
    assert caught.value.next == "show them"
