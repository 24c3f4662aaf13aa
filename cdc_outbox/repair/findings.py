"""What an audit has found: of each kind how many, and the first of them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Kind:
    """One kind of finding: how many, and the first of them, each as a record for a person and a machine.

    Those of rows are the oldest, in the order of their times of writing, whatever the order in which they were found.
    """

    count: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)

    def add(self, limit: int, make: Callable[[], dict[str, Any]]) -> None:
        """Count one, and keep what `make` says of it among the first."""
        self.count += 1
        if len(self.events) < limit:
            self.events.append(make())

    def add_row(self, limit: int, created_us: int, make: Callable[[], dict[str, Any]]) -> None:
        """Count one of a row, and keep it among the oldest. `created_us`: µs since 1970; 0, not known, comes last."""
        self.count += 1
        moment = created_us or inf
        at = bisect_right(self._times, moment)
        if at < limit:
            self._times.insert(at, moment)
            self.events.insert(at, make())
            del self._times[limit:], self.events[limit:]


@dataclass(slots=True)
class Findings:
    """All that was found. The first six are faults."""

    missing: Kind = field(default_factory=Kind)
    twice: Kind = field(default_factory=Kind)
    out_of_order: Kind = field(default_factory=Kind)
    foreign: Kind = field(default_factory=Kind)
    moved_keys: Kind = field(default_factory=Kind)
    unknown: Kind = field(default_factory=Kind)
    undecided: Kind = field(default_factory=Kind)
    under_way: Kind = field(default_factory=Kind)
    delivered: int = 0
    repeats: int = 0
    """Copies that were sent from the table."""
    left_out: int = 0
    """Rows that a rule leaves out, and that aren't found."""
    sent_elsewhere: int = 0
    """Rows that the table calls sent, and that aren't found."""
    without_row: int = 0
    """Messages of events without a row, where that is no fault."""
    same_id: int = 0
    """Rows that have the id of another row."""
    assumed: int = 0
    """Rows under way that nothing shows to be so: there were too many to look for."""
    oldest_under_way: int | None = None
    """µs since 1970."""
    oldest_missing: int | None = None
    """The same, of those that are missing."""
