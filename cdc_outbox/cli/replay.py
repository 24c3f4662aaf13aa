"""`cdc-outbox replay`: publish rows of the table again, after a person has agreed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from cdc_outbox.cli import Command, ask, load_settings, next_step, run, settings_options
from cdc_outbox.cli.moment import moment, window_options
from cdc_outbox.cli.order_by import order_by_option
from cdc_outbox.cli.streams import say
from cdc_outbox.errors import CdcOutboxError, UsageError
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from cdc_outbox.event import Encoded
    from cdc_outbox.postgres.chosen import Chosen
    from cdc_outbox.repair.replay import Found, Replay
    from cdc_outbox.settings import Settings

_WIDTH = 200


class NothingToReplay(CdcOutboxError):
    """No row that was chosen can be published now."""


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox replay --dry-run --since 2h",
        "cdc-outbox replay --id 0e2f2a5e-6a3c-4be6-9d7e-0f2a5e6a3c4b",
        "cdc-outbox replay --aggregate order-17 --since 2024-01-17T13:00:00Z --until 2024-01-17T14:00:00Z",
    ),
)
@settings_options(
    "postgres", "admin", "outbox", "kafka", also=("--max-events-per-second", "--inflight-bytes")
)
@click.option("--id", "ids", multiple=True, metavar="ID", help="The event with this id. Repeatable.")
@click.option(
    "--aggregate",
    metavar="KEY",
    help="Events with this key, as Kafka's messages have it; usually the aggregate id.",
)
@click.option("--aggregate-type", metavar="TYPE", help="Events of this type of aggregate.")
@window_options
@order_by_option
@click.option("--dry-run", is_flag=True, help="Say what would be published, and publish nothing.")
@click.option(
    "--while-running",
    is_flag=True,
    help="Though a relay streams: its events and these mix, so that a consumer may see a key's events out of order.",
)
@click.option("--yes", is_flag=True, help="Don't ask.")
@click.option(
    "--json", "as_json", is_flag=True, help="Say on stdout in JSON what was, or would be, published."
)
def command(
    *,
    ids: tuple[str, ...],
    aggregate: str | None,
    aggregate_type: str | None,
    since: str | None,
    until: str | None,
    order_by: str | None,
    dry_run: bool,
    while_running: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Publish rows of the table again: those that fulfil all that is asked for.

    The messages are as the relay sends them, with the header cdc.source: replay. They keep the order in which the rows
    were written. Rows that the relay has yet to deliver are left out, for they come by the stream. The relay has to be
    stopped; one that is started meanwhile waits until the replay is done.
    """
    settings = load_settings()
    if not (ids or aggregate is not None or aggregate_type is not None or since or until):
        raise UsageError(
            "nothing says which rows are to be published again",
            next="name them with --id, --aggregate, --aggregate-type, --since or --until: cdc-outbox replay --help",
        )
    if not (yes or dry_run) and not sys.stdin.isatty():
        raise UsageError(
            "replay asks before it publishes anything, and there is no terminal to ask on",
            next="see what it would publish with --dry-run, then add --yes",
        )

    from cdc_outbox.postgres.chosen import Chosen

    chosen = Chosen(
        tuple(dict.fromkeys(ids)),
        aggregate,
        aggregate_type,
        moment("--since", since),
        moment("--until", until),
    )
    return run(
        _replay(
            settings,
            chosen,
            order_by=order_by,
            beside=while_running,
            dry_run=dry_run,
            agreed=yes,
            as_json=as_json,
        )
    )


async def _replay(
    settings: Settings,
    chosen: Chosen,
    *,
    order_by: str | None,
    beside: bool,
    dry_run: bool,
    agreed: bool,
    as_json: bool,
) -> int:
    import asyncio

    from cdc_outbox import log, memory
    from cdc_outbox.cli.progress import Progress
    from cdc_outbox.repair.replay import Replay

    memory.keep_flat()
    memory.settle()
    replay = Replay(settings, chosen, order_by=order_by, beside=beside or dry_run)
    with Progress("rows read") as progress:
        found = await replay.look(read=progress.moved)
    if found.first_poison is not None and not dry_run:
        raise _poison(found)
    if found.undelivered or found.left_out or found.clock or dry_run or not agreed:
        told = map(printable, _told(found, shown=dry_run or not agreed))
        (say if as_json or not dry_run else click.echo)("\n".join(told))
    if dry_run or not found.events:
        if as_json:
            click.echo(_document(found, replay))
        if found.events or (dry_run and found.rows):
            return 0
        raise _nothing(found)
    if found.beside is not None:
        log.get(__name__).warning(
            "replaying beside the stream: a consumer may see events of one key out of order", why=found.beside
        )
    if not agreed and not ask(_question(found)):
        say("nothing was published")
        return 1
    with Progress("rows", found.events) as progress:
        try:
            await replay.publish(moved=progress.moved)
        except (CdcOutboxError, asyncio.CancelledError):
            progress.clear()
            count = sum(replay.published.values())
            say(f"stopped in the middle: {_events(count)} had been published by then")
            raise
    click.echo(_document(found, replay) if as_json else _summary(replay))
    return 0


