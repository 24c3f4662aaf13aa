"""`cdc-outbox doctor`: everything that `start` will need, looked at beforehand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options
from cdc_outbox.cli.output import json_options
from cdc_outbox.log import json_text
from cdc_outbox.terminal import coloured

if TYPE_CHECKING:
    from cdc_outbox.doctor.report import Report
    from cdc_outbox.settings import Settings


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox doctor",
        "cdc-outbox doctor --slot outbox_slot --bootstrap-servers localhost:9092",
        "cdc-outbox doctor --config /etc/cdc-outbox.toml --json | jq '.checks[] | select(.status != \"ok\")'",
    ),
)
@settings_options("postgres", "admin", "outbox", "kafka", "delivery", "limits", "cleanup", "http")
@json_options()
def command(*, as_json: bool) -> int:
    """Check everything that start will need, on PostgreSQL and on Kafka.

    Takes the settings of start, looks as the relay's own role and user, and changes nothing. Says how to mend what is
    wrong. Exits 0 where start would work, 78 where a person has to mend the set-up first, 1 where what is wrong may
    pass, such as a server that is away.
    """
    settings = load_settings("start")
    report = run(_examine(settings))
    if as_json:
        click.echo(json_text(report.document()))
    else:
        click.echo(_text(report))
    return report.exit_code


async def _examine(settings: Settings) -> Report:
    import logging

    from cdc_outbox.doctor.report import examine

    if settings.log.level != "debug":
        # What they have to say is in the report.
        for name in ("aiokafka", "cdc_outbox.postgres.admission", "cdc_outbox.postgres.peek"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    return await examine(settings, next_step)


def _text(report: Report) -> str:
    import shutil
    import sys

    from cdc_outbox.doctor.text import render

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    return render(report, width=width, colour=coloured(sys.stdout))
