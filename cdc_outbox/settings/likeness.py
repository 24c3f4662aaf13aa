"""Which known name a mistyped one was perhaps meant to be, and which known word surely."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

_SURE: Final = 0.6
"""From which likeness on a word that is no other's double was meant."""


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


def meant(word: str, known: Mapping[str, str], unlikely: Collection[str] = ()) -> str | None:
    """What a mistyped word surely was to say: the same letters, the only one that begins so, or the nearest one.

    `known`: words with what they say. None where it could be two of them or none, or where its number is another one.
    What is `unlikely` was meant only by its own letters: nobody is talked into less protection by a likeness.
    """
    from difflib import SequenceMatcher

    letters = _letters(word)
    spelled = {_letters(candidate): says for candidate, says in known.items()}
    if letters in spelled:
        return spelled[letters]
    begun = {says for candidate, says in spelled.items() if candidate.startswith(letters)}
    if begun:
        best = begun.pop()
        return None if begun or best in unlikely else best
    found: dict[str, float] = {}
    number = _number(letters)
    for candidate, says in spelled.items():
        if not number or _number(candidate) == number:
            ratio = SequenceMatcher(None, letters, candidate).ratio()
            found[says] = max(found.get(says, 0.0), ratio)
    most = max(found.values(), default=0.0)
    near = [says for says, ratio in found.items() if ratio == most]
    return near[0] if len(near) == 1 and most >= _SURE and near[0] not in unlikely else None


def _letters(word: str) -> str:
    """A word's letters and digits, whatever their case."""
    return re.sub(r"[\W_]", "", word).lower()


def _number(letters: str) -> str:
    return re.sub(r"\D", "", letters)
