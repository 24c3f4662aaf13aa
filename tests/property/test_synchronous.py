"""Any list of standby names, in any form that the server accepts, is read back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_outbox.postgres.synchronous import matches, names

QUOTABLE = st.text(st.characters(blacklist_characters="\x00", blacklist_categories=["Cs"]), min_size=1)
BARE = st.from_regex(r"[A-Za-z_\u00e0-\u00ff][A-Za-z0-9_$\u00e0-\u00ff]*", fullmatch=True).filter(
    lambda name: name.lower() not in ("any", "first")
)
SPACE = st.sampled_from(["", " ", "\t", "\n ", "  "])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def folded(name: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


SPELLED = st.one_of(
    QUOTABLE.map(lambda name: (name, quoted(name))),
    BARE.map(lambda name: (name, name)),
    st.just(("*", "*")),
    st.integers(0, 99).map(lambda number: (str(number), str(number))),
)


@st.composite
def settings(draw: st.DrawFn) -> tuple[list[str], str]:
    listed = draw(st.lists(SPELLED, min_size=1, max_size=5))
    text = ",".join(draw(SPACE) + spelled + draw(SPACE) for _, spelled in listed)
    method = draw(st.sampled_from(["", "{n}{s}({list})", "ANY {n} ({list})", "first\t{n}({list}){s}"]))
    if method:
        text = method.format(n=draw(st.integers(1, 20)), s=draw(SPACE), list=text)
    return [name for name, _ in listed], draw(SPACE) + text + draw(SPACE)


@given(settings())
def test_names_come_back(setting: tuple[list[str], str]) -> None:
    expected, text = setting
    assert names(text) == expected


@given(settings(), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=80))
def test_we_are_one_exactly_if_named_or_starred(setting: tuple[list[str], str], ours: str) -> None:
    listed, text = setting
    assert bool(matches(text, ours)) == any(
        name == "*" or folded(name) == folded(ours[:63]) for name in listed
    )


@given(QUOTABLE)
def test_a_name_always_matches_itself(name: str) -> None:
    shown = name.encode()[:63].decode("utf-8", "ignore")
    if shown:
        assert matches(f"1 (other, {quoted(shown)})", name)


@given(st.text())
def test_anything_else_is_read_without_an_error(text: str) -> None:
    matches(text, "cdc-outbox/outbox_slot")
