"""The cut-over from a polling relay under load, ten times in a row, and a count of what each did.

    python -m tests.chaos.cutover --table a --runs 10
    python -m tests.chaos.cutover --table b --runs 10 --back
    python -m tests.chaos.cutover --table c --runs 10 --kills

Each run is the how-to's commands on a database of its own, with the shop writing all the while. Every other one kills
the old relay instead of stopping it, and every third has no slot before the backfill. `--back` goes back to polling as
well, every other time from a relay that was killed. `--kills` lets a backlog grow and kills the backfill at a random
point, once a run, and runs it again. Ends with 1 where an event was lost, invented or out of
order, or came twice without a cause that is known.
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time

from tests.polling import steps
from tests.polling.books import Verdict
from tests.polling.scene import Scene
from tests.polling.table import TABLES, Table
from tests.servers.kafka import Kafka, KafkaBroker


def once(table: Table, kafka: Kafka, options: argparse.Namespace, run: int) -> Verdict:
    """One run; what became of each event."""
    seed = options.seed + run
    chance = random.Random(seed)
    with Scene(table, kafka, seed=seed, rate=options.rate) as scene:
        steps.prepare(scene)
        steps.begin(scene, events=400)
        steps.leave(
            scene,
            slot_first=run % 3 < 2,
            kill_old=run % 2 == 1,
            backlog=options.backlog if options.kills else 0,
            kills=1 if options.kills else 0,
            chance=chance,
        )
        scene.shop.wait_written(200)
        if options.back:
            steps.go_back(scene, kill_ours=run % 2 == 1)
            scene.shop.wait_written(200)
        steps.end(scene)
        for point in scene.killed_at:
            print(f"cut-over: run {run}, a backfill was killed {point}", flush=True)
        return scene.verdict()


def main() -> int:
    """Run them all; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cutover", description=__doc__)
    parser.add_argument("--table", choices=sorted(TABLES), required=True)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=60, help="transactions a second (60), of 4 events each")
    parser.add_argument("--back", action="store_true", help="go back to polling as well")
    parser.add_argument("--kills", action="store_true", help="kill each backfill once, and run it again")
    parser.add_argument(
        "--backlog", type=int, default=1500, help="events that a backfill to be killed has (1500)"
    )
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 30))
    options = parser.parse_args()
    print(f"cut-over: table {options.table}, {options.runs} runs, --seed {options.seed}", flush=True)
    verdicts: list[Verdict] = []
    kafka = KafkaBroker().start()
    try:
        for run in range(options.runs):
            began = time.monotonic()
            verdict = once(TABLES[options.table], kafka, options, run)
            verdicts.append(verdict)
            print(f"cut-over: run {run}, {time.monotonic() - began:.0f} s: {verdict}", flush=True)
            for fault in verdict.faults[:10]:
                print(f"wrong: {fault}", file=sys.stderr)
    finally:
        kafka.close()
    faults = sum(len(each.faults) for each in verdicts)
    print(
        f"cut-over: {len(verdicts)} runs, {sum(each.committed for each in verdicts)} committed,"
        f" {sum(each.records for each in verdicts)} delivered, lost {sum(len(each.lost) for each in verdicts)},"
        f" out of order {sum(len(each.out_of_order) for each in verdicts)},"
        f" twice {sum(sum(each.twice.values()) for each in verdicts)},"
        f" unexplained {sum(len(each.unexplained) for each in verdicts)}"
    )
    print("cut-over: passed" if not faults else f"cut-over: failed, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
