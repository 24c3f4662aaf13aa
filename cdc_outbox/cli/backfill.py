"""`cdc-outbox backfill`: publish what was in the table before the slot, then give the slot its name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from cdc_outbox.cli import Command, ask, load_settings, run, settings_options, until_signal
from cdc_outbox.cli.age import duration, wait_option
from cdc_outbox.cli.order_by import order_by_option
from cdc_outbox.cli.streams import say
from cdc_outbox.errors import UsageError
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.postgres.waiting_rows import Waiting
    from cdc_outbox.repair.backfill import Options, Report
    from cdc_outbox.settings import Settings

_LATER = "dead-letter"


def _failed(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    if value == _LATER:
        raise UsageError(
            f"--failed {_LATER} comes with a later version",
            next="choose --failed publish or --failed skip",
        )
    return value


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox backfill --slot outbox_slot",
        "cdc-outbox backfill --yes --failed skip --max-events-per-second 5000",
        "cdc-outbox backfill --where \"created_at >= '2024-01-01'\" --order-by created_at,id",
    ),
)
@settings_options(
    "postgres", "admin", "outbox", "kafka", also=("--max-events-per-second", "--inflight-bytes")
)
@click.option("--yes", is_flag=True, help="The old relay is stopped: don't ask.")
@click.option(
    "--where",
    metavar="SQL",
    help="Rows that fulfil this condition, instead of those that the table's own marks say are unsent.",
)
@click.option("--all", "everything", is_flag=True, help="All rows, sent or not.")
@click.option(
    "--failed",
    metavar="[publish|skip]",
    type=click.Choice(["publish", "skip", _LATER]),
    callback=_failed,
    help="Rows that the old relay failed to send. Without it those that it would try again are published, and those "
    "that it gave up are asked about.",
)
@order_by_option
@click.option(
    "--overlap",
    is_flag=True,
    help="Though the slot exists: publish rows of the table beside it. The relay is stopped.",
)
@click.option(
    "--stale-after",
    default="5m",
    metavar="DURATION",
    callback=duration,
    help="A row that the old relay took longer ago than this is published; one that it took since is in the way.  [5m]",
)
@click.option("--no-failover", is_flag=True, help="If the slot has to be made: no failover slot.")
@wait_option
def command(
    *,
    yes: bool,
    where: str | None,
    everything: bool,
    failed: Literal["publish", "skip"] | None,
    order_by: str | None,
    overlap: bool,
    stale_after: float,
    no_failover: bool,
    wait: float,
) -> int:
    """Publish the rows that the old relay has not sent, then let the stream begin.

    Makes the slot under a pending name unless init has, reads the unsent rows of the table in their order under one
    snapshot taken after that, publishes them, and gives the slot its name once Kafka has confirmed all of them. So no
    row is lost between table and stream, and none is overtaken; some may come twice. However it ends before, run it
    again: it starts anew. It never locks out the application.
    """
    if where is not None and everything:
        raise click.UsageError("--where says which rows, and --all that it is all of them: choose one")
    settings = load_settings()
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            "backfill asks whether the old relay is stopped, and there is no terminal to ask on",
            next=f"stop it, then: cdc-outbox backfill --yes --slot {settings.postgres.slot}",
        )

    from cdc_outbox.postgres.waiting_rows import Choice
    from cdc_outbox.repair.backfill import Options

    options = Options(
        choice=Choice(where, everything, failed, order_by),
        overlap=overlap,
        stale=stale_after,
        failover=not no_failover,
        wait=wait,
    )
    return run(_backfill(settings, options, agreed=yes))


_UNNAMED = (", and the slot has not got its name", " Until then PostgreSQL keeps WAL.")


async def _backfill(settings: Settings, options: Options, *, agreed: bool) -> int:
    from cdc_outbox import memory
    from cdc_outbox.cli.progress import Progress, held_up
    from cdc_outbox.repair.backfill import Listener, backfill

    memory.keep_flat()
    memory.settle()
    done = 0
    left: list[str] = []
    report: Report | None = None
    ended = False
    with Progress("rows") as progress:

        def agree(chosen: Sequence[Waiting]) -> bool:
            nonlocal agreed
            left.extend(filter(None, map(_besides, chosen)))
            if agreed:
                _note(chosen)
            agreed = agreed or ask(_question(chosen))
            return agreed

        def begun(total: int) -> None:
            progress.total = total

        def moved(confirmed: int) -> None:
            nonlocal done
            done = confirmed
            progress.moved(confirmed)

        async def work() -> None:
            nonlocal report, ended
            report = await backfill(settings, options, Listener(agree, held_up, begun, moved))
            ended = True

        await until_signal(work())
    if report is not None:
        _tell(report, left)
        return 0
    if ended:
        say("nothing was published")
        return 1
    unnamed, keeps = ("", "") if options.overlap else _UNNAMED
    say(
        f"stopped before it was finished: at least {done} rows were confirmed{unnamed}.\n"
        f"Run it again when you like: it starts anew, and rows that were sent come twice.{keeps}"
    )
    return 0


def _question(chosen: Sequence[Waiting]) -> str:
    rows = "; ".join(f"{each.table}: {each.rule}, in the order of {each.ordered}" for each in chosen)
    lines = [f"{each.table} {each.by_value}" for each in chosen if each.by_value]
    lines += [f"left out: {besides}" for besides in map(_besides, chosen) if besides]
    lines = [f"To be published from {rows}.", *lines, "Is the old relay stopped?"]
    return "\n".join(map(printable, lines))


def _note(chosen: Sequence[Waiting]) -> None:
    """In the log what the question would have told."""
    from cdc_outbox import log

    own = log.get(__name__)
    for each in chosen:
        if each.by_value:
            own.info("to be published", table=str(each.table), rows=each.by_value)
        if besides := _besides(each):
            own.warning("left out", rows=besides)


def _besides(each: Waiting) -> str:
    """The rows that may be unsent and don't fulfil --where, in words."""
    return f"{each.besides} of {each.table} by --where, though {each.known_by}" if each.besides else ""


def _tell(report: Report, besides: Sequence[str]) -> None:
    """The counts, and what comes next."""
    if report.finished_before:
        click.echo("all rows had been published before: the slot has its name now")
    else:
        left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(report.left_out.items()))
        left_out = ", ".join(filter(None, (left_out, *besides)))
        rate = report.rows / report.seconds if report.seconds else 0.0
        click.echo(
            f"read {report.rows} rows, published {report.published}, left out {left_out or 'none'}, "
            f"in {report.seconds:.1f} s ({rate:.0f} rows/s)"
        )
    click.echo(f'slot "{report.slot.name}" stands at {report.slot.confirmed_flush_lsn}')
