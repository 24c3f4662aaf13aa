"""`cdc-outbox peek`: the next events as they would be sent, and nothing is consumed by looking."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from cdc_outbox.cli import Command, load_settings, run, settings_options, until_signal
from cdc_outbox.log import json_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdc_outbox.errors import PoisonEvent
    from cdc_outbox.event import Encoded
    from cdc_outbox.kafka.placement import Obstacle, Placement
    from cdc_outbox.postgres.blocker import Blocker
    from cdc_outbox.postgres.peek import Row
    from cdc_outbox.settings import Settings

DEFAULT_LIMIT = 10
_WIDTH = 20
_SHOWN = 1000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox peek --slot outbox_slot",
        "cdc-outbox peek --limit 100 --json | jq .payload",
        "cdc-outbox peek --follow --table public.outbox",
    ),
)
@settings_options("postgres", "outbox", "kafka")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Events to show.  [{DEFAULT_LIMIT}; with --follow no limit]",
)
@click.option("--full", is_flag=True, help=f"Show whole values; else the text stops at {_SHOWN} characters.")
@click.option("--follow", is_flag=True, help="Show new events as they commit, by a temporary slot.")
@click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", help="text or json."
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json: one line per event.")
def command(limit: int | None, full: bool, follow: bool, format_: str, as_json: bool) -> None:
    """Show the next events as they would be sent, without consuming them.

    Reads from the slot and confirms nothing, so the relay sends the same events afterwards. Exits 1 while a relay
    streams from the slot; --follow works beside it. Where Kafka can be reached, partitions are shown, and what would
    be in the way: a topic that is missing, an event that is too large for it.
    """
    settings = load_settings()
    shown = None if full else _SHOWN

    def written(document: dict[str, Any]) -> str:
        if as_json or format_ == "json":
            return json_text(document)
        return "\n".join(_lines(document, shown))

    most = limit or (None if follow else DEFAULT_LIMIT)
    run(until_signal(_show(settings, most, follow, written)))


async def _show(
    settings: Settings, limit: int | None, follow: bool, written: Callable[[dict[str, Any]], str]
) -> None:
    import asyncio

    from cdc_outbox import log
    from cdc_outbox.errors import PoisonEvent
    from cdc_outbox.postgres import peek
    from cdc_outbox.table.mapping import Mapping

    logger = log.get(__name__)

    def waiting(blockers: Sequence[Blocker]) -> None:
        logger.warning("waiting for open transactions", blockers=[str(each) for each in blockers])

    mapping = Mapping(settings.outbox, settings.postgres.slot)
    source = peek.arriving(settings, mapping, waiting=waiting) if follow else peek.upcoming(settings, mapping)
    shown = 0
    left_out: dict[str, int] = {}
    looking = asyncio.create_task(_placement(settings))
    try:
        async with source as rows:
            placement = await looking
            if follow:
                logger.info("following", tables=[str(table) for table in settings.outbox.tables])
            async for row in rows:
                try:
                    event = row.plan.encode(row.values, row.lsn, row.seq, row.commit_us)
                except PoisonEvent as poison:
                    document = _document(row, poison=poison)
                else:
                    if isinstance(event, str):
                        left_out[event] = left_out.get(event, 0) + 1
                        continue
                    partition = await placement.of(event, row.lsn, row.seq)
                    document = _document(row, event, partition, obstacle=await placement.obstacle(event))
                # A reader that pauses, such as a pager, must not stop the status updates.
                await asyncio.to_thread(click.echo, written(document))
                shown += 1
                if shown == limit:
                    break
    finally:
        looking.cancel()
        if left_out:
            logger.info("left out", **left_out)
    if not shown:
        logger.info("nothing to show: no event waits in the slot", slot=settings.postgres.slot)


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


def _document(
    row: Row,
    event: Encoded | None = None,
    partition: int | None = None,
    *,
    poison: PoisonEvent | None = None,
    obstacle: Obstacle | None = None,
) -> dict[str, Any]:
    """One event under the keys of the contract; a poison one has no message, and says why under `poison`.

    One that would not be delivered as things are says so under `obstacle`.
    """
    topic, _, key, value, _, headers = event or (None, None, None, None, 0, None)
    document: dict[str, Any] = {
        "schema_version": 1,
        "lsn": str(row.lsn),
        "seq": row.seq,
        "commit_time": _time(row.commit_us),
        "topic": topic,
        "partition": partition,
        "key": None,
        **_coded("key", key),
        "headers": None if headers is None else [[name, _escaped(content)] for name, content in headers],
        **_coded("payload", value),
        "row": row.plan.raw(row.values),
    }
    if poison is not None:
        document["poison"] = {"reason": poison.reason, "error": str(poison), "next": poison.next}
    if obstacle is not None:
        document["obstacle"] = asdict(obstacle)
    return document


def _time(us: int) -> str:
    moment = _EPOCH + timedelta(microseconds=us)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


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
    return [*lines, *(f"  {part:{_WIDTH}} {_printable(_cut(text, shown))}" for part, text in parts.items())]


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


def _printable(text: str) -> str:
    """What a terminal shows as it is: a row must not be able to move the cursor or ring the bell."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )
