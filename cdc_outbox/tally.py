"""What the relay has counted since its process began: plain numbers, added up a batch at a time.

Sessions come and go, and with each its stream and its publisher; the tally stays. Nobody here knows how the numbers
are shown. A count of something that has names is a dictionary from name to number; names are few, but for those of
topics, which are bounded where they are shown.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from cdc_outbox.errors import KafkaUnavailable, PostgresUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SECONDS: Final = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 90.0, 120.0, 180.0, 300.0, 600.0),
    *(1800.0, 3600.0, 7200.0),
)
"""Upper bounds of durations: fine where a live stream is and an outage ends, and up to the hours of a backlog."""

ROWS: Final = (1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1e3, 5e3, 1e4, 1e5, 1e6)
"""Upper bounds of the number of rows in a transaction."""


class Histogram:
    """How often a value fell into which interval. `counts[i]` is for values up to `bounds[i]`, the last for more."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, weight: int = 1) -> None:
        """`weight` times the same value."""
        self.counts[bisect_left(self.bounds, value)] += weight
        self.sum += value * weight

    def spread(self, low: float, high: float, weight: int) -> None:
        """`weight` values of which only the smallest and the largest are known: as if evenly between them."""
        bounds, counts = self.bounds, self.counts
        first, last = bisect_left(bounds, low), bisect_left(bounds, high)
        self.sum += (low + high) / 2 * weight
        placed = 0
        for index in range(first, last):
            below = int(weight * (bounds[index] - low) / (high - low))
            counts[index] += below - placed
            placed = below
        counts[last] += weight - placed


def quantile(bounds: Sequence[float], counts: Sequence[int], part: float) -> float | None:
    """The value that `part` of the values don't exceed, evenly within its interval; None without any.

    Beyond the last bound nothing is known, so it is that bound.
    """
    wanted = sum(counts) * part
    if not wanted:
        return None
    below = 0
    for index, count in enumerate(counts[:-1]):
        if count and below + count >= wanted:
            lower = bounds[index - 1] if index else 0.0
            return lower + (bounds[index] - lower) * (wanted - below) / count
        below += count
    return bounds[-1]


class Tally:
    """The numbers. `keepalives`, `status_updates`, `received` and `skipped` are those of the sessions that are over."""

    __slots__ = (
        "bytes",
        "cleaned",
        "cleanup_failures",
        "first",
        "guard_checks",
        "keepalives",
        "last_acknowledged",
        "latency",
        "publish_duration",
        "publish_errors",
        "published",
        "push_failures",
        "received",
        "reconnects",
        "restarts",
        "skipped",
        "status_updates",
        "transactions",
    )

    def __init__(self) -> None:
        self.received = 0
        self.skipped: Counter[str] = Counter()
        self.keepalives = 0
        self.status_updates = 0
        self.published: Counter[str] = Counter()
        """Events that the bus has confirmed, by topic."""
        self.bytes: Counter[str] = Counter()
        """Bytes of their batches before compression, by topic."""
        self.publish_errors: Counter[str] = Counter()
        self.guard_checks: Counter[str] = Counter(passed=0, failed=0, unanswered=0)
        self.reconnects: Counter[tuple[str, str]] = Counter()
        self.restarts: Counter[str] = Counter()
        self.latency = Histogram(SECONDS)
        """Seconds from a row's commit, by PostgreSQL's clock, to the bus's confirmation, by ours."""
        self.publish_duration = Histogram(SECONDS)
        self.transactions = Histogram(ROWS)
        self.first: tuple[str, float | None] | None = None
        """Topic and latency in seconds (None: not known) of what was confirmed first, until somebody has told it."""
        self.cleaned = 0
        """Rows that were removed from the table."""
        self.cleanup_failures: Counter[str] = Counter()
        self.push_failures: Counter[str] = Counter()
        """Times that metrics could not be pushed."""
        self.last_acknowledged: float | None = None
        """When the bus confirmed something last, in seconds since the epoch."""

    def confirmed(
        self, topic: str, events: int, size: int, *, since: float, commits_us: tuple[int, int]
    ) -> None:
        """The bus has confirmed a batch of `size` bytes that it was given at `since` (monotonic).

        `commits_us`: commit times of its first and last row in microseconds since the epoch, 0 where not known.
        """
        is_first = not self.published
        self.published[topic] += events
        self.bytes[topic] += size
        self.last_acknowledged = now = time.time()
        self.publish_duration.observe(time.monotonic() - since)
        oldest, newest = commits_us
        if is_first:
            self.first = topic, max(0.0, now - oldest / 1_000_000) if oldest else None
        if oldest:
            longest = max(0.0, now - oldest / 1_000_000)
            shortest = min(longest, max(0.0, now - newest / 1_000_000))
            self.latency.spread(shortest, longest, events)

    def transactions_of(self, sizes: Mapping[int, int]) -> None:
        """Transactions came: number of rows → how many with that number."""
        for rows, count in sizes.items():
            self.transactions.observe(rows, count)

    def ended(self, error: Exception, *, streamed: bool) -> None:
        """A session, or the attempt at one, ended with an error, and another is to begin."""
        if streamed:
            self.restarts[reason(error)] += 1
        if isinstance(error, PostgresUnavailable):
            self.reconnects["postgres", reason(error)] += 1
        elif isinstance(error, KafkaUnavailable):
            self.reconnects["kafka", reason(error)] += 1


def reason(error: BaseException) -> str:
    """The error's class as a word: `PostgresShutdown` is `postgres_shutdown`. There are as many as classes."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).lower()


TOPICS: Final = 100
"""Topics that are shown by name; all others are one, called `other`."""


def by_topic(counts: Mapping[str, int]) -> dict[str, int]:
    """The counts of the topics that were met first, and all the rest as `other`."""
    shown = dict(islice(counts.items(), TOPICS))
    if len(counts) > TOPICS:
        shown["other"] = shown.get("other", 0) + sum(islice(counts.values(), TOPICS, None))
    return shown
