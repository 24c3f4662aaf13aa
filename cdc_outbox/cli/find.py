"""`cdc-outbox find`: where is my event."""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options
from cdc_outbox.cli.id_from import id_from_option, ids_from
from cdc_outbox.instant import iso, iso_us, since_epoch
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from cdc_outbox.postgres.rows_by_id import Stored
    from cdc_outbox.repair.whereabouts import Event

_WIDTH = 10
_SHOWN = 60


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox find 0197c7c0-5a70-7cc0-8f0e-2b1a33a4f1d2",
        "cdc-outbox find 42 --table shop.events --json",
        "cdc-outbox find 42 --in-topic",
        "cdc-outbox find 42 --in-topic --id-from header:message-id",
    ),
)
@settings_options("postgres", "admin", "outbox", "kafka")
@click.argument("event_id", metavar="ID")
@click.option(
    "--in-topic", is_flag=True, help="Look for the message in the topic as well, and say its offset."
)
@id_from_option
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def command(*, event_id: str, in_topic: bool, id_from: tuple[str, ...], as_json: bool) -> None:
    """Say where an event is: its row, whether it was delivered, its topic and partition.

    Whether it was delivered is known from what the relay has proof of. Where that doesn't reach it yet, a relay at work
    gets five seconds to confirm it, and a slot that nobody reads from is searched without consuming anything. Reads
    the table, so it takes a role that may (--admin-dsn). Exits 1 where no event with this id is found.
    """
    settings = load_settings()
    sources = ids_from(id_from)

    import logging

    from cdc_outbox import log
    from cdc_outbox.repair.find import find
    from cdc_outbox.repair.whereabouts import Unknown

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # what it has to say is in a line of ours
    logger = log.get(__name__)
    found = run(find(settings, event_id, in_topic=in_topic, ids_from=sources, told=logger.warning))
    events = [replace(event, next=next_step(event.next)) for event in found]
    if as_json:
        document = {"schema_version": 1, "id": event_id, "events": [_document(event) for event in events]}
        click.echo(log.json_text(document))
    else:
        for event in events:
            click.echo("\n".join(map(printable, _lines(event_id, event))))
    if not events:
        raise Unknown.of(event_id, settings.outbox.tables)


def _document(event: Event) -> dict[str, Any]:
    row, here, poison, obstacle = event.row, event.in_slot, event.poison, event.obstacle
    topic, _, key, _, _, _ = event.message or (None, None, None, None, 0, None)
    return {
        "table": str(event.table),
        "relation": row.relation if row is not None else None,
        "row": event.texts,
        "created_at": _time(event.created_us),
        "committed_at": _committed(row),
        "delivery": event.delivery.value,
        "evidence": event.said,
        "next": event.next or None,
        "position": None
        if here is None
        else {
            "lsn": str(here.lsn),
            "seq": here.seq,
            "commit_time": _time(here.commit_us),
            "rows_before": here.before,
        },
        "left_out": event.left_out,
        "poison": None
        if poison is None
        else {"reason": poison.reason, "error": str(poison), "next": poison.next},
        "obstacle": None if obstacle is None else asdict(obstacle),
        "topic": topic,
        "partition": event.partition,
        "key": None if key is None else key.decode("utf-8", "backslashreplace"),
        "offset": event.offset,
        "searched": event.searched,
    }


def _lines(event_id: str, event: Event) -> list[str]:
    """The same for a person."""
    row, here = event.row, event.in_slot
    where = f"{event.table}" + (
        f", in {row.relation}" if row is not None and _apart(row.relation, event) else ""
    )
    lines = [f"{event_id}  {event.delivery.value}"]
    parts = {"row": where if row is not None else f"not in {event.table} any more"}
    parts["columns"] = ", ".join(f"{name}={_short(text)}" for name, text in event.texts.items())
    if event.created_us is not None:
        parts["created"] = f"{_time(event.created_us)}, {_age(event.created_us)} ago"
    if (committed := _committed(row)) is not None:
        parts["committed"] = committed
    if here is not None:
        parts["position"] = (
            f"{here.lsn} row {here.seq}, committed {_time(here.commit_us)}, {here.before} rows before it"
        )
    parts["delivery"] = f"{event.delivery.value}: {event.said}"
    if event.left_out is not None:
        parts["left out"] = f"by the rule {event.left_out}: it needs no delivery"
    if event.poison is not None:
        parts["poison"] = f"{event.poison}"
        if event.poison.next not in event.next:
            parts["way out"] = event.poison.next
    if event.obstacle is not None:
        parts["stuck"] = f"{event.obstacle.reason}: {event.obstacle.error}"
    if event.message is not None:
        topic, _, key, *_ = event.message
        partition = "" if event.partition is None else f", partition {event.partition}"
        offset = "" if event.offset is None else f", offset {event.offset}"
        parts["topic"] = f"{topic}{partition}{offset}"
        parts["key"] = "(none)" if key is None else key.decode("utf-8", "backslashreplace")
    if event.searched not in (None, "found"):
        parts["at Kafka"] = str(event.searched)
    if event.next:
        parts["next"] = event.next
    return [*lines, *(f"  {name:{_WIDTH}} {text}" for name, text in parts.items())]


def _apart(relation: str, event: Event) -> bool:
    """Whether the row is in a partition; regclass leaves out a schema that is in the search path."""
    return relation not in (str(event.table), str(event.table).removeprefix("public."))


def _short(text: str | None) -> str:
    if text is None:
        return "NULL"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _time(us: int | None) -> str | None:
    return None if us is None else iso_us(us)


def _committed(row: Stored | None) -> str | None:
    return None if row is None or row.committed_at is None else iso(row.committed_at, "microseconds")


def _age(us: int) -> str:
    from cdc_outbox.cli.progress import duration

    now = since_epoch(datetime.now(UTC))
    return duration(max(0.0, (now - us) / 1_000_000))
