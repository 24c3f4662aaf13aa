"""`cdc-outbox inbox`: the table by which a consumer knows an event that comes twice."""

from __future__ import annotations

import click

from cdc_outbox.cli import Command, Group, load_settings, run, settings_options
from cdc_outbox.cli.age import older_than_option


@click.group(
    cls=Group,
    examples=(
        "cdc-outbox inbox create --dsn postgresql://owner@localhost/billing",
        "cdc-outbox inbox create --print-sql | psql billing",
        "cdc-outbox inbox cleanup --older-than 30d --dsn postgresql://billing@localhost/billing",
    ),
)
def command() -> None:
    """The inbox of a consumer: the table by which it applies an event that comes twice only once."""


@command.command(
    cls=Command,
    examples=(
        "cdc-outbox inbox create --dsn postgresql://owner@localhost/billing",
        "cdc-outbox inbox create --print-sql | psql billing",
    ),
)
@settings_options(also=("--dsn",))
@click.option("--print-sql", is_flag=True, help="Print the statements, and do nothing.")
def create(*, print_sql: bool) -> None:
    """Create the table public.cdc_outbox_inbox in the consumer's database, if it isn't there.

    The consumer's role needs the right to insert into it. Safe to run twice.
    """
    settings = load_settings()

    from cdc_outbox.postgres import inbox

    if print_sql:
        click.echo(inbox.script(), nl=False)
        return
    made = run(inbox.create(settings.postgres))
    click.echo(f"{'inbox':<12} {'created' if made else 'existed':<8} {inbox.TABLE}")


@command.command(
    cls=Command,
    examples=(
        "cdc-outbox inbox cleanup --older-than 30d --dry-run",
        "cdc-outbox inbox cleanup --older-than 30d --dsn postgresql://billing@localhost/billing",
    ),
)
@settings_options(also=("--dsn",))
@older_than_option("Remove rows of events that were applied longer ago than this.", required=True)
@click.option("--dry-run", is_flag=True, help="Say how many would go, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def cleanup(*, older_than: float, dry_run: bool, as_json: bool) -> None:
    """Remove old rows of the inbox, in small batches.

    An event whose row is gone is applied again if it comes again. So let rows get older than the topics keep their
    records, and than anybody replays events or sets a consumer back.
    """
    settings = load_settings()

    from cdc_outbox.cli.progress import Phases
    from cdc_outbox.log import json_text
    from cdc_outbox.postgres.inbox import TABLE
    from cdc_outbox.repair.cleanup import Rule
    from cdc_outbox.repair.inbox_cleanup import clean_inbox

    with Phases() as phases:
        rule = Rule(older_than)
        found, removed = run(clean_inbox(settings.postgres, rule, dry_run=dry_run, told=phases.moved))
    if as_json:
        click.echo(json_text({"schema_version": 1, "dry_run": dry_run, "found": found, "removed": removed}))
    else:
        click.echo(f"{TABLE}  {f'{found} rows would go' if dry_run else f'{removed} rows removed'}")
