"""The same line again and again: a few times at once, then once a minute with how many were held back."""

from __future__ import annotations

import pytest

from cdc_outbox.repeats import AGAIN, FEW, Repeats


class Stage:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.repeats = Repeats()
        monkeypatch.setattr("cdc_outbox.repeats.time.monotonic", lambda: self.now)

    def say(self, event: str, of: str) -> bool:
        return self.repeats.say(self.to, event, of, what=of)

    def to(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


def test_what_comes_every_five_seconds_for_an_hour(stage: Stage) -> None:
    for _ in range(720):
        stage.say("state", "streaming")
        stage.now += 5
    assert len(stage.lines) <= FEW + 60
    fields = [fields for _, fields in stage.lines]
    assert fields[:FEW] == [{"what": "streaming"}] * FEW
    assert fields[-1] == {"what": "streaming", "held_back": AGAIN / 5 - 1}


def test_each_is_counted_for_itself(stage: Stage) -> None:
    for _ in range(FEW + 1):
        stage.say("state", "streaming")
    assert not stage.say("state", "streaming")
    assert stage.say("state", "held")
    assert stage.say("held", "streaming")


def test_a_minute_without_it_makes_it_new(stage: Stage) -> None:
    for _ in range(FEW + 3):
        stage.say("state", "streaming")
    stage.now += AGAIN
    assert [stage.say("state", "streaming") for _ in range(FEW)] == [True] * FEW
    assert [fields.get("held_back") for _, fields in stage.lines[FEW:]] == [3, *[None] * (FEW - 1)]


def test_what_lasts_is_said_in_any_case(stage: Stage) -> None:
    for _ in range(FEW + 3):
        stage.say("state", "streaming")
    stage.repeats.insist(stage.to, "state", "streaming", what="streaming")
    assert stage.lines[-1] == ("state", {"what": "streaming", "held_back": 3})
    assert not stage.say("state", "streaming")


def test_what_never_comes_again_is_forgotten(stage: Stage) -> None:
    for number in range(1000):
        stage.say("starting over", f"at {number}")
        stage.now += 1
    assert len(stage.repeats._lines) <= AGAIN + 1
