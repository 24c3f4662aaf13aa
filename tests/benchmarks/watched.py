"""What it costs to be watched: the same backlog drained with the whole watch on and scraped, and without any of it."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.benchmarks import drain
from tests.servers.relay import RelayProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.benchmarks.backlog import Backlog, Shape
    from tests.benchmarks.ground import Ground

EVERY = 1.0
"""Seconds between scrapes: fifteen times as often as Prometheus does it by default."""


class Scraped(RelayProcess):
    """A relay that is scraped from its first moment on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scrapes = 0
        self._over = threading.Event()
        self._scraper = threading.Thread(target=self._scrape, name="scraper", daemon=True)
        self._scraper.start()

    def _scrape(self) -> None:
        while not self._over.wait(EVERY):
            with contextlib.suppress(OSError):
                self.get("/metrics")
                self.scrapes += 1

    def close(self) -> None:
        """End the scraper as well."""
        self._over.set()
        self._scraper.join(10)
        super().close()


UNWATCHED = partial(RelayProcess, module="tests.benchmarks.unwatched", http=False)


@dataclass(frozen=True)
class Cost:
    """Medians with and without, in turns over the same backlog."""

    watched: drain.Figures
    unwatched: drain.Figures

    @property
    def rate(self) -> float:
        """Events a second with the watch, of those without."""
        return self.watched.rate / self.unwatched.rate

    @property
    def cpu(self) -> float:
        """CPU an event with the watch, of that without."""
        return self.watched.cpu_us / self.unwatched.cpu_us


def compare(ground: Ground, backlog: Backlog, shape: Shape, *, repeat: int) -> Cost:
    """Drain `repeat` times with and without the watch, over a Unix socket."""
    runs: dict[str, list[drain.Figures]] = {"watched": [], "unwatched": []}
    for turn in range(repeat):
        kinds: list[tuple[str, Callable[..., RelayProcess]]] = [
            ("watched", Scraped),
            ("unwatched", UNWATCHED),
        ]
        for name, start in kinds if turn % 2 else reversed(kinds):
            figures = drain.relay(ground, backlog, shape, "unix", start=start)
            runs[name].append(replace(figures, reader=name))
    return Cost(drain.median(runs["watched"]), drain.median(runs["unwatched"]))
