"""A shop under load: orders change, and each change is an event in the same transaction.

Order per key is made certain as applications do it, by a lock on the aggregate: whoever writes events of an order
has changed its row before, and so waits for whoever changes it too. The events' counter is the order's version,
which a rollback takes back: a key's committed events are 1, 2, 3, … without a hole.
"""

from __future__ import annotations

import json
import random
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from tests.polling.books import Books, Entry
from tests.polling.table import OTHER_BUS, Table
from tests.servers.wait import eventually

ORDERS: Final = "create table orders (id text primary key, version integer not null)"
CHANGE: Final = """
insert into orders (id, version) values (%(key)s, %(changes)s)
on conflict (id) do update set version = orders.version + excluded.version returning version
"""

ROLLBACK_SHARE: Final = 0.05
SAVEPOINT_SHARE: Final = 0.1
OTHER_BUS_SHARE: Final = 0.1


@dataclass(frozen=True, slots=True)
class Draft:
    """A row that is to be inserted."""

    event_id: str
    key: str
    n: int


class Shop:
    """Transactions of several orders and several events each, over several connections, until stopped.

    One connection has orders of its own and keeps its transactions open for up to a second, so that there is
    always one under way. A share is rolled back, some to a savepoint. `rate` in transactions a second over all.
    """

    def __init__(
        self,
        table: Table,
        dsn: str,
        topics: Sequence[str],
        *,
        seed: int,
        rate: float = 60,
        hands: int = 3,
        orders: int = 40,
    ) -> None:
        self.books = Books()
        self._table = table
        self._dsn = dsn
        self._topics = topics
        self._rate = rate / hands
        self._stop = threading.Event()
        self._error: BaseException | None = None
        shared = [f"order-{number}" for number in range(orders)]
        slow = [f"slow-{number}" for number in range(5)]
        self._hands = [(shared, random.Random(seed * 31 + hand), 0.0) for hand in range(hands)]
        self._hands.append((slow, random.Random(seed * 31 - 1), 1.0))
        self._threads: list[threading.Thread] = []

    def open(self) -> Shop:
        """Make the shop's own table."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(ORDERS)
        return self

    def start(self) -> Shop:
        """Write until `stop()`."""
        self._threads = [
            threading.Thread(target=self._guard, args=hand, daemon=True, name=f"shop-{number}")
            for number, hand in enumerate(self._hands)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def stop(self) -> Books:
        """End the writing; what was committed, and what never was."""
        self.close()
        self.check()
        return self.books

    def check(self) -> None:
        """Raise what a writing thread died of, if it did."""
        if self._error is not None:
            raise self._error

    def wait_written(self, events: int, timeout: float = 60) -> None:
        """Wait until so many more events are committed than now."""
        goal = len(self.books.committed) + events

        def written() -> bool:
            self.check()
            return len(self.books.committed) >= goal

        eventually(written, timeout, lambda: f"{goal} events; {len(self.books.committed)} are committed")

    def close(self) -> None:
        """End the writing, whatever became of it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a writer still waits for its server"

    def _guard(self, keys: Sequence[str], chance: random.Random, patience: float) -> None:
        try:
            with psycopg.connect(self._dsn, application_name="shop", prepare_threshold=1) as connection:
                due = time.monotonic()
                while not self._stop.is_set():
                    self._transaction(connection, keys, chance, patience)
                    due = max(due + 1 / self._rate, time.monotonic() - 1)
                    self._stop.wait(due - time.monotonic())
        except BaseException as error:
            self._error = error

    def _transaction(
        self, connection: psycopg.Connection, keys: Sequence[str], chance: random.Random, patience: float
    ) -> None:
        drafts = self._change(connection, keys, chance)
        others = [Draft(str(uuid.uuid4()), draft.key, 0) for draft in drafts]
        regretted = [Draft(str(uuid.uuid4()), draft.key, 0) for draft in drafts]
        others = [draft for draft in others if chance.random() < OTHER_BUS_SHARE]
        with connection.cursor() as cursor:
            if chance.random() < SAVEPOINT_SHARE:
                with connection.transaction(force_rollback=True):
                    cursor.executemany(self._table.insert, [self._row(draft) for draft in regretted])
                self.books.rolled_back.update(draft.event_id for draft in regretted)
            cursor.executemany(self._table.insert, [self._row(draft) for draft in drafts])
            if self._table.letter == "b" and others:
                cursor.executemany(self._table.insert, [self._row(draft, OTHER_BUS) for draft in others])
                self.books.elsewhere.update(draft.event_id for draft in others)
        if patience:
            self._stop.wait(chance.random() * patience)
        if chance.random() < ROLLBACK_SHARE:
            connection.rollback()
            self.books.rolled_back.update(draft.event_id for draft in drafts)
            return
        connection.commit()
        at = time.time()
        for draft in drafts:
            self.books.committed[draft.event_id] = Entry(draft.key, draft.n, at)

    def _change(
        self, connection: psycopg.Connection, keys: Sequence[str], chance: random.Random
    ) -> list[Draft]:
        """Change some orders; their events, in an order that mixes the keys and keeps each one's."""
        drafts: list[Draft] = []
        # In the keys' order, so that two transactions never wait for each other.
        for key in sorted(chance.sample(keys, chance.randint(1, 3))):
            changes = chance.randint(1, 3)
            row = connection.execute(CHANGE, {"key": key, "changes": changes}).fetchone()
            assert row is not None
            version = int(row[0])
            drafts += [
                Draft(str(uuid.uuid4()), key, version - changes + 1 + place) for place in range(changes)
            ]
        waiting = {key: iter([draft for draft in drafts if draft.key == key]) for key in _keys(drafts)}
        mixed = [draft.key for draft in drafts]
        chance.shuffle(mixed)
        return [next(waiting[key]) for key in mixed]

    def _row(self, draft: Draft, bus: str = "kafka") -> dict[str, Any]:
        payload = {"event_id": draft.event_id, "order_id": draft.key, "n": draft.n}
        return {
            "event_id": draft.event_id,
            "key": draft.key,
            "topic": self.topic(draft.key),
            "payload": json.dumps(payload),
            "bus": bus,
        }

    def topic(self, key: str) -> str:
        """Where a key's events go."""
        return self._topics[sum(key.encode()) % len(self._topics)]

    def given_up(self, status: str, events: int) -> frozenset[str]:
        """Commit events of orders of their own that the old relay failed to send long ago; their event ids.

        In table A such rows wait for their next run, here ten minutes away. They are in the books like any others.
        """
        written = []
        with ExitStack() as stack:
            connection = stack.enter_context(psycopg.connect(self._dsn))
            for number in range(events):
                draft = Draft(str(uuid.uuid4()), f"failed-{number}", 1)
                connection.execute(self._table.insert, self._row(draft))
                written.append(draft)
            connection.execute(
                "update outbox set status = %s, attempts = 5, last_error = 'broker away'"
                " where payload ->> 'order_id' like 'failed-%%'",
                (status,),
            )
            if self._table.letter == "a":
                connection.execute(
                    "update outbox set next_run_at = now() + interval '10 minutes' where status = %s",
                    (status,),
                )
        at = time.time()
        for draft in written:
            self.books.committed[draft.event_id] = Entry(draft.key, draft.n, at)
        return frozenset(draft.event_id for draft in written)


def _keys(drafts: Sequence[Draft]) -> list[str]:
    return list(dict.fromkeys(draft.key for draft in drafts))
