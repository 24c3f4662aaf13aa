"""The account of a trial: what the old relay did with each row, and what ours would have done.

Pure: rows come in by `add`, what the table says of them later by `heed`, and `document` is the account. A row is
remembered until the table says that it was sent, and forgotten then: memory holds what waits, and no more of that than
`WATCHED`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from cdc_outbox.repair import difference
from cdc_outbox.repair.difference import Difference
from cdc_outbox.repair.old_book import Book
from cdc_outbox.table.unfit import LEAVE_OUT

if TYPE_CHECKING:
    from cdc_outbox.event import TableName, Values
    from cdc_outbox.repair.difference import Kind, Trouble
    from cdc_outbox.repair.trial import Trial
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.plan import Plan

GRACE: Final = 10.0
"""Seconds that the old relay has for the last rows, at least; twice its longest delay, if that is more."""

LONGEST_GRACE: Final = 60.0

WATCHED: Final = 100_000
"""Rows that may wait for their mark at a time; what comes beyond is counted only."""

STATUSES: Final = 20
"""Statuses that are told apart."""

Key: TypeAlias = "tuple[TableName, str]"


@dataclass(slots=True)
class _Watched:
    """A row that waits for its mark. Without `trouble` ours would send it."""

    xid: int
    commit_us: int
    trouble: Trouble | None
    status: str = ""
    digests: tuple[str | None, ...] = ()
    """Of what it held at its insert, for each of the columns `written`."""
    written: tuple[str, ...] = ()
    changed: Trouble | None = None
    """What to say of it, where the table has held something else in these since."""
    inserted: tuple[str | None, ...] | None = None
    """What its book's columns held at its insert, if they said that it was sent: the old relay leaves them so."""


