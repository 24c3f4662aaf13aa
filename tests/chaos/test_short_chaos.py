"""A minute of everything at once: whatever breaks, in whatever order, nothing is lost and nothing is out of order."""

from __future__ import annotations

import os
import secrets

import pytest

from tests.chaos.rig import Rig
from tests.chaos.storm import Storm

RATE = 500
SECONDS = 60.0


@pytest.mark.chaos
@pytest.mark.postgres
@pytest.mark.kafka
@pytest.mark.timeout(420)
def test_nothing_is_lost_or_disordered_in_a_storm(capsys: pytest.CaptureFixture[str]) -> None:
    """CDC_OUTBOX_CHAOS_SEED repeats the faults of a run, in their order."""
    seed = int(os.environ.get("CDC_OUTBOX_CHAOS_SEED") or secrets.randbelow(1 << 31))
    with capsys.disabled():
        print(f"\nchaos: CDC_OUTBOX_CHAOS_SEED={seed}", flush=True)
    with Rig(rate=RATE, seed=seed) as rig:
        storm = Storm(rig, seed)
        try:
            storm.blow(SECONDS)
            judgement = rig.judge()
        finally:
            print("\n".join(storm.log))
            print("\n".join(relay.text(12) for relay in rig.pipeline.relays[-3:]))
    with capsys.disabled():
        print(f"chaos: {judgement}", flush=True)
    assert not judgement.faults, "\n".join(judgement.faults)
