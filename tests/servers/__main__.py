"""`python -m tests.servers`: fetch and prepare what the tests need, servers above all, before a test's clock runs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from functools import partial

from tests.servers import kubectl, standin
from tests.servers.cache import Missing, cache_root
from tests.servers.engine import Engine
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import MAJORS, PostgresServer


def main() -> int:
    """Start and end each server once; 1 and the reasons when one can't be had."""
    # What is fetched takes its minutes: it is said at once, to a file and a pipe too.
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("tests.servers").setLevel(logging.INFO)
    say = partial(print, flush=True)
    missing: list[str] = []
    kinds: dict[str, Callable[[], PostgresServer | KafkaBroker]] = {
        f"PostgreSQL {major}": partial(PostgresServer, major) for major in MAJORS
    }
    kinds["Kafka"] = KafkaBroker
    for name, make in kinds.items():
        began = time.monotonic()
        try:
            server = make()
            server.start()
            server.close()
        except Missing as reason:
            missing.append(str(reason))
            say(f"{name}: missing")
        else:
            say(f"{name}: ready after {time.monotonic() - began:.1f} s")
    began = time.monotonic()
    try:
        Engine().close()
    except Missing as reason:  # for the tests of the image to say: not every machine can have one
        say(f"Docker: {reason}")
    else:
        standin.fetch()
        say(f"Docker: ready after {time.monotonic() - began:.1f} s")
    try:
        say(f"kubectl: {kubectl.directory() / 'kubectl'}")
    except Missing as reason:
        missing.append(str(reason))
        say("kubectl: missing")
    say(f"cache: {cache_root()}")
    print(*missing, sep="\n", file=sys.stderr, end="\n" if missing else "")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
