"""`cdc-outbox peek`: the next events as they would be sent, and nothing is consumed by looking."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options, until_signal
from cdc_outbox.cli.output import json_options
from cdc_outbox.errors import UsageError
from cdc_outbox.instant import iso_us
from cdc_outbox.log import json_text
from cdc_outbox.settings.units import parse_duration
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_outbox.kafka.placement import Placement
    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.repair.trial import Trial
    from cdc_outbox.settings import Settings

DEFAULT_LIMIT = 10
_WIDTH = 20
_SHOWN = 1000


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox peek --slot outbox_slot",
        "cdc-outbox peek --limit 100 --json | jq .payload",
        "cdc-outbox peek --follow --table public.outbox",
        "cdc-outbox peek --follow --compare 5m",
    ),
)
@settings_options("postgres", "outbox", "kafka", "admin")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Events to show.  [{DEFAULT_LIMIT}; with --follow no limit]",
)
@click.option("--full", is_flag=True, help=f"Show whole values; else the text stops at {_SHOWN} characters.")
@click.option("--follow", is_flag=True, help="Show new events as they commit, by a temporary slot.")
@click.option(
    "--compare",
    metavar="SECONDS",
    help="With --follow: for so long, compare with what the old relay marks as sent in the table. 60, 5m, 1h.",
)
@click.option(
    "--deleted-is-sent",
    is_flag=True,
    help="With --compare: the table has no mark, and the old relay deletes what it has sent.",
)
@json_options("Short for --format json: one line per event.")
def command(
    *,
    limit: int | None,
    full: bool,
    follow: bool,
    compare: str | None,
    deleted_is_sent: bool,
    as_json: bool,
) -> int | None:
    """Show the next events as they would be sent, without consuming them.

    Reads from the slot and confirms nothing, so the relay sends the same events afterwards. Exits 1 while a relay
    streams from the slot; --follow works beside it. Where Kafka can be reached, partitions are shown, and what would
    be in the way: a topic that is missing, an event that is too large for it.

    With --compare the first events are shown (--limit says how many), then an account of all: the same, or what would
    be different with this relay. It exits 0 when nothing would be, else 1. With --json it is one document, without
    events unless --limit asks for them. Reading the table takes SELECT, with --admin-dsn by another role.
    """
    settings = load_settings()
    shown = None if full else _SHOWN

    def written(document: dict[str, Any]) -> str:
        return json_text(document) if as_json else "\n".join(_lines(document, shown))

    if compare is not None:
        seconds = _seconds(compare, follow=follow)
        most = limit if limit is not None else 0 if as_json else DEFAULT_LIMIT
        return run(_compare(settings, seconds, most, deleted_is_sent, written, json=as_json))
    if deleted_is_sent:
        raise UsageError(
            "--deleted-is-sent is about a comparison", next="cdc-outbox peek --follow --compare 60"
        )
    bound = limit or (None if follow else DEFAULT_LIMIT)
    run(until_signal(_show(settings, bound, follow, written)))
    return None


def _seconds(text: str, *, follow: bool) -> float:
    """The length of a comparison: a duration, or a plain number of seconds."""
    try:
        seconds = float(text) if text.isdecimal() else parse_duration(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 10**9:
        raise UsageError(
            f"--compare takes a number of seconds, or a duration such as 5m, not {text!r}",
            next="cdc-outbox peek --follow --compare 60",
        )
    if not follow:
        raise UsageError(
            "--compare is about new events, which --follow shows",
            next=f"cdc-outbox peek --follow --compare {text}",
        )
    return seconds


async def _show(
    settings: Settings, limit: int | None, follow: bool, written: Callable[[dict[str, Any]], str]
) -> None:
    import asyncio

    from cdc_outbox import log
    from cdc_outbox.postgres import peek
    from cdc_outbox.repair.trial import attempt
    from cdc_outbox.table.mapping import Mapping

    logger = log.get(__name__)
    mapping = Mapping(settings.outbox, settings.postgres.slot)
    source = (
        peek.arriving(settings, mapping, waiting=_tell_waiting)
        if follow
        else peek.upcoming(settings, mapping)
    )
    shown = 0
    left_out: dict[str, int] = {}
    looking = asyncio.create_task(_placement(settings))
    try:
        async with source as rows:
            placement = await looking
            if follow:
                logger.info("following", tables=[str(table) for table in settings.outbox.tables])
            async for row in rows:
                trial = await attempt(row, placement)
                if trial.left_out is not None:
                    left_out[trial.left_out] = left_out.get(trial.left_out, 0) + 1
                    continue
                # A reader that pauses, such as a pager, must not stop the status updates.
                await asyncio.to_thread(click.echo, written(_document(trial)))
                shown += 1
                if shown == limit:
                    break
    finally:
        looking.cancel()
        if left_out:
            logger.info("left out", **left_out)
    if not shown:
        logger.info("nothing to show: no event waits in the slot", slot=settings.postgres.slot)


def _tell_waiting(blockers: Sequence[Blocker]) -> None:
    from cdc_outbox import log

    log.get(__name__).warning("waiting for open transactions", blockers=[str(each) for each in blockers])


async def _compare(
    settings: Settings,
    seconds: float,
    limit: int,
    deleted: bool,
    written: Callable[[dict[str, Any]], str],
    *,
    json: bool,
) -> int:
    """Show some events and the account; the exit code. The first signal brings the account, a second one the end."""
    import asyncio
    import signal

    from cdc_outbox.cli.account import lines
    from cdc_outbox.repair.compare import compare
    from cdc_outbox.table.mapping import Mapping

    shown = 0

    async def show(trial: Trial) -> None:
        nonlocal shown
        if shown < limit:
            shown += 1
            await asyncio.to_thread(click.echo, written(_document(trial)))

    stopped = asyncio.Event()
    looking = asyncio.create_task(_placement(settings))
    comparing = asyncio.create_task(
        compare(
            settings,
            Mapping(settings.outbox, settings.postgres.slot),
            seconds,
            deleted=deleted,
            placing=looking,
            waiting=_tell_waiting,
            shown=show,
            stopped=stopped,
        )
    )

    def stop() -> None:
        if stopped.is_set():
            comparing.cancel()
        stopped.set()

    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop)
    try:
        comparison = await comparing
    except asyncio.CancelledError:
        raise click.Abort from None
    finally:
        looking.cancel()
    document = comparison.document()
    click.echo(json_text(document) if json else "\n".join(lines(document)))
    return 0 if comparison.events and not comparison.different else 1


async def _placement(settings: Settings) -> Placement:
    """The cluster's topics; where it can't be reached, partitions are not known."""
    import logging

    from cdc_outbox import log
    from cdc_outbox.errors import CdcOutboxError
    from cdc_outbox.kafka.placement import Placement

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it has to say is in the line below
    placement = Placement(settings.kafka)
    try:
        await placement.look()
    except CdcOutboxError as error:
        log.get(__name__).info("partitions are not shown", reason=str(error))
    return placement


def _document(trial: Trial) -> dict[str, Any]:
    """One event under the keys of the contract; a poison one has no message, and says why under `poison`.

    One that would not be delivered as things are says so under `obstacle`.
    """
    row, poison, obstacle = trial.row, trial.poison, trial.obstacle
    topic, _, key, value, _, headers = trial.event or (None, None, None, None, 0, None)
    document: dict[str, Any] = {
        "schema_version": 1,
        "lsn": str(row.lsn),
        "seq": row.seq,
        "commit_time": iso_us(row.commit_us),
        "topic": topic,
        "partition": trial.partition,
        "key": None,
        **_coded("key", key),
        "headers": None if headers is None else [[name, _escaped(content)] for name, content in headers],
        **_coded("payload", value),
        "row": row.plan.raw(row.values),
    }
    if poison is not None:
        document["poison"] = {"reason": poison.reason, "error": str(poison), "next": next_step(poison.next)}
    if obstacle is not None:
        document["obstacle"] = asdict(obstacle)
    return document


def _coded(name: str, value: bytes | None) -> dict[str, str | None]:
    """Text where the bytes are UTF-8, else base64 under another name."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def _escaped(content: bytes) -> str:
    return content.decode("utf-8", "backslashreplace")


