"""`cdc-outbox cleanup`: old rows go, once they are acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options
from cdc_outbox.cli.age import older_than_option
from cdc_outbox.errors import UsageError

if TYPE_CHECKING:
    from cdc_outbox.repair.cleanup import Cleaned

_BATCH = 1000


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox cleanup --older-than 7d --dry-run",
        "cdc-outbox cleanup --older-than 7d --table public.outbox",
        "cdc-outbox cleanup --older-than 30d --partitions drop --dsn postgresql://owner@localhost/app",
    ),
)
@settings_options("postgres", "admin", "outbox")
@older_than_option("Remove rows that are older than this.  [cleanup.older_than]", required=False)
@click.option("--dry-run", is_flag=True, help="Say what would go, and remove nothing.")
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=100_000),
    default=_BATCH,
    metavar="N",
    help=f"Rows that go in one transaction.  [{_BATCH}]",
)
@click.option(
    "--partitions",
    type=click.Choice(["drop", "detach"]),
    help="Drop whole partitions, or detach them, instead of deleting rows.",
)
@click.option(
    "--left-out",
    is_flag=True,
    help="Remove rows that the settings leave out as well, though the table doesn't say that they were sent.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(
    *,
    older_than: float | None,
    dry_run: bool,
    batch: int,
    partitions: Literal["drop", "detach"] | None,
    left_out: bool,
    as_json: bool,
) -> None:
    """Remove rows of the outbox table that are old and acknowledged, in small batches.

    Acknowledged is what every slot that feeds the table has proof of having delivered. Rows that are old and not
    acknowledged stay, and are named; then the exit code is 1. May run beside relays and the application, and be ended
    at any time. It needs the rights to read, lock and delete rows; an owner's connection has them (--admin-dsn).
    """
    settings = load_settings()
    age = settings.cleanup.older_than if older_than is None else older_than
    if age is None:
        raise UsageError(
            "how old rows have to be isn't said", next="cdc-outbox cleanup --older-than 7d --dry-run"
        )

    from cdc_outbox.cli.progress import Phases
    from cdc_outbox.log import json_text
    from cdc_outbox.repair.cleanup import Rule, Unacknowledged, clean

    rule = Rule(age, batch, partitions=partitions, left_out=left_out)
    with Phases() as phases:
        cleaned = run(clean(settings, rule, dry_run=dry_run, told=phases.moved))
    if as_json:
        tables = [_document(each) for each in cleaned]
        click.echo(json_text({"schema_version": 1, "dry_run": dry_run, "tables": tables}))
    else:
        for each in cleaned:
            click.echo(_line(each, age, dry_run=dry_run))
    kept = [each for each in cleaned if each.found.undelivered]
    if kept:
        raise Unacknowledged.of(kept, age)


def _document(cleaned: Cleaned) -> dict[str, Any]:
    found = cleaned.found
    return {
        "table": str(cleaned.table),
        "by": cleaned.by,
        "found": found.delivered,
        "removed": cleaned.removed,
        "partitions": [str(name) for name in cleaned.partitions],
        "left_out": found.left_out,
        "unacknowledged": found.undelivered,
        "oldest_unacknowledged": [{"id": row.id, "time": row.time} for row in found.oldest],
        "slots": [{"problem": problem, "next": next_step(remedy)} for problem, remedy in cleaned.why],
    }


def _line(cleaned: Cleaned, age: float, *, dry_run: bool) -> str:
    from cdc_outbox.repair.cleanup import old

    found = cleaned.found
    gone = f"{found.delivered} rows would go" if dry_run else f"{cleaned.removed} rows removed"
    if cleaned.partitions:
        gone += f", with partition {', '.join(map(str, cleaned.partitions))}"
    by = f", by {cleaned.by}" if cleaned.by is not None else ""
    stay = f"; {found.undelivered} are not acknowledged and stay" if found.undelivered else ""
    if found.left_out:
        stay += f"; {found.left_out} that the settings leave out stay (--left-out)"
    return f"{cleaned.table}  {gone} ({old(age)}{by}){stay}"
