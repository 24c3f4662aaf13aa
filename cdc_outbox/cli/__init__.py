"""The command line: `main`, and what a module of a command needs (see `cdc_outbox.cli.command`).

Nothing heavy is imported here: `--help` has to answer at once.
"""

from __future__ import annotations

from typing import Final

import click

from cdc_outbox import __version__
from cdc_outbox.cli.command import Command, Group, Program, ask, run, until_signal
from cdc_outbox.cli.option import load_settings, next_step, settings_options, with_flags

__all__ = [
    "Command",
    "Group",
    "ask",
    "load_settings",
    "main",
    "next_step",
    "run",
    "settings_options",
    "until_signal",
    "with_flags",
]

SUMMARIES: Final = {
    "init": "Create what is missing: table, witness, publication, slot.",
    "backfill": "Publish what was in the table before the slot, then let the stream begin.",
    "start": "Run the relay until it is told to stop.",
    "doctor": "Check everything that start will need, and say how to mend it.",
    "health": "Say whether slot and delivery are well, and what to do.",
    "peek": "Show the next events as they would be sent.",
    "find": "Say where an event is: row, delivery, topic.",
    "replay": "Publish rows of the table again.",
    "cleanup": "Remove rows that are old and acknowledged.",
    "drop": "Remove slot, publication and witness row.",
    "inbox": "Make and clean the table by which a consumer knows an event that comes twice.",
    "audit": "Compare table and topics: what is missing, twice, out of order or foreign.",
    "config": "Show, check and describe the settings.",
    "demo": "See the whole story on embedded servers, without any set-up.",
}


@click.group(
    "cdc-outbox",
    cls=Program,
    summaries=SUMMARIES,
    examples=(
        "cdc-outbox demo",
        "cdc-outbox init --create-table --dsn postgresql://owner@localhost/app",
        "cdc-outbox start --slot outbox_slot --bootstrap-servers localhost:9092",
        "cdc-outbox start --help",
    ),
)
@click.version_option(__version__, prog_name="cdc-outbox", message="%(prog)s %(version)s")
def main() -> None:
    """Stream a PostgreSQL outbox table into Kafka from the write-ahead log, and lose nothing."""