def _lines(document: dict[str, Any], shown: int | None) -> list[str]:
    """The same for a person: one event, a line for each part, of each value `shown` characters at most."""
    lines = [f"{document['lsn']} row {document['seq']}, committed {document['commit_time']}"]
    poison = document.get("poison")
    if poison is not None:
        parts = {f"poison ({poison['reason']})": poison["error"], "next": poison["next"]}
        parts |= {
            f"row {column}": "NULL" if text is None else text for column, text in document["row"].items()
        }
    else:
        partition = document["partition"]
        where = "" if partition is None else f", partition {partition}"
        parts = {"topic": document["topic"] + where}
        parts |= {part: _part(document, part) for part in ("key", "payload")}
        parts |= {f"header {name}": text for name, text in document["headers"]}
        obstacle = document.get("obstacle")
        if obstacle is not None:
            parts = {f"stuck ({obstacle['reason']})": obstacle["error"], "next": obstacle["next"]} | parts
    return [*lines, *(f"  {part:{_WIDTH}} {printable(_cut(text, shown))}" for part, text in parts.items())]


def _cut(text: str, shown: int | None) -> str:
    if shown is None or len(text) <= shown:
        return text
    return f"{text[:shown]}… ({len(text.encode())} bytes in all, --full shows them)"


def _part(document: dict[str, Any], part: str) -> str:
    coded = document.get(f"{part}_base64")
    if coded is not None:
        return f"(base64) {coded}"
    text = document[part]
    return "(none)" if text is None else str(text)
