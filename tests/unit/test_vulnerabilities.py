"""What is made of `pip-audit`'s answers: its own "none found" is no proof."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.vulnerabilities import UnreachableError, findings

CLEAN = {"name": "psycopg", "version": "3.2.0", "vulns": []}
HIT = {
    "name": "requests",
    "version": "2.31.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.32.0"]}, {"id": "PYSEC-2", "fix_versions": []}],
}
UNKNOWN = {
    "name": "aiokafka",
    "skip_reason": "Dependency not found on PyPI and could not be audited: aiokafka (0.14.0)",
}
OURS = {"name": "cdc-outbox", "skip_reason": "distribution marked as editable"}


def answer(*packages: dict[str, Any]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def test_clean_packages_and_our_own_checkout_are_nothing_to_tell() -> None:
    assert list(findings(answer(CLEAN, OURS))) == []


def test_each_known_vulnerability_is_told_with_the_way_out() -> None:
    assert list(findings(answer(CLEAN, HIT))) == [
        "requests 2.31.0: PYSEC-1, mended in 2.32.0",
        "requests 2.31.0: PYSEC-2, mended in no version yet",
    ]


def test_a_package_that_is_not_known_is_told() -> None:
    assert list(findings(answer(CLEAN, UNKNOWN))) == [UNKNOWN["skip_reason"]]


@pytest.mark.parametrize(
    "said",
    [
        pytest.param("", id="nothing"),
        pytest.param("ERROR: 503", id="no JSON"),
        pytest.param("[]", id="other JSON"),
        pytest.param(answer(UNKNOWN, OURS), id="no package is known"),
        pytest.param(answer(), id="no packages"),
    ],
)
def test_an_answer_without_knowledge_is_none(said: str) -> None:
    with pytest.raises(UnreachableError):
        list(findings(said))
