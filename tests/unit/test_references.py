"""The references that are made from the code say what the code says, and lead somewhere."""

from __future__ import annotations

import re
import shlex

import pytest

from cdc_outbox import errors
from cdc_outbox.settings.declare import SETTINGS
from tests.documents import DOCUMENTS
from tests.documents.errors import sayings
from tests.documents.tree import Entry, entries
from tests.servers.cache import CHECKOUT
from tests.unit.metric_names import families


@pytest.mark.parametrize("path", DOCUMENTS)
def test_made_from_the_code_as_it_is(path: str) -> None:
    assert (CHECKOUT / path).read_text() == DOCUMENTS[path](), (
        "run `make references`, and commit what it changes"
    )


def test_every_setting_is_there() -> None:
    headings = re.findall(r"^### (\S+)$", (CHECKOUT / "docs/reference/settings.md").read_text(), re.MULTILINE)
    assert headings == [setting.key for setting in SETTINGS]


def test_every_metric_is_there() -> None:
    """The page on metrics is written by hand: name, kind and labels are held against a scrape."""
    page = (CHECKOUT / "docs/reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(cdc_outbox_\w+)` \| (\w+) \| ([^|]+) \|", page, re.MULTILINE)
    told = {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert told == families()


def test_errors_are_found_in_the_code() -> None:
    said = sayings()
    assert said.keys() <= vars(errors).keys()
    assert sum(len(pairs) for pairs in said.values()) > 150
    assert ("--all and <flag> contradict each other", "leave one of them out") in said["UsageError"]


EXAMPLES = [(entry, example) for entry in entries() for example in entry.examples]


@pytest.mark.parametrize(("entry", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_examples_of_the_help_are_right(entry: Entry, example: str) -> None:
    words = shlex.split(re.split(r" [|>] ", example)[0])
    [called] = [each for each in entries() if words[: len(each.words.split())] == each.words.split()][-1:]
    assert called.words.startswith(entry.words) or entry.words.startswith(called.words)
    known = {name for flag in called.flags for name in flag.usage.replace(",", "").split()}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known | {"--help"}
