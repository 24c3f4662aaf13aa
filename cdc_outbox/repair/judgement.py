"""What the books say: which events are missing, came twice, out of order, or belong to no row.

Pure but for the books' files. An event is found whatever topic it lies in. Of several messages with its id the first
that was read is the delivery, the others are copies; those that were sent from the table (`cdc.source`) are expected
ones. Where several rows have one id, their keys tell whose a message is: a copy of one row's stands for no other row,
and of several tables neither does one with another key, whose own row may be gone.

Order is judged in each partition, key by key. The newest commit so far is remembered: a first delivery whose commit is
older came too late. What proves that:

- LSN and place of both, where both have them from one slot. They are exact. Positions that fall while the clock
  rises by more than a second are another server's, and begin anew.
- Else their commit times. A transaction takes its time a moment before it takes its place in the log, so of two that
  overlap the second may have the earlier time. What differs by less than `CLOSE_MS` is undecided.
- Beside a polling relay the time of a row that the table calls sent may be that of the sending, and then the table has
  to agree: the one that came late was created no later than the other. Else it is undecided, and so it is where the
  table has no time of creation.

What is undecided is counted and shown, and is no fault.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Literal

from cdc_outbox.repair import books as entry
from cdc_outbox.repair.findings import Findings
from cdc_outbox.repair.spool import Spool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from cdc_outbox.repair.books import Books, Nameless
    from cdc_outbox.repair.findings import Kind

CLOSE_MS: Final = 100
"""Commit times that differ by less don't prove an order."""

RENUMBERED_MS: Final = 1000
"""LSNs that fall while commits are so much later are those of another server."""

SUSPECTS: Final = 20_000
"""Late deliveries of which the table is asked too; beyond them the commit times are enough."""

DOUBTFUL: Final = 50_000
"""Rows without a proof that are looked for one by one; further ones are taken to be under way."""

EXACT: Final = 1
CLOSE: Final = 2

SUSPICION: Final = Struct(">16s16sIQQB")
"""Id of what came late; id of what came before it, but committed later; partition; both offsets; EXACT or CLOSE."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What counts as a fault.

    `since` and `until` in µs: messages outside are judged only where their row was read. `unacknowledged`: what a row
    is that isn't acknowledged and isn't found. `sent`: one that the table calls sent is missing too, and `left_out`:
    one that a rule leaves out. `may_lack_rows`: a message without a row is no fault. `keyed`: partitions go by keys.
    `shared`: events of several tables may have one id, and one of them may have lost its row.
    """

    since: int | None = None
    until: int | None = None
    unacknowledged: Literal["missing", "under way", "doubtful"] = "missing"
    sent: bool = True
    left_out: bool = False
    may_lack_rows: bool = False
    keyed: bool = True
    shared: bool = False

    def has(self, ms: int) -> bool:
        """Whether a time lies in the window."""
        us = ms * 1000
        return (self.since is None or us >= self.since) and (self.until is None or us < self.until)


@dataclass(frozen=True, slots=True)
class Stray:
    """A message of an event whose row wasn't read: foreign, unless the table has one now. `id`: its bytes there."""

    key: bytes
    where: int
    place: int
    offset: int
    id: bytes


class _Latest:
    """The newest commit that a key has had in a partition. `strayed`: its first place elsewhere within the window."""

    __slots__ = ("event", "lsn", "ms", "offset", "place", "seq", "slot", "strayed", "told")

    def __init__(self, event: bytes, place: int, offset: int, ms: int, lsn: int, seq: int, slot: int) -> None:
        self.told = False
        self.strayed: tuple[int, int] | None = None
        self.place = place
        self.take(event, offset, ms, lsn, seq, slot)

    def take(self, event: bytes, offset: int, ms: int, lsn: int, seq: int, slot: int) -> None:
        self.event, self.offset = event, offset
        self.ms, self.lsn, self.seq, self.slot = ms, lsn, seq, slot


@dataclass(slots=True)
class _Messages:
    """Those with one id: the first, the last, and the checksum of each one's key. `plain`: from the stream.

    As short as can be: after a cut-over each event may have some.
    """

    first: tuple[Any, ...]
    last: tuple[Any, ...]
    plain: list[int] = field(default_factory=list)
    sourced: list[int] = field(default_factory=list)

    def add(self, record: tuple[Any, ...]) -> None:
        """Count one more."""
        self.last = record
        (self.sourced if record[2] & entry.SOURCED else self.plain).append(record[7])

    @classmethod
    def of(cls, first: tuple[Any, ...]) -> _Messages:
        """The first alone."""
        found = cls(first, first)
        found.add(first)
        return found


