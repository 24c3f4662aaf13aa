"""`cdc-outbox init`: create what is missing, say what was done, and print what only an owner may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options
from cdc_outbox.cli.age import wait_option
from cdc_outbox.cli.output import json_options
from cdc_outbox.cli.streams import say
from cdc_outbox.log import json_text

if TYPE_CHECKING:
    from cdc_outbox.postgres.slot import Slot
    from cdc_outbox.postgres.steps import Step, StepName

STEPS = ("table", "witness", "publication", "slot")


def _role(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value or len(value.encode()) > 63 or not value.isprintable()):
        raise click.BadParameter(f"{value!r} is not a role's name")
    return value


def _only(context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> frozenset[str]:
    """Steps and filters share a flag; filters are settings, and go where the settings' own option puts them."""
    filters = tuple(value for value in values if value not in STEPS)
    for value in filters:
        if "=" not in value:
            raise click.BadParameter(
                f"{value!r} is neither a step of init ({', '.join(STEPS)}) nor a filter of rows (COLUMN=VALUE)"
            )
    if _filter.callback is not None:
        _filter.callback(context, _filter, filters)
    return frozenset(values) - frozenset(filters)


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox init --create-table --dsn postgresql://owner@localhost/app",
        "cdc-outbox init --slot outbox_slot --dsn postgresql://owner@localhost/app --role outbox_relay",
        "cdc-outbox init --table shop.events --slot shop_slot --publication shop_pub",
        "cdc-outbox init --print-sql | less",
    ),
)
@settings_options("postgres", "admin", "outbox", "cleanup")
@click.option("--create-table", is_flag=True, help="Create the outbox table if there is none.")
@click.option(
    "--role", metavar="NAME", callback=_role, help="The relay's role: make it, grant what it needs."
)
@click.option("--no-failover", is_flag=True, help="No failover slot, also on a primary of 17 and later.")
@click.option("--no-backfill", is_flag=True, help="Go on although rows in the table may be unpublished.")
@click.option(
    "--only",
    "steps",
    metavar="STEP|COLUMN=VALUE",
    multiple=True,
    callback=_only,
    help=f"STEP: do this step alone ({', '.join(STEPS)}). COLUMN=VALUE: as for `start`, only rows whose column has "
    "this value are sent, so only they are counted. Repeatable.",
)
@click.option("--print-sql", is_flag=True, help="Print all statements, and do nothing.")
@wait_option
@json_options()
def command(
    *,
    create_table: bool,
    role: str | None,
    no_failover: bool,
    no_backfill: bool,
    steps: frozenset[StepName],
    print_sql: bool,
    wait: float,
    as_json: bool,
) -> None:
    """Create what is missing: outbox table (with --create-table), witness table, publication, grants, slot.

    Safe to run twice. The slot comes last: from then on PostgreSQL keeps what is written until the relay has
    delivered it.
    """
    if print_sql and as_json:
        raise click.UsageError("--print-sql prints SQL, so it can't be combined with --json")
    settings = load_settings()

    from cdc_outbox.cli.progress import held_up
    from cdc_outbox.postgres.setup import init
    from cdc_outbox.postgres.steps import InitOptions, script

    options = InitOptions(
        create_table=create_table,
        backfill=not no_backfill,
        failover=not no_failover,
        only=steps,
        role=role,
        wait=wait,
    )
    if print_sql:
        click.echo(script(settings, options), nl=False)
        return
    done: list[Step] = []
    slot: Slot | None = None

    def told(step: Step) -> None:
        done.append(step)
        if not as_json:
            _tell(step)

    try:
        report = run(init(settings, options, told=told, waiting=held_up))
        slot = report.slot
    finally:
        if as_json:
            click.echo(json_text(_document(settings.postgres.slot, done, slot)))
        else:
            for step in done:
                if step.status == "failed":
                    click.echo(f"\n{step.sql}")
    if not as_json and slot is not None:
        click.echo(f'slot "{slot.name}" stands at {slot.confirmed_flush_lsn}')
    for unfit in report.unfit:
        say(f"start with these settings will refuse: {unfit}\nnext: {next_step(unfit.next)}")


# The settings' own --only gave way to the one above.
_filter = next(each for each in command.params if each.name == "only")
command.params.remove(_filter)


def _tell(step: Step) -> None:
    """One line about a step, on stdout."""
    click.echo(f"{step.name:<12} {step.status:<8} {step.object}")
    if step.note:
        say(step.note)
    if step.name == "grants" and step.status == "created":
        say(f"suggested, not needed: grant pg_read_all_stats to {step.object};")


def _document(name: str, steps: list[Step], slot: Slot | None) -> dict[str, object]:
    return {
        "schema_version": 1,
        "steps": [
            {
                "name": step.name,
                "object": step.object,
                "status": step.status,
                "sql": None if step.status == "existed" else step.sql,
            }
            for step in steps
        ],
        "slot": {
            "name": name,
            "lsn": None
            if slot is None or slot.confirmed_flush_lsn is None
            else str(slot.confirmed_flush_lsn),
        },
    }
