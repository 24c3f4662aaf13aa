"""An application with an outbox, as a process: `python -m cdc_outbox.demo.shop DSN BOOTSTRAP-SERVERS`.

Each order is one transaction: a row in its own table and a row in the outbox. For comparison it also publishes the
same event itself after the commit, as those do who have no outbox, and gives a record up after two seconds.

It takes one JSON object a line, {"orders": 20, "refuse_every": 2, "stop_before_last_publish": false}, says what became
of each order, and at the end how many of its own publishes were confirmed.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from itertools import count
from typing import Any, Final, LiteralString

import psycopg
from confluent_kafka import Producer

AGGREGATE: Final = "customer"
RELAYED: Final = f"outbox.event.{AGGREGATE}"
NAIVE: Final = "naive.customer"

CUSTOMERS: Final = 5

GIVES_UP_AFTER: Final = 2.0
"""Seconds for which the naive publish retries. Outages in the field last longer than anybody's limit."""

_CONNECTING: Final = 10.0

TABLE: Final[LiteralString] = """
create table orders (
  id       uuid primary key,
  customer text not null,
  cents    integer not null
)
"""

_ORDER: Final[LiteralString] = "insert into orders (id, customer, cents) values (%s, %s, %s)"

_EVENT: Final[LiteralString] = """
insert into outbox (id, aggregate_type, aggregate_id, event_type, payload)
values (%s, %s, %s, 'OrderPlaced', %s)
returning pg_current_wal_insert_lsn()::text
"""


class PaymentRefused(Exception):
    """Why an order's transaction rolls back."""


class Shop:
    """Places orders and publishes them naively."""

    def __init__(self, dsn: str, bootstrap: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.timeout.ms": int(GIVES_UP_AFTER * 1000),
                "reconnect.backoff.max.ms": 200,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._producer.list_topics(timeout=_CONNECTING)
        self._numbers = count(1)
        self._confirmed = 0

    def serve(self, *, orders: int, refuse_every: int = 0, stop_before_last_publish: bool = False) -> None:
        """Place a number of orders. Every `refuse_every`-th payment is refused."""
        self._confirmed = 0
        for number in range(1, orders + 1):
            refused = bool(refuse_every) and number % refuse_every == 0
            event = self._place(refused=refused)
            if event is None:
                continue
            if stop_before_last_publish and number == orders:
                self._producer.flush(_CONNECTING)
                say(about_to_publish=event[0])
                sys.stdin.readline()  # killed here
            self._publish(*event)
        self._producer.flush(_CONNECTING)
        say(confirmed=self._confirmed)

    def _place(self, *, refused: bool) -> tuple[str, str, str] | None:
        """One transaction. Answers the event's id, key and payload, or None when it rolled back."""
        number = next(self._numbers)
        event, order, customer = str(uuid.uuid4()), str(uuid.uuid4()), f"customer-{number % CUSTOMERS + 1}"
        payload = json.dumps({"order": order, "number": number})
        try:
            with self._connection.transaction():
                self._connection.execute(_ORDER, (order, customer, 100 * number))
                row = self._connection.execute(_EVENT, (event, AGGREGATE, customer, payload)).fetchone()
                if refused:
                    raise PaymentRefused
        except PaymentRefused:
            say(rolled_back=event)
            return None
        say(committed=event, lsn=row[0] if row else None)
        return event, customer, payload

    def _publish(self, event: str, key: str, payload: str) -> None:
        """The naive way: nothing but this process's memory knows that it still has to happen."""
        self._producer.produce(NAIVE, payload, key, headers={"id": event}, on_delivery=self._delivered)
        self._producer.poll(0)

    def _delivered(self, error: Any, _record: Any) -> None:
        self._confirmed += error is None


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def commands() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


def main() -> None:
    """Serve until standard input ends."""
    shop = Shop(*sys.argv[1:3])
    say(open=True)
    for command in commands():
        shop.serve(**command)


if __name__ == "__main__":
    main()
