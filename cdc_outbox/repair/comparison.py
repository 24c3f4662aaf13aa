"""The account of a trial: what the old relay did with each row, and what ours would have done.

Pure: rows come in by `add`, what the table says of them later by `heed`, and `document` is the account. A row is
remembered until the table says that it was sent, and forgotten then: memory holds what waits, and no more of that than
`WATCHED`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from cdc_outbox.event import quote
from cdc_outbox.table import doubt
from cdc_outbox.table.sent import WAITING_WORDS, folded
from cdc_outbox.table.unfit import LEAVE_OUT
from cdc_outbox.table.values import TIMES, epoch_us

if TYPE_CHECKING:
    from cdc_outbox.event import TableName, Values
    from cdc_outbox.repair.trial import Trial
    from cdc_outbox.settings import OutboxSettings
    from cdc_outbox.table.plan import Plan
    from cdc_outbox.table.sent import Bookkeeping
    from cdc_outbox.table.values import Field

GRACE: Final = 10.0
"""Seconds that the old relay has for the last rows, at least; twice its longest delay, if that is more."""

LONGEST_GRACE: Final = 60.0

WATCHED: Final = 100_000
"""Rows that may wait for their mark at a time; what comes beyond is counted only."""

NAMED: Final = 10
"""Ids that are named of each kind of difference."""

STATUSES: Final = 20
"""Statuses that are told apart."""

Key: TypeAlias = "tuple[TableName, str]"
Kind: TypeAlias = Literal[
    "not sent", "left out", "poison", "stuck", "same id", "no id", "changed", "never inserted"
]


@dataclass(slots=True)
class Difference:
    """Rows of which something would be different in the same way.

    `what` is a bounded word: the status, the reason. `sent`: whether the old relay marked them as sent. `error` tells
    of the first of them.
    """

    kind: Kind
    what: str
    sent: bool
    error: str
    next: str
    count: int = 0
    ids: list[str] = field(default_factory=list)

    def add(self, id_: str) -> None:
        self.count += 1
        if len(self.ids) < NAMED:
            self.ids.append(id_)


@dataclass(slots=True)
class _Watched:
    """A row that waits for its mark. Without `trouble` ours would send it."""

    xid: int
    commit_us: int
    trouble: tuple[Kind, str, str, str] | None
    status: str = ""
    digests: tuple[str | None, ...] = ()
    """Of what it held at its insert, for each of the columns `written`."""
    written: tuple[str, ...] = ()
    changed: tuple[Kind, str, str, str] | None = None
    """What to say of it, where the table has held something else in these since."""
    inserted: tuple[str | None, ...] | None = None
    """What its book's columns held at its insert, if they said that it was sent: the old relay leaves them so."""


@dataclass(frozen=True, slots=True)
class Book:
    """Where a table's row says whether it was sent: the columns to look at, in the order of the texts of a row."""

    keeping: Bookkeeping
    columns: tuple[str, ...]
    time: int | None
    """Place of the column with the time of the sending."""
    beside: Field | None = None
    """A column that looks like a status, in a table whose marks are none of words."""
    written: tuple[str, ...] = ()
    """The columns that a message is made of, which the old relay leaves as they were inserted."""
    id: str = "id"
    """The column of the event's id."""
    sent_at: Field | None = None
    """The column at `time`."""

    @classmethod
    def of(cls, plan: Plan) -> Book:
        keeping = plan.bookkeeping
        status = keeping.failed or keeping.taken
        named = [*(keeping.sent.fields if keeping.sent is not None else ())]
        named += [status.field] if status is not None else []
        times = [
            mark.field
            for mark in keeping.marks
            if mark.field.type_oid in TIMES and not mark.words and not mark.seconds
        ]
        beside = doubt.unmarked(plan)
        looked_at = [*named, *times[:1], *([beside] if beside is not None else [])]
        columns = list(dict.fromkeys(each.name for each in looked_at))
        time = times[0] if times else None
        at = None if time is None else columns.index(time.name)
        return cls(keeping, tuple(columns), at, beside, _written(plan), plan.layout.id.name, time)

    def sent(self, texts: Sequence[str | None]) -> bool:
        """Whether these texts mean that the row was sent."""
        mark = self.keeping.sent
        if mark is None:
            return False
        of = [texts[self.columns.index(field.name)] for field in mark.fields]
        return mark.says(of[0], of[-1])

    def digests(self, plan: Plan, values: Values) -> tuple[str | None, ...]:
        """Of a row as the stream has it, what `Found.digests` is of the same row in the table."""
        fields = [plan.shape.find(name) for name in self.written]
        raw = [None if field is None else values[field.at] for field in fields]
        return tuple(None if each is None else sha256(each).hexdigest() for each in raw)

    def status(self, texts: Sequence[str | None]) -> str:
        """The word that a row which wasn't sent has in its status; empty where the table has none, or NULL."""
        status = self.keeping.status or self.beside
        return "" if status is None else texts[self.columns.index(status.name)] or ""

    def sent_us(self, texts: Sequence[str | None]) -> int | None:
        """When it was sent, in µs since 1970, as far as the table says it."""
        text = None if self.time is None else texts[self.time]
        return None if text is None else epoch_us(text.encode(), self.columns[self.time or 0])


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
            self._differ(trouble or _NAMELESS, "(none)", sent=False)
            return
        key = (plan.table, id_)
        if key in self._watched:
            self._differ(_REPEATED, id_, sent=False)
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
                self._differ(_NEVER_INSERTED, id_, sent=True)

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
            trial.row.xid, trial.row.commit_us, _as_sent(plan.bookkeeping), inserted=inserted
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

    def _trouble(self, trial: Trial) -> tuple[Kind, str, str, str] | None:
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
            watched.changed = _changed(digests, watched.digests, watched.written)
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
                self._differ(_unsent(watched.status, books[table]), id_, sent=False)
        self._watched.clear()

    def _differ(self, trouble: tuple[Kind, str, str, str], id_: str, *, sent: bool) -> None:
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


