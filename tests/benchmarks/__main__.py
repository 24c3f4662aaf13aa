"""`python -m tests.benchmarks`: choose parts and sizes, print tables, or one JSON document."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from tests.benchmarks import drain
from tests.benchmarks.backlog import Backlog, Shape
from tests.benchmarks.ground import Ground
from tests.benchmarks.report import against, mib, table

Document = dict[str, Any]


def say(text: str) -> None:
    """Show progress and tables on stderr when stdout is for JSON."""
    print(text, file=sys.stderr if OPTIONS.json else sys.stdout, flush=True)


def shapes(options: argparse.Namespace) -> dict[str, Shape]:
    """The backlogs by the name of their part."""
    rows = options.rows
    return {
        "drain": Shape(f"{rows} transactions of one row", rows),
        "hundred": Shape(f"{rows // 100} transactions of 100 rows", rows // 100, 100),
        "large": Shape(f"one transaction of {rows * 5 // 3} rows", 1, rows * 5 // 3),
        "wide": Shape(
            f"{rows} transactions of one row, 40 topics of 12 partitions, 100000 keys",
            rows,
            kind="wide",
            kinds=40,
            keys=100_000,
            partitions=12,
        ),
    }


BARS = {
    ("drain", "unix"): (0.6, 8.0),
    ("drain", "tcp"): (0.45, 8.0),
    ("hundred", "unix"): (0.6, 4.5),
    ("large", "unix"): (0.6, 4.5),
    ("wide", "unix"): (0.5, 8.0),
}
"""Part and socket → least part of the reader's rate, and most CPU per event in µs."""


def drains(ground: Ground, part: str) -> Document:
    """One backlog over both kinds of socket."""
    shape = shapes(OPTIONS)[part]
    ground.topics(shape)
    answer: Document = {"shape": shape.name, "rows": shape.rows, "sockets": {}}
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        for socket in OPTIONS.sockets:
            beside = part == "drain"
            result = drain.compare(ground, backlog, shape, socket, repeat=OPTIONS.repeat, beside=beside)
            answer["sockets"][socket] = _drained(part, socket, result)
    return answer


def _drained(part: str, socket: str, result: drain.Comparison) -> Document:
    figures = [result.relay, *result.others]
    say(
        table(
            f"{result.shape}, over {'a Unix socket' if socket == 'unix' else 'TCP'}",
            ("", "events/s", "CPU µs/event", "walsender µs/event", "peak"),
            [
                (
                    each.reader,
                    f"{each.rate:,.0f}",
                    f"{each.cpu_us:.2f}",
                    f"{each.walsender_us:.2f}",
                    mib(each.peak_bytes),
                )
                for each in figures
            ],
        )
    )
    bar = BARS.get((part, socket))
    walsender = result.relay.walsender_us / result.others[0].walsender_us
    if bar is None:
        say(f"\nof the reader's rate: {result.ratio:.2f}")
    else:
        say(f"\nof the reader's rate: {against(result.ratio, bar[0], least=True)}")
        say(f"relay's CPU per event: {against(result.relay.cpu_us, bar[1], least=False)}")
    if socket == "tcp":
        say(f"walsender's CPU, of the reader's: {against(walsender, 1.2, least=False)}")
    if result.skipped:
        say(f"left out: {result.skipped}")
    if result.relay.extra:
        say(f"records that came twice: {result.relay.extra}")
    return {
        "ratio": round(result.ratio, 3),
        "walsender_ratio": round(walsender, 3),
        "figures": [drain.document(each) for each in figures],
        "left_out": result.skipped,
    }


def warm_up(ground: Ground) -> None:
    """Let the JVM compile and the caches fill: the first drain is nobody's figure."""
    shape = Shape("warm-up", 100_000)
    ground.topics(shape)
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        for _ in range(2):
            drain.relay(ground, backlog, shape, "unix")


PARTS: dict[str, Callable[[Ground], Document]] = {
    "drain": lambda ground: drains(ground, "drain"),
    "hundred": lambda ground: drains(ground, "hundred"),
    "large": lambda ground: drains(ground, "large"),
    "wide": lambda ground: drains(ground, "wide"),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeat it for several")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of a backlog (300000)")
    parser.add_argument(
        "--repeat", type=int, default=3, help="drains of each, of which the median counts (3)"
    )
    parser.add_argument("--sockets", nargs="+", choices=("unix", "tcp"), default=("unix", "tcp"))
    parser.add_argument("--json", action="store_true", help="print one document, and the tables on stderr")
    return parser.parse_args()


def main() -> None:
    """Measure the parts that were asked for."""
    answer: Document = {"schema_version": 1}
    with Ground() as ground:
        answer |= ground.describe()
        say(", ".join(f"{name} {value}" for name, value in ground.describe().items()))
        warm_up(ground)
        for part in OPTIONS.only or PARTS:
            answer[part] = PARTS[part](ground)
    if OPTIONS.json:
        print(json.dumps(answer, indent=2))


OPTIONS = _options()
if __name__ == "__main__":
    main()
