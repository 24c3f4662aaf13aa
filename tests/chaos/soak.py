"""The soak: minutes of load with a `kill -9` of the relay at random, and a count of what that cost.

    python -m tests.chaos.soak --minutes 10 --rate 2000

Ends with 1 where an event was lost, out of order or invented; where one came twice that no kill accounts for; or where
a kill cost more than the events of its last two seconds. `--storm` breaks everything else too, as the short chaos
test does; what then comes twice is counted and not judged, for a server that crashes forgets confirmations.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time

from tests.chaos.rig import Judgement, Rig
from tests.chaos.storm import Storm
from tests.servers.wait import eventually

LAST_MS = 2000
"""A kill may send again what Kafka took within so many ms before it."""

MEBIBYTE = 1 << 20


class Progress:
    """A line every ten seconds."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._began = self._said = time.monotonic()

    def tell(self, *, at_once: bool = False) -> None:
        """Print where we are, unless we did a moment ago."""
        now = time.monotonic()
        if now - self._said < 10 and not at_once:
            return
        self._said = now
        rig, relay = self._rig, self._rig.pipeline.relay
        memory = f", relay {relay.rss() / MEBIBYTE:.0f} MiB" if relay.running else ""
        print(
            f"{now - self._began:6.0f} s: {rig.load.committed} committed, {rig.tally.books.distinct} arrived,"
            f" {len(rig.tally.books.again)} twice, {len(rig.kills)} kills{memory}",
            flush=True,
        )


def kill_at_random(rig: Rig, chance: random.Random, seconds: float, every: float) -> None:
    """Load for so long; in each window of `every` seconds the relay is killed at one moment and started again."""
    progress = Progress(rig)
    end = time.monotonic() + seconds
    window = time.monotonic()
    while time.monotonic() < end:
        # Not at a window's very edge, so that each relay has time to confirm something.
        kill_at = min(window + chance.uniform(0.1, 0.9) * every, end)
        window += every

        def due(kill_at: float = kill_at) -> bool:
            rig.check()
            progress.tell()
            assert rig.pipeline.relay.running, f"the relay ended by itself:\n{rig.pipeline.relay.text()}"
            return time.monotonic() >= kill_at

        eventually(due, every * 3, "the next kill")
        if time.monotonic() < end:
            rig.kill_relay()
            rig.pipeline.start()
    progress.tell(at_once=True)


def objections(judgement: Judgement, *, strict: bool) -> list[str]:
    """What is wrong with a run; `strict` judges also what came twice."""
    wrong = list(judgement.faults)
    if strict and judgement.unexplained:
        wrong.append(f"{judgement.unexplained} events came twice without a kill")
    if strict:
        wrong += [
            f"the kill at {kill.at_ms} sent again what was {kill.oldest_ms / 1000:.2f} s old"
            for kill in judgement.kills
            if kill.oldest_ms > LAST_MS
        ]
    return wrong


def main() -> int:
    """Run the soak; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.soak", description="Load, kills, and a count."
    )
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=float, default=2000, help="events a second (2000)")
    parser.add_argument("--every", type=float, default=20, help="seconds a kill (20)")
    parser.add_argument(
        "--seed", type=int, default=None, help="repeats the times of a run's kills, or its faults"
    )
    parser.add_argument("--storm", action="store_true", help="break the servers and the network too")
    options = parser.parse_args()
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    print(f"soak: {options.minutes:g} minutes at {options.rate:g} events/s, --seed {seed}", flush=True)
    with Rig(rate=options.rate, seed=seed) as rig:
        if options.storm:
            storm = Storm(rig, seed)
            try:
                storm.blow(options.minutes * 60)
            finally:
                print("\n".join(storm.log))
        else:
            kill_at_random(rig, random.Random(seed), options.minutes * 60, options.every)
        judgement = rig.judge(timeout=300)
    for kill in judgement.kills:
        print(f"kill: {kill.again} came twice, the oldest {kill.oldest_ms / 1000:.2f} s before it")
    print(f"soak: {judgement}")
    wrong = objections(judgement, strict=not options.storm)
    for each in wrong[:20]:
        print(f"wrong: {each}", file=sys.stderr)
    print("soak: passed" if not wrong else f"soak: failed, {len(wrong)} objections")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