def _as_sent(book: Bookkeeping) -> tuple[Kind, str, str, str]:
    """Ours leaves the row out, for its columns said from the start that it was sent."""
    columns = " and ".join(quote(field.name) for field in book.sent.fields) if book.sent is not None else ""
    remedy = (
        "name what tells that a row was sent: --column sent_at=NAME, or --status column=NAME; or, if that column is "
        "another time and the old relay deletes what it has sent: --column created_at=NAME"
    )
    error = (
        f"{columns} said at its insert that it was sent already, and the old relay took it up all the same"
    )
    return ("left out", "inserted as sent", error, remedy)


_INSERTS: Final = (
    "have the application write each event as a row of its own, whole, in one INSERT, before you move: "
    "docs/how-to/leave-a-polling-relay.md has the ways"
)

_NEVER_INSERTED: Final[tuple[Kind, str, str, str]] = (
    "never inserted",
    "",
    "no INSERT has brought it: an UPDATE has written the row anew, or has set it back to unsent",
    _INSERTS,
)


def _changed(
    now: Sequence[str | None], before: Sequence[str | None], names: Sequence[str]
) -> tuple[Kind, str, str, str]:
    """Ours sends the row as it was inserted, and the old relay as an UPDATE has made it."""
    columns = ", ".join(name for name, a, b in zip(names, now, before, strict=True) if a != b)
    return ("changed", columns, f"an UPDATE has changed {columns} since, and ours sends no UPDATE", _INSERTS)


def _written(plan: Plan) -> tuple[str, ...]:
    """The columns of a message without those in which the old relay keeps its book."""
    book = plan.bookkeeping
    if book.annotated:
        return ()
    kept = {mark.field for mark in book.marks} | {*(book.sent.fields if book.sent is not None else ())}
    kept |= {each.field for each in (book.failed, book.taken) if each is not None}
    kept |= {plan.layout.id, *([plan.optional["due"]] if "due" in plan.optional else [])}
    return tuple(field.name for field in plan.shape.fields if field.at in plan.read and field not in kept)


_REPEATED: Final[tuple[Kind, str, str, str]] = (
    "same id",
    "",
    "another row bears the same event id, and consumers tell events apart by it",
    "name a column that is unique with --column id=NAME",
)

_NAMELESS: Final[tuple[Kind, str, str, str]] = (
    "no id",
    "",
    "its event id is NULL: consumers can't tell it from another, and it can't be looked up",
    "name a column that is never NULL with --column id=NAME",
)


def _unsent(status: str, book: Book) -> tuple[Kind, str, str, str]:
    """Ours would have sent it; why the old relay hasn't, by the status that it left in the row."""
    keeping, word = book.keeping, folded(status)
    shown = f"status {status}" if status else "not marked"
    failed, taken = keeping.failed, keeping.taken
    if failed is not None and word in failed.retried:
        why, remedy = (
            "sending has failed there, and it tries again later",
            "see what the old relay notes of it; ours would have sent it at its commit",
        )
    elif failed is not None and word in failed.given_up:
        why, remedy = (
            "sending has failed there, and it was given up",
            "see what the old relay notes of it; at the cut-over: cdc-outbox backfill --failed skip or publish",
        )
    elif taken is not None and word in taken.words:
        why, remedy = (
            "a worker of the old relay has it in hand, or died with it",
            "see whether all its workers live",
        )
    elif keeping.sent is not None and keeping.sent.beside is not None and word in keeping.sent.words:
        column, time = keeping.sent.field.name, keeping.sent.beside.name
        why = f"its {quote(column)} looks as if it said that it was sent, and its {quote(time)} is NULL"
        remedy = (
            f"say which of them tells it, and compare again: --column sent_at={time}, if rows wait while that is NULL; "
            f"or --status column={column}"
        )
    elif word in (keeping.sent.waiting if keeping.sent is not None else WAITING_WORDS):
        why, remedy = (
            "the old relay hasn't sent it",
            "see whether the old relay runs and keeps up, then compare for longer",
        )
    else:
        field = keeping.status or book.beside
        column = quote(field.name) if field is not None else "status"
        why = f"nobody has said what this word of {column} means: the old relay may have sent it, or given it up"
        named = "" if keeping.status is not None else f"--status column={column} "
        remedy = (
            f"name it under [outbox.status], or with {named}--status {shlex.quote(f'sent={status}')} (or failed, "
            "given_up, taken, waiting), and compare again"
        )
    return ("not sent", shown, f"{why}; ours would send it", remedy)
