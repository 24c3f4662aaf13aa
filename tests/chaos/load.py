"""A writer that costs little, so that servers and relay have the machine's cores to themselves.

One statement a transaction, whatever its number of rows; ids, counters and books are no objects here. What committed
is asked of the table at the end: it is the truth, also for commits whose outcome was lost with their connection.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from dataclasses import dataclass, field

import psycopg

from tests.servers.ledger import LOST
from tests.servers.wait import eventually

INSERT = (
    "insert into outbox (aggregate_type, aggregate_id, event_type, payload)"
    " select %s, drafted.key, 'counted', jsonb_build_object('n', drafted.n, 'padding', %s::text)"
    " from unnest(%s::text[], %s::int[]) with ordinality as drafted (key, n, place) order by place"
)
PADDING = "x" * 120


@dataclass(slots=True)
class Hand:
    """One thread's aggregates, each with its counter, and the highest counter that surely committed."""

    keys: list[str]
    chance: random.Random
    counters: dict[str, int] = field(default_factory=dict)
    surely: dict[str, int] = field(default_factory=dict)
    committed: int = 0

    def draft(self, rows: int) -> tuple[list[str], list[int]]:
        """Rows to come. A counter is used once, whatever becomes of its transaction: rising is all that is asked."""
        keys = self.chance.choices(self.keys, k=rows)
        numbers = []
        for key in keys:
            number = self.counters[key] = self.counters.get(key, 0) + 1
            numbers.append(number)
        return keys, numbers

    def sure(self, keys: list[str], numbers: list[int]) -> None:
        """These have committed."""
        self.surely.update(zip(keys, numbers, strict=True))
        self.committed += len(keys)


class Load:
    """Transactions of one to nine rows at a rate, in threads; an aggregate belongs to one thread.

    `rate` in rows a second over all threads. A share of the transactions is rolled back.
    """

    def __init__(
        self,
        dsn: str,
        aggregate_type: str,
        *,
        rate: float,
        seed: int,
        threads: int = 2,
        aggregates: int = 100,
        rollback_share: float = 0.02,
    ) -> None:
        self._dsn = dsn
        self._aggregate_type = aggregate_type
        self._rate = rate / threads
        self._rollback_share = rollback_share
        self._stop = threading.Event()
        self._error: BaseException | None = None
        keys = [f"key-{number}" for number in range(aggregates)]
        self._hands = [
            Hand(keys[number::threads], random.Random(seed * 31 + number)) for number in range(threads)
        ]
        # Large and long transactions have aggregates of their own, and come from the thread of the faults.
        self._apart = Hand([f"apart-{number}" for number in range(5)], random.Random(seed * 31 - 1))
        self._open: tuple[psycopg.Connection, list[str], list[int]] | None = None
        self._threads: list[threading.Thread] = []

    @property
    def committed(self) -> int:
        """Rows that have surely committed."""
        return sum(hand.committed for hand in (*self._hands, self._apart))

    @property
    def surely(self) -> dict[str, int]:
        """By key, the highest counter that surely committed."""
        return {key: n for hand in (*self._hands, self._apart) for key, n in hand.surely.items()}

    def start(self) -> Load:
        """Write until `stop()`."""
        self._threads = [
            threading.Thread(target=self._guard, args=(hand,), daemon=True) for hand in self._hands
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> None:
        """End the writing. The server must be there, so that an open transaction has an end."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer still waits for its server"
        self.check()
        self.end_long()

    def check(self) -> None:
        """Raise what a writing thread died of, if it did."""
        if self._error is not None:
            raise self._error

    def _guard(self, hand: Hand) -> None:
        try:
            while not self._stop.is_set():
                with contextlib.suppress(*LOST):
                    self._write(hand)
                self._stop.wait(0.05)
        except BaseException as error:
            self._error = error

    def _write(self, hand: Hand) -> None:
        """Write until the connection is lost, or the load ends."""
        with psycopg.connect(self._dsn, connect_timeout=5, prepare_threshold=1) as connection:
            due = time.monotonic()
            while not self._stop.is_set():
                keys, numbers = hand.draft(hand.chance.randint(1, 9))
                connection.execute(INSERT, (self._aggregate_type, PADDING, keys, numbers))
                if hand.chance.random() < self._rollback_share:
                    connection.rollback()
                else:
                    connection.commit()
                    hand.sure(keys, numbers)
                # Behind by a second or more: don't make up for it in one flood.
                due = max(due + len(keys) / self._rate, time.monotonic() - 1)
                self._stop.wait(due - time.monotonic())

    def huge(self, rows: int) -> None:
        """Commit one transaction of so many rows, if the server lets us."""
        self.end_long()
        keys, numbers = self._apart.draft(rows)
        with contextlib.suppress(*LOST), psycopg.connect(self._dsn, connect_timeout=5) as connection:
            connection.execute(INSERT, (self._aggregate_type, PADDING, keys, numbers))
            connection.commit()
            self._apart.sure(keys, numbers)

    def begin_long(self) -> None:
        """Begin a transaction that stays open, with rows in it."""
        self.end_long()
        keys, numbers = self._apart.draft(7)
        with contextlib.suppress(*LOST):
            connection = psycopg.connect(self._dsn, connect_timeout=5)
            connection.execute(INSERT, (self._aggregate_type, PADDING, keys, numbers))
            self._open = connection, keys, numbers

    def end_long(self) -> None:
        """Commit the transaction that is open, if there is one and its session lives."""
        if self._open is None:
            return
        connection, keys, numbers = self._open
        self._open = None
        with contextlib.suppress(*LOST), connection:
            connection.commit()
            self._apart.sure(keys, numbers)

    def truth(self) -> dict[str, list[int]]:
        """By key, the counters that are in the table. Raises AssertionError if the server lost a sure one."""

        found: dict[str, list[int]] = {}

        def asked() -> bool:
            with contextlib.suppress(*LOST), psycopg.connect(self._dsn, connect_timeout=5) as connection:
                found.update(
                    connection.execute(
                        "select aggregate_id, array_agg((payload ->> 'n')::int) from outbox group by 1"
                    ).fetchall()
                )
                return True
            return False

        eventually(asked, 60, "the server to show its table")
        for key, number in self.surely.items():
            assert number in found.get(key, ()), f"PostgreSQL itself lost {key} {number}"
        return found