def _told(found: Found, *, shown: bool) -> list[str]:
    """What would be published, and what is left out and why."""
    lines = []
    if shown and found.events:
        lines.append(f"{_events(found.events)} of {found.table}, in the order of {found.ordered}:")
        lines += [f"  {count:>8}  to {topic}" for topic, count in found.topics.most_common()]
        lines.append("the first:")
        lines += [f"  {_line(event)}" for event in found.first]
    if found.undelivered:
        ids = ", ".join(found.undelivered_ids)
        more = ", …" if found.undelivered > len(found.undelivered_ids) else ""
        lines.append(
            f"left out: {found.undelivered} that the relay has yet to deliver, or that nothing proves delivered: they "
            f"come by the stream ({ids}{more})"
        )
        if found.unproven is not None:
            lines.append(f"  {found.unproven[0]}; next: {next_step(found.unproven[1])}")
    lines += [f"left out: {count} by the rule {rule}" for rule, count in sorted(found.left_out.items())]
    if found.clock is not None:
        lines.append(str(found.clock))
    if found.first_poison is not None:
        lines.append(f"can't be published: {found.poison}, the first: {found.first_poison}")
        lines.append(f"  next: {next_step(found.first_poison.next)}")
    return lines


def _events(count: int) -> str:
    return f"{count} event{'' if count == 1 else 's'}"


def _line(event: Encoded) -> str:
    from cdc_outbox.event import event_id

    topic, _, key, *_ = event
    shown = "no key" if key is None else f"key {key.decode('utf-8', 'backslashreplace')}"
    return f"{topic}  {shown}  id {event_id(event)}"[:_WIDTH]


def _question(found: Found) -> str:
    return f"Publish {'this event' if found.events == 1 else f'these {found.events} events'} again?"


def _summary(replay: Replay) -> str:
    topics = ", ".join(f"{count} to {topic}" for topic, count in sorted(replay.published.items()))
    return f"published {_events(sum(replay.published.values()))} again: {topics or 'none'}"


def _document(found: Found, replay: Replay) -> str:
    from cdc_outbox.log import json_text

    document: dict[str, Any] = {
        "schema_version": 1,
        "table": str(found.table),
        "order": found.ordered,
        "rows": found.rows,
        "events": found.events,
        "topics": dict(found.topics),
        "left_out": dict(found.left_out),
        "undelivered": {"count": found.undelivered, "ids": found.undelivered_ids},
        "poison": found.poison,
        "published": replay.published,
    }
    return json_text(document)


def _poison(found: Found) -> CdcOutboxError:
    """The first row that can't be published: nothing was."""
    from cdc_outbox.errors import PoisonEvent

    poison = found.first_poison
    assert poison is not None  # noqa: S101 - the caller has looked
    more = f", nor can {found.poison - 1} more" if found.poison > 1 else ""
    return PoisonEvent(
        f"{poison}{more}; nothing was published",
        next=poison.next,
        reason=poison.reason,
        event_id=poison.event_id,
    )


def _nothing(found: Found) -> CdcOutboxError:
    if not found.rows:
        others = "ask for other rows; those that were removed from the table can't be published again"
        clock = found.clock
        return NothingToReplay(
            f"no row of {found.table} is what was asked for",
            next=f"ask by the clock of {clock.zone}: {clock.meant}; or {others}"
            if clock and clock.meant
            else others,
        )
    if found.undelivered:
        return NothingToReplay(
            "nothing was published: none of the rows is known to be delivered",
            next="have the relay deliver them: cdc-outbox start",
        )
    return NothingToReplay(
        "nothing was published: rules leave out all of the rows",
        next="see which rules there are: cdc-outbox doctor",
    )