class Comparison:
    """What was seen of the tables, and what would have been different."""

    def __init__(self, settings: OutboxSettings) -> None:
        self._settings = settings
        self._last: tuple[Plan, Book] | None = None
        self._watched: dict[Key, _Watched] = {}
        self._differences: dict[tuple[Kind, str, bool], Difference] = {}
        self._delays: Counter[float] = Counter()
        self._longest = 0.0
        self.by_sight = False
        """Some delays are those after which we saw the mark: the table has no time of it, or an impossible one."""
        self.placed = False
        """Whether Kafka has said which topics there are: else nobody knows whether ours could deliver."""
        self.events = 0
        self.same = 0
        self.undecided = 0
        self.unwatched = 0
        self.left_out: Counter[str] = Counter()
        """Rows that neither is asked about, by reason: inserted as sent, or left out by `outbox.only`."""
        self.inserted_as: Counter[str] = Counter()
        """Rows that ours would send, by the status with which they were inserted: it sends all of them at once."""
        self.updates_unknown = False
        """Whether rows may have been sent that no INSERT has brought: they couldn't be looked for."""
        self._seen: set[Key] = set()
        self.neither = 0
        """Rows that ours would leave out and that the old relay left as well."""

    def add(self, trial: Trial) -> None:
        """A row came."""
        plan, values = trial.row.plan, trial.row.values
        self._came(plan, values)
        if trial.left_out == "sent":
            self._add_as_sent(trial)
            return
        if trial.left_out is not None and (trial.left_out == "only" or self._is_meant(trial)):
            self.left_out[trial.left_out] += 1
            return
        self.events += 1
        id_ = plan.event_id(values)
        trouble = self._trouble(trial)
        if trouble is None:
            self._note_status(plan, values)
        if id_ is None:
            self._differ(trouble or difference.NAMELESS, "(none)", sent=False)
            return
        key = (plan.table, id_)
        if key in self._watched:
            self._differ(difference.REPEATED, id_, sent=False)
        elif len(self._watched) >= WATCHED:
            self.unwatched += 1
        else:
            book = self._book(plan)
            digests = book.digests(plan, values)
            self._watched[key] = _Watched(
                trial.row.xid, trial.row.commit_us, trouble, digests=digests, written=book.written
            )

    def _came(self, plan: Plan, values: Values) -> None:
        """Remember that the stream has had the row."""
        id_ = plan.event_id(values)
        if len(self._seen) <= WATCHED and id_ is not None:
            self._seen.add((plan.table, id_))

    def add_unseen(self, table: TableName, sent: Iterable[str] | None) -> None:
        """The old relay has sent these rows of the table in the trial; None: nobody knows which."""
        if sent is None or len(self._seen) > WATCHED:
            self.updates_unknown = True
            return
        for id_ in sorted(sent):
            if (table, id_) not in self._seen:
                self.events += 1
                self._differ(difference.NEVER_INSERTED, id_, sent=True)

    def _add_as_sent(self, trial: Trial) -> None:
        """The row was inserted as sent: what the old relay does with it tells whether it is of that opinion."""
        plan, values = trial.row.plan, trial.row.values
        id_ = plan.event_id(values)
        key = (plan.table, id_ or "")
        if id_ is None or key in self._watched or len(self._watched) >= WATCHED:
            self.left_out["sent"] += 1
            return
        texts = plan.raw(values)
        inserted = tuple(texts[name] for name in self._book(plan).columns)
        self._watched[key] = _Watched(
            trial.row.xid, trial.row.commit_us, difference.as_sent(plan.bookkeeping), inserted=inserted
        )

    def _book(self, plan: Plan) -> Book:
        if self._last is None or self._last[0] is not plan:
            self._last = plan, Book.of(plan)
        return self._last[1]

    def _note_status(self, plan: Plan, values: Values) -> None:
        status = plan.bookkeeping.failed or plan.bookkeeping.taken
        if status is None:
            return
        value = values[status.field.at]
        word = "NULL" if value is None else value[:100].decode("utf-8", "backslashreplace")
        if word in self.inserted_as or len(self.inserted_as) < STATUSES:
            self.inserted_as[word] += 1

    def _is_meant(self, trial: Trial) -> bool:
        """Whether a row of another bus is left out because a person said so."""
        plan = trial.row.plan
        bus = plan.needed.get("bus") if trial.left_out == "bus" else None
        return bus is not None and any(plan.shape.find(name) == bus for name in self._settings.only)

    def _trouble(self, trial: Trial) -> Trouble | None:
        if trial.poison is not None:
            return ("poison", trial.poison.reason, str(trial.poison), trial.poison.next)
        if trial.obstacle is not None:
            return ("stuck", trial.obstacle.reason, trial.obstacle.error, trial.obstacle.next)
        if trial.left_out is None:
            return None
        bus = trial.row.plan.needed.get("bus")
        if trial.left_out != "bus" or bus is None:
            return ("left out", trial.left_out, f"ours leaves it out ({trial.left_out})", LEAVE_OUT)
        value = trial.row.values[bus.at]
        word = "NULL" if value is None else value[:100].decode("utf-8", "backslashreplace")
        remedy = (
            f"keep the old relay for them, and say that it is meant: --only {bus.name}=kafka; "
            f"or send them to Kafka as well: --only {bus.name}=kafka --only {shlex.quote(f'{bus.name}={word}')}"
        )
        return ("left out", word, f"it is for the bus {word}, and ours sends those for kafka only", remedy)

    def waiting(self) -> Iterator[tuple[TableName, list[str]]]:
        """The ids of the rows whose mark is awaited, by table, the oldest first."""
        by_table: dict[TableName, list[str]] = {}
        for table, id_ in self._watched:
            by_table.setdefault(table, []).append(id_)
        yield from by_table.items()

    def transaction(self, key: Key) -> int:
        """The number of the transaction that wrote a row which is awaited."""
        return self._watched[key].xid

    def heed(
        self,
        key: Key,
        *,
        sent: bool,
        status: str,
        at_us: int,
        sent_us: int | None,
        texts: tuple[str | None, ...] | None = None,
        digests: tuple[str | None, ...] | None = None,
    ) -> None:
        """The table says of a row at `at_us`: sent, at `sent_us` if it tells, or not, and then its status.

        `texts` and `digests` are those of the book's columns; None for a row that is gone.
        """
        watched = self._watched.get(key)
        if watched is None:
            return
        if watched.inserted is not None and watched.inserted == texts:
            if at_us - watched.commit_us > self.grace * 1e6:
                del self._watched[key]
                self.left_out["sent"] += 1
            return
        if digests is not None and digests != watched.digests and watched.inserted is None:
            watched.changed = difference.changed(digests, watched.digests, watched.written)
        if not sent:
            watched.status = status
            return
        del self._watched[key]
        self.events += watched.inserted is not None
        if watched.trouble is not None:
            self._differ(watched.trouble, key[1], sent=True)
            return
        if watched.changed is not None:
            self._differ(watched.changed, key[1], sent=True)
            return
        self.same += 1
        if sent_us is None or not watched.commit_us <= sent_us <= at_us:
            self.by_sight = True
            sent_us = at_us
        delay = max(0, sent_us - watched.commit_us) / 1e6
        self._longest = max(self._longest, delay)
        self._delays[float(f"{delay:.3g}")] += 1

    @property
    def grace(self) -> float:
        """Seconds that the old relay has for a row."""
        return min(LONGEST_GRACE, max(GRACE, 2 * self._longest))

    def young(self, now_us: int) -> bool:
        """Whether a row waits that the old relay may send yet."""
        return any(now_us - each.commit_us < self.grace * 1e6 for each in self._watched.values())

    def finish(self, now_us: int, books: dict[TableName, Book]) -> None:
        """Nothing is awaited any more: what waits is different, or undecided where its commit was a moment ago."""
        for (table, id_), watched in self._watched.items():
            young = now_us - watched.commit_us < self.grace * 1e6
            if watched.inserted is not None:
                self.left_out["sent"] += 1
            elif watched.trouble is not None and watched.trouble[0] == "left out":
                self.neither += 1
            elif watched.trouble is not None:
                self._differ(watched.trouble, id_, sent=False)
            elif young:
                self.undecided += 1
            else:
                self._differ(difference.unsent(watched.status, books[table]), id_, sent=False)
        self._watched.clear()

    def _differ(self, trouble: Trouble, id_: str, *, sent: bool) -> None:
        kind, what, error, remedy = trouble
        known = self._differences.setdefault((kind, what, sent), Difference(kind, what, sent, error, remedy))
        known.add(id_)

    @property
    def awaited(self) -> int:
        """Rows whose mark is awaited."""
        return len(self._watched)

    @property
    def different(self) -> int:
        """Rows of which something would be different."""
        return sum(each.count for each in self._differences.values())

    @property
    def differences(self) -> list[Difference]:
        """The most frequent first."""
        return sorted(self._differences.values(), key=lambda each: -each.count)

    def delay(self, share: float) -> float:
        """Seconds within which the old relay had marked this share of the rows (to three digits)."""
        wanted, passed = share * self.same, 0
        for delay, count in sorted(self._delays.items()):
            passed += count
            if passed >= wanted:
                return delay
        return self._longest

    def document(self) -> dict[str, Any]:
        """The account, for a machine."""
        return {
            "schema_version": 1,
            "kafka_reached": self.placed,
            "events": self.events,
            "same": self.same,
            "different": self.different,
            "neither": self.neither,
            "updates_unknown": self.updates_unknown,
            "undecided": self.undecided,
            "unwatched": self.unwatched,
            "left_out": dict(self.left_out),
            "inserted_as": dict(self.inserted_as),
            "old_relay_delay_seconds": {
                "p50": self.delay(0.5),
                "p99": self.delay(0.99),
                "max": round(self._longest, 6),
                "at_most": self.by_sight,
            }
            if self.same
            else None,
            "differences": [asdict(each) for each in self.differences],
        }
