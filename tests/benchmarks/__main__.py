"""`python -m tests.benchmarks`: choose parts and sizes, print tables, or one JSON document."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from tests.benchmarks import audit, backfill, drain, latency, marked, memory, restart, watched
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
        if len(shape.topics) > 1:
            drain.relay(
                ground, backlog, shape, "unix"
            )  # the broker makes each partition's files at its first record
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


def polling(ground: Ground) -> Document:
    """The polling relay's drain and its table, for comparison."""
    figures = drain.polled(ground, OPTIONS.rows // 3)
    say(
        table(
            f"The polling relay: {figures.events} pending rows",
            ("", "events/s", "CPU µs/event", "its server session µs/event", "peak"),
            [
                (
                    figures.reader,
                    f"{figures.rate:,.0f}",
                    f"{figures.cpu_us:.1f}",
                    f"{figures.walsender_us:.1f}",
                    mib(figures.peak_bytes),
                )
            ],
        )
    )
    return drain.document(figures)


def latencies(ground: Ground) -> Document:
    """Commit to append at a steady rate, of the relay and of the polling relay."""
    figures = [each(ground, OPTIONS.rate, OPTIONS.seconds) for each in (latency.relay, latency.polled)]
    say(
        table(
            f"Insert to Kafka in ms, at {OPTIONS.rate} one-row transactions a second for {OPTIONS.seconds:g} s",
            ("", "append p50", "p99", "consumer p50", "p99", "CPU µs/event", "server µs/event"),
            [
                (
                    each.reader,
                    f"{each.append_p50:.1f}",
                    f"{each.append_p99:.1f}",
                    f"{each.arrival_p50:.1f}",
                    f"{each.arrival_p99:.1f}",
                    f"{each.cpu_us:.0f}",
                    f"{each.server_us:.0f}",
                )
                for each in figures
            ],
        )
    )
    say(f"\np50 to the append: {against(figures[0].append_p50, 2.0, least=False, form='{:.1f}')} ms")
    say(f"p99 to the append: {against(figures[0].append_p99, 10.0, least=False, form='{:.1f}')} ms")
    return {"figures": [asdict(each) for each in figures]}


def watch(ground: Ground) -> Document:
    """What the watch costs a drain: at most 2 % of its speed and of its CPU."""
    shape = shapes(OPTIONS)["drain"]
    ground.topics(shape)
    with Backlog(ground.postgres) as backlog:
        backlog.fill(shape)
        cost = watched.compare(ground, backlog, shape, repeat=OPTIONS.repeat)
    say(
        table(
            f"{shape.name}, with the watch on and scraped each second, and without",
            ("", "events/s", "CPU µs/event", "peak"),
            [
                (each.reader, f"{each.rate:,.0f}", f"{each.cpu_us:.2f}", mib(each.peak_bytes))
                for each in (cost.watched, cost.unwatched)
            ],
        )
    )
    say(f"\nof the speed without: {against(cost.rate, 0.98, least=True)}")
    say(f"of the CPU without: {against(cost.cpu, 1.02, least=False)}")
    figures = [drain.document(each) for each in (cost.watched, cost.unwatched)]
    return {"rate": round(cost.rate, 3), "cpu": round(cost.cpu, 3), "figures": figures}


def memories(ground: Ground) -> Document:
    """Resident memory, steady and at its peaks."""
    peaks = [
        memory.idle(ground),
        memory.through(ground, OPTIONS.rows * 10 // 3),
        memory.outage(ground, OPTIONS.rows),
        memory.event(ground, 1),
        memory.event(ground, 8),
    ]
    say(
        table(
            "Resident memory",
            ("", "MB", "bar", "reached"),
            [
                (
                    each.what,
                    f"{each.bytes / 2**20:.1f}",
                    f"{each.bar / 2**20:.0f}",
                    "yes" if each.bytes < each.bar else "NO",
                )
                for each in peaks
            ],
        )
    )
    return {"peaks": [asdict(each) for each in peaks]}


def starts(ground: Ground) -> Document:
    """Start to first event, and what `kill -9` sends again."""
    seconds = statistics.median(restart.first_event(ground) for _ in range(OPTIONS.repeat))
    again = restart.after_kill(ground, OPTIONS.rows)
    say(f"\nStart to the first event: {against(seconds, 1.0, least=False)} s")
    say(
        f"Sent again after kill -9 in a drain of {again.rows}: {again.twice} events, "
        f"of {again.last_two_seconds} in the last 2 s: {'yes' if again.twice <= again.last_two_seconds else 'NO'}"
    )
    return {"first_event_seconds": round(seconds, 3), **asdict(again)}


def marks(ground: Ground) -> Document:
    """What `--mark update` costs the relay in a drain, and the server at a steady load."""
    shape = shapes(OPTIONS)["drain"]
    ground.topics(shape)
    cost = marked.drains(ground, shape, repeat=OPTIONS.repeat)
    say(
        table(
            f"{shape.name}, with --mark update and without",
            ("", "events/s", "CPU µs/event", "peak"),
            [
                (each.reader, f"{each.rate:,.0f}", f"{each.cpu_us:.2f}", mib(each.peak_bytes))
                for each in (cost.marked, cost.unmarked)
            ],
        )
    )
    say(f"\nof the speed without: {cost.rate:.2f}; of the CPU without: {cost.cpu:.2f}")
    say(f"rows marked a second, once they are confirmed: {cost.marks_per_second:,.0f}")
    loads = [marked.load(ground, what, OPTIONS.rate, OPTIONS.seconds) for what in ("marked", "unmarked")]
    say(
        table(
            f"{OPTIONS.rate} one-row transactions a second for {OPTIONS.seconds:g} s",
            ("", "relay µs/event", "walsender µs/event", "marking session µs/event", "WAL bytes/event"),
            [
                (
                    each.what,
                    f"{each.relay_us:.0f}",
                    f"{each.walsender_us:.0f}",
                    f"{each.session_us:.0f}",
                    f"{each.wal_bytes:,.0f}",
                )
                for each in loads
            ],
        )
    )
    return {
        "rate": round(cost.rate, 3),
        "cpu": round(cost.cpu, 3),
        "marks_per_second": round(cost.marks_per_second),
        "loads": [asdict(each) for each in loads],
    }


def backfills(ground: Ground) -> Document:
    """Rows of the table, published before the stream begins."""
    figures = [backfill.run(ground, ordered, OPTIONS.table_rows) for ordered in ("a sequence", "time and id")]
    say(
        table(
            f"backfill of {OPTIONS.table_rows} rows, over TCP",
            ("ordered by", "rows/s", "CPU µs/row", "peak", "records"),
            [
                (
                    each.ordered,
                    f"{each.rate:,.0f}",
                    f"{each.cpu_us:.2f}",
                    against(each.peak_bytes / 2**20, backfill.BAR / 2**20, least=False, form="{:.1f}"),
                    each.records,
                )
                for each in figures
            ],
        )
    )
    return {"figures": [{**asdict(each), "rows_per_second": round(each.rate)} for each in figures]}


def audits(ground: Ground) -> Document:
    """Table and topics compared, with and without provenance headers."""
    figures = [audit.run(ground, OPTIONS.table_rows, provenance=provenance) for provenance in (False, True)]
    say(
        table(
            f"audit of {OPTIONS.table_rows} delivered rows, over TCP",
            ("provenance headers", "events/s", "CPU µs/event", "peak", "on disk"),
            [
                (
                    "yes" if each.provenance else "no",
                    f"{each.rate:,.0f}",
                    f"{each.cpu_us:.2f}",
                    against(each.peak_bytes / 2**20, audit.BAR / 2**20, least=False, form="{:.1f}"),
                    mib(each.spool_bytes),
                )
                for each in figures
            ],
        )
    )
    return {"figures": [{**asdict(each), "events_per_second": round(each.rate)} for each in figures]}


PARTS: dict[str, Callable[[Ground], Document]] = {
    "drain": lambda ground: drains(ground, "drain"),
    "hundred": lambda ground: drains(ground, "hundred"),
    "large": lambda ground: drains(ground, "large"),
    "wide": lambda ground: drains(ground, "wide"),
    "polling": polling,
    "latency": latencies,
    "watch": watch,
    "memory": memories,
    "start": starts,
    "backfill": backfills,
    "mark": marks,
    "audit": audits,
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; repeat it for several")
    parser.add_argument("--rows", type=int, default=300_000, help="rows of a backlog (300000)")
    parser.add_argument(
        "--repeat", type=int, default=3, help="drains of each, of which the median counts (3)"
    )
    parser.add_argument(
        "--table-rows", type=int, default=10_000_000, help="rows of the parts backfill and audit (10000000)"
    )
    parser.add_argument("--rate", type=int, default=1000, help="events/s of the latency part (1000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of the latency part (20)")
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
