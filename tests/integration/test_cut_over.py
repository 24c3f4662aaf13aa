"""From a polling relay to this one and back, under load, by the commands of the documents as they stand there.

Each of the three tables once; `python -m tests.chaos.cutover` does it as often as one likes.
"""

from __future__ import annotations

import re

import pytest

from tests.polling import steps
from tests.polling.scene import AGAIN, FIRST, LEAVE, RETURN, Scene
from tests.polling.table import TABLES
from tests.servers.kafka import Kafka

RUN_HERE = ["settings", "partitioner", "prepare", "check", "compare", "slot", "pending", "stop-old"]
RUN_HERE += ["backfill", "backfill-given-up", "backfill-killed", "start", "audit", "retreat"]


def test_each_block_is_run() -> None:
    assert list(LEAVE) == RUN_HERE
    assert list(RETURN) == ["grant", "mark", "marked", "drop"]


@pytest.mark.postgres
@pytest.mark.parametrize(("letter", "major"), [("a", 18), ("b", 15), ("c", 17)])
def test_there_and_back_under_load(
    letter: str, major: int, kafka: Kafka, capsys: pytest.CaptureFixture[str]
) -> None:
    with Scene(TABLES[letter], kafka, seed=1, rate=30, major=major) as scene:
        steps.prepare(scene)
        steps.begin(scene, events=150)
        checked = scene.run("check", code=78)
        assert "1 failed" in checked.stdout
        if letter == "a":
            assert "nothing would be different" in scene.run("compare").stdout

        if letter == "c":
            steps.retreat(scene)
            scene.shop.wait_written(50)
        made = steps.leave(scene, slot_first=letter != "c", kill_old=letter == "a")
        if made is not None and made.returncode:
            assert anonymous(made.stderr) == anonymous(LEAVE["pending"])
        scene.wait_proven()
        audited = scene.run("audit", code=1 if scene.undelivered else 0).stdout
        assert f"missing      {len(scene.undelivered)}" in audited

        steps.go_back(scene)
        scene.shop.wait_written(50)
        steps.end(scene)
        verdict = scene.verdict()
    with capsys.disabled():
        print(f"\ncut-over, table {letter}: {verdict}", flush=True)
    verdict.require()
    assert {FIRST, "backfill", "stream", AGAIN} == set(verdict.first)
    assert not [cause for cause in verdict.twice if "by the old relay again" in cause]


@pytest.mark.postgres
def test_a_slot_that_has_its_name_at_once(kafka: Kafka) -> None:
    """Nothing waits when the slot is made: what the old relay sends from then on comes again, without a backfill."""
    with Scene(TABLES["c"], kafka, seed=2, rate=30) as scene:
        steps.prepare(scene)
        assert steps.make_slot(scene).returncode == 0
        steps.begin(scene, events=100)
        steps.stop_old(scene)
        scene.launch("start")
        steps.end(scene)
        verdict = scene.verdict().require()
    assert {FIRST, "stream"} == set(verdict.first)
    assert sum(verdict.twice.values()) == verdict.first[FIRST]


def anonymous(text: str) -> str:
    """Without the number of rows, those by their marks, and what comes before the error."""
    return re.sub(r"; public\.outbox by .*|\d+ rows?", "", text[text.index("error: ") :])
