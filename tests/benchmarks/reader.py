"""The yardstick: a program that reads a slot's stream and throws it away, as fast as psycopg's libpq can.

It reads patiently: it takes all that has come, then pauses before it asks the socket again, so that the walsender
doesn't wake it for each message, and over TCP finds the window full and sends in large segments. libpq's buffer, which
only grows, is made to grow first: so one call reads what came in a pause. Prints one JSON line when it has seen the
commit behind row number `--rows`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

import psycopg

BUFFER = 1 << 20
XLOG, INSERT, COMMIT = b"wIC"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slot", required=True)
    parser.add_argument("--publication", required=True)
    parser.add_argument("--rows", required=True, type=int, help="how many to read")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each read")
    options = parser.parse_args()
    connection = psycopg.connect(
        os.environ["BENCHMARK_DSN"], replication="database", autocommit=True, application_name=options.slot
    )
    connection.execute(f"select repeat(' ', {BUFFER})".encode())
    pgconn = connection.pgconn
    pgconn.send_query(
        f'START_REPLICATION SLOT "{options.slot}" LOGICAL 0/0'
        f" (proto_version '1', publication_names '\"{options.publication}\"')".encode()
    )
    while pgconn.is_busy():
        pgconn.consume_input()
    result = pgconn.get_result()
    assert result is not None
    assert result.status == psycopg.pq.ExecStatus.COPY_BOTH, result.error_message
    print(json.dumps(read(pgconn, options.rows, options.pause)), flush=True)


def read(pgconn: psycopg.pq.abc.PGconn, expected: int, pause: float) -> dict[str, float]:
    """Take frames until the commit behind row number `expected`."""
    frame, consume = pgconn.get_copy_data, pgconn.consume_input
    first = 0.0
    rows = size = tag = 0
    while rows < expected or tag != COMMIT:
        got = 0
        length, view = frame(1)
        while length > 0:
            got += length
            data = bytes(view)
            length, view = frame(1)
            if data[0] != XLOG:
                continue
            tag = data[25]
            if tag == INSERT:
                if not first:
                    first = time.time()
                rows += 1
                size += len(data) - 25
        assert length == 0, "the stream ended"
        if got < BUFFER // 2:
            time.sleep(pause)  # as the relay, which this is compared with, pauses between drains
        consume()
    return {
        "first": first,
        "last": time.time(),
        "rows": rows,
        "row_bytes": round(size / rows),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    main()