class Judge:
    """Goes through the books once, bucket by bucket."""

    def __init__(
        self,
        books: Books,
        rules: Rules,
        *,
        limit: int,
        directory: Path | None = None,
    ) -> None:
        """`limit`: findings of each kind that are kept."""
        self.findings = Findings()
        self._books = books
        self._rules = rules
        self._limit = limit
        self._horizons: dict[int, float] = {}
        self.doubtful: dict[bytes, list[tuple[Any, ...]]] = {}
        """Rows that may be under way or missing, by their id: to be told by `arrived`, or by `give_up`."""
        self._suspicions = Spool(SUSPICION, len(books.events), directory)
        self._suspects: list[tuple[bytes, tuple[Any, ...], int, int, tuple[Any, ...] | None]] = []

    def close(self) -> None:
        """Forget what was suspected."""
        self._suspicions.close()

    # Order

    def suspect(self) -> Iterator[int]:
        """Look through the deliveries of each key for what came late; yields the number of each bucket that is done.

        A copy looks late too. Which is which the other book knows.
        """
        deliveries = self._books.deliveries
        for at in range(len(deliveries)):
            self._suspect(deliveries.bucket(at))
            yield at

    def _suspect(self, deliveries: Iterator[tuple[Any, ...]]) -> None:
        latest: dict[bytes, _Latest] = {}
        elsewhere: dict[tuple[bytes, int], _Latest] = {}
        suspect = self._suspicions.put
        for key, event, place, offset, ms, lsn, seq, slot in deliveries:
            newest = latest.get(key)
            if newest is None:
                latest[key] = _Latest(event, place, offset, ms, lsn, seq, slot)
                continue
            if newest.place != place:
                if self._rules.keyed:
                    self._moved(newest, place, offset, ms)
                other = elsewhere.get((key, place))
                if other is None:
                    elsewhere[key, place] = _Latest(event, place, offset, ms, lsn, seq, slot)
                    continue
                newest = other
            elif newest.strayed is not None:
                self._moved(newest, place, offset, ms)
            if ms < 0:
                continue
            if slot and slot == newest.slot:
                if (
                    lsn > newest.lsn
                    or (lsn == newest.lsn and seq >= newest.seq)
                    or ms > newest.ms + RENUMBERED_MS
                ):
                    newest.take(event, offset, ms, lsn, seq, slot)
                else:
                    suspect(event, newest.event, place, offset, newest.offset, EXACT)
            elif ms >= newest.ms:
                newest.take(event, offset, ms, lsn, seq, slot)
            else:
                close = CLOSE if newest.ms - ms < CLOSE_MS else 0
                suspect(event, newest.event, place, offset, newest.offset, close)

    def _moved(self, first: _Latest, place: int, offset: int, ms: int) -> None:
        """Tell, once, that a key has moved, by two messages of the window; `first`: where it was met first."""
        if first.told or not self._judged(ms):
            return
        if place == first.place or not self._judged(first.ms):
            first.strayed = before = first.strayed or (place, offset)
        else:
            before = first.place, first.offset
        if before[0] == place:
            return
        first.told = True
        there, here = self._books.places[before[0]], self._books.places[place]
        self.findings.moved_keys.add(
            self._limit,
            lambda: {
                "topic": here[0],
                "partition": here[1],
                "offset": offset,
                "also": {"partition": there[1], "offset": before[1]},
            },
        )

    def _judged(self, ms: int) -> bool:
        """Whether a message of that commit lies in the window, as far as is known."""
        return ms < 0 or self._rules.has(ms)

    # Events

    def events(self, horizons: Mapping[str, float]) -> Iterator[list[Stray]]:
        """Judge bucket by bucket; yields the messages without a row of each, for whoever can ask the table again.

        `horizons`: by topic, the µs since 1970 before which its log is gone or has holes. What the table lacks still is
        to be told by `foreign`.
        """
        self._horizons = {self._books.topic(name): horizon for name, horizon in horizons.items()}
        for at in range(len(self._books.events)):
            yield self._bucket(at)

    def _bucket(self, at: int) -> list[Stray]:
        rows: dict[bytes, tuple[Any, ...]] = {}
        first: dict[bytes, tuple[Any, ...]] = {}
        several: dict[bytes, _Messages] = {}
        owed: dict[bytes, list[tuple[Any, ...]]] = {}
        for record in self._books.events.bucket(at):
            key = record[0]
            if record[1] == entry.ROW:
                if (one := rows.setdefault(key, record)) is not record:
                    owed.setdefault(key, [one]).append(record)
            elif (one := first.setdefault(key, record)) is not record:
                messages = several.get(key)
                if messages is None:
                    messages = several[key] = _Messages.of(one)
                messages.add(record)
        self.findings.same_id += sum(len(bearers) - 1 for bearers in owed.values())
        for key in rows.keys() - first.keys():
            for row in owed.get(key) or (rows[key],):
                self._not_found(row)
        self.findings.delivered += len(rows.keys() & first.keys())
        for key, messages in several.items():
            if key in rows or self._rules.has(messages.first[4]):
                self._copied(messages, owed.get(key) or [rows[key]] if key in rows else [])
        if self._rules.shared:
            strangers = (key for key in rows.keys() & first.keys() if rows[key][7] != first[key][7])
            owed |= {key: [rows[key]] for key in strangers if key not in owed}
        for key, bearers in owed.items():
            if key in first:
                self._too_few(bearers, several.get(key) or _Messages.of(first[key]))
        for suspicion in self._suspicions.bucket(at):
            self._heed(suspicion, rows, first)
        strays = first.keys() - rows.keys()
        if not strays:
            return []
        found = [first[key] for key in strays if self._rules.has(first[key][4])]
        if self._rules.may_lack_rows:
            self.findings.without_row += len(found)
            return []
        id_ = self._books.raw_id
        return [
            Stray(key, where, place, offset, id_(key, where))
            for key, _, _, place, _, where, offset, _ in sorted(found, key=lambda each: (each[3], each[6]))
        ]

    def _too_few(self, bearers: list[tuple[Any, ...]], messages: _Messages) -> None:
        """Rows have one id, and some of them may have no message.

        Nobody can tell whose is missing among rows with one key, or where a message has a key that no row has. Of one
        table that is some row's own, as after an UPDATE of its key; of several it may be that of a row that is gone.
        """
        expected = [row for row in bearers if not self._not_for_us(row)]
        expected.sort(key=lambda row: not row[2] & entry.ACKNOWLEDGED)
        left = Counter(messages.plain + messages.sourced)
        without = []
        for row in expected:
            if left[row[7]]:
                left[row[7]] -= 1
            else:
                without.append(row)
        keys = Counter(row[7] for row in expected)
        known = keys.keys() | {row[7] for row in bearers} - {entry.NO_KEY}
        others = Counter({key: count for key, count in left.items() if key not in known})
        anybodys = others[entry.NO_KEY] if self._rules.shared else others.total()
        for row in without[anybodys:]:
            if not row[2] & entry.ACKNOWLEDGED and self._rules.unacknowledged != "missing":
                self._under_way(row)
            elif others.total() or row[7] == entry.NO_KEY or keys[row[7]] > 1:
                self._tell(row, self.findings.unknown, why="same id" if len(bearers) > 1 else "other key")
            else:
                self._lost(row)

    def _not_for_us(self, row: tuple[Any, ...]) -> bool:
        flags, rules = row[2], self._rules
        return bool(
            (flags & entry.LEFT_OUT and not rules.left_out) or (flags & entry.SENT and not rules.sent)
        )

    def _not_found(self, row: tuple[Any, ...]) -> None:
        key, _, flags, *_ = row
        findings, rules = self.findings, self._rules
        if flags & entry.LEFT_OUT and not rules.left_out:
            findings.left_out += 1
        elif flags & entry.SENT and not rules.sent:
            findings.sent_elsewhere += 1
        elif flags & entry.ACKNOWLEDGED or rules.unacknowledged == "missing":
            self._lost(row)
        elif rules.unacknowledged == "under way":
            self._under_way(row)
        elif key in self.doubtful:
            self.doubtful[key].append(row)
        elif len(self.doubtful) < DOUBTFUL:
            self.doubtful[key] = [row]
        else:
            findings.assumed += 1
            self._under_way(row)

    def _under_way(self, row: tuple[Any, ...]) -> None:
        findings, created_us = self.findings, row[4]
        self._tell(row, findings.under_way)
        if created_us and (findings.oldest_under_way is None or created_us < findings.oldest_under_way):
            findings.oldest_under_way = created_us

    def _lost(self, row: tuple[Any, ...]) -> None:
        _, _, flags, topic, created_us, *_ = row
        findings = self.findings
        if created_us < self._horizons.get(topic, -1):
            self._tell(row, findings.unknown, why="trimmed")
            return
        if created_us and (findings.oldest_missing is None or created_us < findings.oldest_missing):
            findings.oldest_missing = created_us
        if flags & entry.POISON:
            self._tell(row, findings.missing, why="poison")
        else:
            self._tell(row, findings.missing)

    def _tell(self, row: tuple[Any, ...], kind: Kind, **more: str) -> None:
        key, _, _, topic, created_us, where, *_ = row
        kind.add_row(
            self._limit,
            created_us,
            lambda: {
                "id": self._books.id(key, where),
                "topic": None if topic == entry.NO_TOPIC else self._books.topics[topic],
                "created_us": created_us or None,
                **more,
            },
        )

    def arrived(self, key: bytes) -> None:
        """An event with the id of doubtful rows has come since, or waits in the slot: they are under way."""
        for row in self.doubtful.pop(key, ()):
            self._under_way(row)

    def give_up(self) -> None:
        """Doubtful rows that haven't come are missing."""
        for rows in self.doubtful.values():
            for row in rows:
                self._lost(row)
        self.doubtful.clear()

    def _copied(self, messages: _Messages, bearers: list[tuple[Any, ...]]) -> None:
        first, last, rows = messages.first, messages.last, max(1, len(bearers))
        plain, sourced = len(messages.plain), len(messages.sourced)
        surplus, gone = self._surplus(messages, Counter(row[7] for row in bearers), rows)
        self.findings.without_row += gone
        self.findings.repeats += sourced if plain else max(0, sourced - rows)
        if surplus:
            self.findings.twice.add(
                self._limit,
                lambda: {
                    "id": self._books.id(first[0], first[5]),
                    "copies": plain,
                    "first": self._spot(first[3], first[6]),
                    "last": self._spot(last[3], last[6]),
                },
            )

    def _surplus(self, messages: _Messages, keys: Counter[int], rows: int) -> tuple[int, int]:
        """How many messages with one id no row explains: copies, and those of other events whose rows are gone.

        `keys`: how many rows have which; `rows`: for how many there may be a message.
        """
        plain = Counter(messages.plain)
        free = rows - sum(min(count, plain[key]) for key, count in keys.items())
        others = {key: count for key, count in plain.items() if key not in keys}
        copies = sum(max(0, plain[key] - count) for key, count in keys.items())
        copies += max(0, sum(others.values()) - free)
        gone = 0
        if self._rules.shared and self._rules.may_lack_rows:
            gone = max(0, len(others.keys() - {entry.NO_KEY}) - free)
        return copies - gone, gone

    def _spot(self, place: int, offset: int) -> dict[str, Any]:
        topic, partition = self._books.places[place]
        return {"topic": topic, "partition": partition, "offset": offset}

    def nameless(self, message: Nameless) -> None:
        """A message has no event's id."""
        if not self._rules.has(message.ms):
            return
        if self._rules.may_lack_rows:
            self.findings.without_row += 1
            return
        self.findings.foreign.add(
            self._limit, lambda: {"id": None} | self._spot(message.place, message.offset)
        )

    def foreign(self, stray: Stray) -> None:
        """The table has no row for it."""
        self.findings.foreign.add(
            self._limit,
            lambda: {"id": self._books.id(stray.key, stray.where)} | self._spot(stray.place, stray.offset),
        )

    # Late deliveries

    def _heed(
        self,
        suspicion: tuple[Any, ...],
        rows: dict[bytes, tuple[Any, ...]],
        first: dict[bytes, tuple[Any, ...]],
    ) -> None:
        """Take a suspicion up if it is about a first delivery, and not a copy."""
        late, other, place, offset, before, proof = suspicion
        delivery = first.get(late)
        if delivery is None or (delivery[3], delivery[6]) != (place, offset):
            return
        row = rows.get(late)
        if row is None and not self._rules.has(delivery[4]):
            return
        if proof == EXACT or len(self._suspects) >= SUSPECTS:
            self._late(delivery, before, decided=proof != CLOSE)
        else:
            self._suspects.append((other, delivery, before, proof, row))

    def late(self) -> None:
        """Decide on the deliveries whose commit times say that they came late. Call it after `events`."""
        wanted: dict[int, set[bytes]] = {}
        for other, *_ in self._suspects:
            wanted.setdefault(self._books.events.at(other), set()).add(other)
        others: dict[bytes, tuple[Any, ...]] = {}
        for at, keys in wanted.items():
            for record in self._books.events.bucket(at):
                if record[1] == entry.ROW and record[0] in keys:
                    others.setdefault(record[0], record)
        for other, delivery, before, proof, row in self._suspects:
            self._late(delivery, before, decided=proof != CLOSE and self._agrees(row, others.get(other)))

    def _agrees(self, late: tuple[Any, ...] | None, before: tuple[Any, ...] | None) -> bool:
        """Whether the rows have nothing against it that `late` committed first."""
        if not any(row and row[2] & entry.SENT for row in (late, before)):
            return True
        return late is not None and before is not None and 0 < late[4] <= before[4]

    def _late(self, delivery: tuple[Any, ...], before: int, *, decided: bool) -> None:
        key, _, _, place, _, where, offset, _ = delivery
        kind = self.findings.out_of_order if decided else self.findings.undecided
        kind.add(
            self._limit,
            lambda: {"id": self._books.id(key, where), **self._spot(place, offset), "after": before},
        )
