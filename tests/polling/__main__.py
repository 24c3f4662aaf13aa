"""The polling relay: takes a batch, publishes it, marks it, and looks again; until SIGTERM, when it ends its batch.

    python -m tests.polling --table a --dsn postgresql://… --bootstrap localhost:9092

It looks again at once when a batch was full, else after `--every` seconds. Several may share the work; then they
lose the order of a key, as such relays do.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence

import psycopg

from tests.polling import locked
from tests.polling.leased import Leased
from tests.polling.locked import Locked
from tests.polling.outlet import Outlet, Row
from tests.polling.table import TABLES

APPLICATION_NAME = "polling-relay"


def work(options: argparse.Namespace, connection: psycopg.Connection) -> Leased | Locked:
    """How this table is worked on."""
    if options.table == "a":
        return Leased(connection, name=options.name, batch=options.batch, lease=options.lease)
    statements = {"b": locked.B, "c": locked.C}[options.table]
    return Locked(connection, statements, batch=options.batch)


def main() -> None:
    """Poll until told to stop."""
    parser = argparse.ArgumentParser(prog="python -m tests.polling", description=__doc__)
    parser.add_argument("--table", choices=sorted(TABLES), required=True)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--name", default=f"polling-{os.getpid()}", help="locked_by, and the header sent-by")
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--every", type=float, default=0.2, help="seconds between two looks (0.2)")
    parser.add_argument(
        "--lease", type=float, default=30, help="seconds that table A's rows are leased for (30)"
    )
    parser.add_argument(
        "--partitioner", default=None, help="by librdkafka's name; the table's own by default"
    )
    parser.add_argument(
        "--slowness", type=float, default=0, help="seconds between the broker's answer and the mark (0)"
    )
    options = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    partitioner = options.partitioner or TABLES[options.table].partitioner
    outlet = Outlet(options.bootstrap, partitioner=partitioner, name=options.name)

    def publish(rows: Sequence[Row]) -> dict[int, str]:
        failed = outlet.publish(rows)
        time.sleep(options.slowness)  # a slow relay, to be killed between sending and marking
        return failed

    with psycopg.connect(options.dsn, autocommit=True, application_name=APPLICATION_NAME) as connection:
        ours = work(options, connection)
        while not stop.is_set():
            if ours.turn(publish) < options.batch:
                stop.wait(options.every)


if __name__ == "__main__":
    main()
