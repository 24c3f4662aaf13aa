"""`cdc-outbox audit`: is the event of each row in its topic, once, in order, and nothing else?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cdc_outbox.cli import Command, load_settings, next_step, run, settings_options
from cdc_outbox.cli.id_from import id_from_option, ids_from
from cdc_outbox.cli.moment import moment, window_options
from cdc_outbox.cli.output import json_options
from cdc_outbox.log import json_text, plain
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_outbox.repair.audit import Wish
    from cdc_outbox.repair.report import Report
    from cdc_outbox.settings import Settings

DEFAULT_LIMIT = 20

_VERDICTS = {
    "clean": "clean",
    "unclean": "not clean: {faults}",
    "empty": "nothing was compared: {lacking}",
}


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox audit",
        "cdc-outbox audit --since 2h --twice-ok",
        "cdc-outbox audit --settled --json | jq .missing",
        "cdc-outbox audit --id-from payload:/event_id --table public.outbox",
    ),
)
@settings_options("postgres", "admin", "outbox", "kafka")
@window_options
@click.option(
    "--topic-name",
    "topics",
    metavar="NAME",
    multiple=True,
    help="Read this topic; repeatable.  [those of the rows]",
)
@id_from_option
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Also ask for rows that a rule leaves out, or that another relay marked as sent.",
)
@click.option("--settled", is_flag=True, help="Nothing is under way: what isn't found is missing.")
@click.option("--twice-ok", is_flag=True, help="Copies are no fault, as after a crash of the relay.")
@click.option(
    "--foreign-ok", is_flag=True, help="Messages without a row are no fault: rows are removed at times."
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Where the books are kept for the time, some 170 bytes an event.  [the system's temporary directory]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=DEFAULT_LIMIT,
    metavar="N",
    help=f"Findings of each kind that are shown.  [{DEFAULT_LIMIT}]",
)
@json_options()
def command(
    *,
    since: str | None,
    until: str | None,
    topics: tuple[str, ...],
    id_from: tuple[str, ...],
    every: bool,
    settled: bool,
    twice_ok: bool,
    foreign_ok: bool,
    spool: Path | None,
    limit: int,
    as_json: bool,
) -> int:
    """Compare the table with the topics: which events are missing, twice, out of order or foreign?

    Reads both and changes nothing; the relay may go on meanwhile, and what it has yet to deliver is told as under way.
    Exits 0 only when nothing is wrong, 1 when something is. Where there is no row to compare, it says so.
    """
    settings = load_settings()
    sources = ids_from(id_from)

    from cdc_outbox.postgres.chosen import Chosen
    from cdc_outbox.repair.audit import Wish

    wish = Wish(
        window=Chosen(since=moment("--since", since), until=moment("--until", until)),
        topics=topics,
        ids_from=sources,
        every=every,
        settled=settled,
        foreign_ok=foreign_ok,
        twice_ok=twice_ok,
        directory=spool,
        limit=limit,
    )
    report = run(_audit(settings, wish))
    redact = settings.redactor.redact
    document = report.document()
    if report.next is not None:
        document["next"] = next_step(report.next)
    if as_json:
        click.echo(json_text(plain(document, redact)))
    else:
        click.echo(redact("\n".join(map(printable, _lines(document, limit)))))
    return 0 if report.well else 1


async def _audit(settings: Settings, wish: Wish) -> Report:
    from cdc_outbox.cli.progress import Phases
    from cdc_outbox.repair.audit import audit

    with Phases() as phases:
        return await audit(settings, wish, phases.moved)


def _lines(document: dict[str, Any], limit: int) -> Iterator[str]:
    """The report for a person."""
    rows, messages = document["rows"], document["messages"]
    window = "".join(f", {word} {document[word]}" for word in ("since", "until") if document[word])
    there = [each["name"] for each in document["topics"]]
    named = ", ".join(there[:3]) + (f" and {len(there) - 3} more" if len(there) > 3 else "")
    oldest = f", the oldest since {rows['oldest_under_way']}" if rows["oldest_under_way"] else ""
    yield f"{', '.join(document['tables'])}{window}, against {named or 'no topic'}"
    details = [
        (rows["under_way"], f"under way{oldest}"),
        (rows["left_out"], "left out by a rule"),
        (rows["marked_sent"], "marked as sent and not found (--all asks for them too)"),
        (rows["without_id"], "without an id"),
        (rows["same_id"], "with the id of another row"),
    ]
    yield _row("rows", f"{rows['read']:,} read, {rows['delivered']:,} delivered", details)
    details = [
        (messages["repeats"], "sent again from the table"),
        (messages["elsewhere"], "of rows outside of the window, or newer than the snapshot"),
        (messages["without_row"], "without a row"),
        (messages["order_not_judged"], "don't say when they were committed (--provenance-headers does)"),
        (document["undecided"]["count"], "so close to another commit that their order is undecided"),
    ]
    yield _row("messages", f"{messages['read']:,} read", details)
    for kind in ("missing", "twice", "out_of_order", "foreign", "moved_keys", "unknown"):
        found = document[kind]
        accepted = (
            " (accepted)" if kind == "twice" and found["count"] and kind not in document["faults"] else ""
        )
        yield _row(kind.replace("_", " "), f"{found['count']:,}{accepted}", [])
        for event in found["events"]:
            yield f"  {_event(kind, event)}"
        if found["count"] > limit:
            yield f"  … and {found['count'] - limit:,} more (--limit shows them)"
    for note in document["notes"]:
        yield f"note: {note}"
    faults = ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in document["faults"].items())
    yield _VERDICTS[document["status"]].format(faults=faults, lacking=_lacking(rows))
    if document["next"] is not None:
        yield f"next: {document['next']}"


def _lacking(rows: dict[str, Any]) -> str:
    """Why an audit has compared nothing."""
    if rows["marked_sent"]:
        return "rows are marked as sent, and no message of any of them was found"
    return "a rule leaves all rows out" if rows["left_out"] else "there is no row"


def _row(name: str, text: str, details: list[tuple[int, str]]) -> str:
    more = "".join(f", {count:,} {words}" for count, words in details if count)
    return f"{name:13}{text}{more}"


def _event(kind: str, event: dict[str, Any]) -> str:
    """One finding in a line."""
    id_ = event.get("id") or "(no id)"
    if kind in ("missing", "unknown"):
        created = f", written {event['created_at']}" if event["created_at"] else ""
        why = {
            "poison": ", can't be published as it is",
            "trimmed": ", from before the topic's first record",
            "same id": ", with the id of another row: fewer messages than rows bear it",
            "other key": ", and what bears its id has another key: it may be that of a row that is gone",
        }
        return f"{id_}  {event['topic'] or 'no topic'}{created}{why.get(event.get('why', ''), '')}"
    if kind == "twice":
        return f"{id_}  {event['copies']} times, first at {_spot(event['first'])}, last at {_spot(event['last'])}"
    if kind == "moved_keys":
        other = event["also"]
        return f"{_spot(event)} has the key of {event['topic']}/{other['partition']} offset {other['offset']}"
    after = f", after offset {event['after']}, which committed later" if "after" in event else ""
    return f"{id_}  {_spot(event)}{after}"


def _spot(place: dict[str, Any]) -> str:
    return f"{place['topic']}/{place['partition']} offset {place['offset']}"
