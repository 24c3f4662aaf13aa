"""Marks under load and storms: `python -m tests.chaos.marks --table a --seconds 60`.

A shop writes, a relay sends and marks, and meanwhile the relay is killed, its marking session ended, the table locked,
rows locked, the broker frozen. Then all is let be, and the books are compared: every event that was committed is in
Kafka and marked, and none was marked before Kafka had it (both clocks are this machine's).
"""

from __future__ import annotations

import argparse
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable

import psycopg

from tests.polling.shop import Shop
from tests.polling.table import TABLES, Table
from tests.servers.kafka import KafkaBroker
from tests.servers.ledger import read_all
from tests.servers.postgres import PostgresServer
from tests.servers.relay import RelayProcess, run_command
from tests.servers.wait import eventually

CLOCKS_MS = 2
"""Kafka's times are whole milliseconds, and its clock is read in another process."""


class Storm:
    """One relay after another on one table, and what happens to it."""

    def __init__(self, table: Table, seed: int) -> None:
        self.table = table
        self.random = random.Random(seed)
        self.server = PostgresServer(18).start()
        self.kafka = KafkaBroker().start()
        self.dsn = self.server.create_database("app")
        self.topic = f"marks-{secrets.token_hex(3)}"
        self.kafka.create_topic(self.topic, 3, {"message.timestamp.type": "LogAppendTime"})
        table.make(self.dsn)
        made = run_command("init", "--slot", "marks", env={"CDC_OUTBOX_DSN": self.dsn})
        assert made.returncode == 0, made.stderr
        self.shop = Shop(table, self.dsn, [self.topic], seed=seed, rate=150).open()
        self.relay = self.start()
        self.counts: Counter[str] = Counter()

    def start(self) -> RelayProcess:
        flags = ("--mark", "update", *self.table.key_flags)
        return RelayProcess(self.dsn, self.kafka.bootstrap, slot="marks", flags=flags)

    def blows(self) -> list[Callable[[], None]]:
        return [self.kill, self.cut, self.lock_table, self.lock_rows, self.freeze]

    def kill(self) -> None:
        """kill -9 of the relay."""
        self.relay.kill()
        self.relay = self.start()

    def cut(self) -> None:
        """The marking session is ended."""
        self.server.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'cdc-outbox/marks/mark'"
        )

    def lock_table(self) -> None:
        """Three seconds in which nobody may change the table, the shop included; then the relay may be killed."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("lock table outbox in share mode")
            connection.execute("select pg_sleep(3)")
            if self.random.random() < 0.5:
                self.kill()

    def lock_rows(self) -> None:
        """The newest rows are locked for three seconds."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("select from outbox order by id desc limit 200 for update skip locked")
            connection.execute("select pg_sleep(3)")

    def freeze(self) -> None:
        """The broker stands still for three seconds."""
        self.kafka.pause()
        time.sleep(3)  # the blow itself: the broker stands still for so long
        self.kafka.resume()

    def rage(self, seconds: float) -> None:
        """One blow after another."""
        self.shop.start()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            blow = self.random.choice(self.blows())
            blow()
            self.counts[blow.__name__] += 1
            time.sleep(self.random.uniform(0.5, 2))  # to no condition: the next blow is to meet any moment

    def judge(self) -> list[str]:
        """What is wrong, once all is calm."""
        books = self.shop.stop()
        open_rows = f"select count(*) from outbox where {self.table.unsent}"
        eventually(
            lambda: self.server.value(open_rows.encode(), dbname="app") == 0,  # type: ignore[arg-type]
            120,
            lambda: f"all rows marked\n{self.relay.text()}",
        )
        code, _ = self.relay.terminate()
        appended: dict[str, int] = {}
        records = read_all(self.kafka.bootstrap, self.topic)
        for record in records:
            event_id = record.json()["event_id"]
            appended[event_id] = min(record.timestamp, appended.get(event_id, record.timestamp))
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute(
                "select payload ->> 'event_id', extract(epoch from sent_at) * 1000 from outbox"
                " where sent_at is not null"
            ).fetchall()
        early = [
            f"{event_id} was marked {appended[event_id] - float(at):.1f} ms before Kafka had it"
            for event_id, at in rows
            if event_id in appended and float(at) < appended[event_id] - CLOCKS_MS
        ]
        foreign = [
            f"{event_id} is marked and not in Kafka" for event_id, _ in rows if event_id not in appended
        ]
        lost = [f"{event_id} is not in Kafka" for event_id in books.committed if event_id not in appended]
        marked = {event_id for event_id, _ in rows}
        unmarked = [f"{event_id} is not marked" for event_id in books.committed if event_id not in marked]
        print(
            f"table {self.table.letter}: {len(books.committed)} committed, {len(records)} records, {len(rows)} marked; "
            f"{', '.join(f'{count} {name}' for name, count in sorted(self.counts.items()))}; "
            f"lost {len(lost)}, marked early {len(early)}, marked undelivered {len(foreign)}, unmarked {len(unmarked)}",
            flush=True,
        )
        return [*lost, *early, *foreign, *unmarked, *([f"the relay ended with {code}"] if code else [])]

    def close(self) -> None:
        self.relay.close()
        self.shop.close()
        self.server.close()
        self.kafka.close()


def main() -> None:
    """Storm over each table that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.marks", description=__doc__)
    parser.add_argument("--table", action="append", choices=sorted(TABLES), help="repeat it for several; all")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    faults: list[str] = []
    for letter in options.table or sorted(TABLES):
        storm = Storm(TABLES[letter], options.seed)
        try:
            storm.rage(options.seconds)
            faults += storm.judge()
        finally:
            storm.close()
    print("\n".join(faults[:20]))
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
