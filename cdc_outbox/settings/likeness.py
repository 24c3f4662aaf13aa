"""Which known name a mistyped one was perhaps meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most like `name`, by the whole or by its last part."""
    name = name.lower()
    return max(known, key=lambda candidate: likeness(name, candidate))


def likeness(name: str, candidate: str) -> float:
    """How much of a name in lower case is in another one, from 0 to 1."""
    from difflib import SequenceMatcher

    whole = SequenceMatcher(None, name, candidate.lower()).ratio()
    last = SequenceMatcher(None, name.rpartition(".")[2], candidate.lower().rpartition(".")[2]).ratio()
    return max(whole, 0.99 * last)
