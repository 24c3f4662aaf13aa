"""`cdc-outbox inbox`: the table by which a consumer knows an event that comes twice."""

from __future__ import annotations

import click

from cdc_outbox.cli import Command, Group, load_settings, run, settings_options


@click.group(
    cls=Group,
    examples=(
        "cdc-outbox inbox create --dsn postgresql://owner@localhost/billing",
        "cdc-outbox inbox create --print-sql | psql billing",
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
@settings_options(also=("--dsn", "--admin-dsn"))
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
