"""`cdc-outbox health`: is the slot well, is delivery, and what is the next step?"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, load_settings, run, settings_options, until_signal, with_flags
from cdc_outbox.errors import UsageError
from cdc_outbox.log import json_text, plain
from cdc_outbox.terminal import coloured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from cdc_outbox.watch.health import Health
    from cdc_outbox.watch.vigil import Vigil

    Redact: TypeAlias = Callable[[str], str]

FORMATS = ("text", "json", "nagios", "prometheus")
INTERVAL = 2.0


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox health --slot outbox_slot",
        "cdc-outbox health --slot outbox_slot --slot shop_slot",
        "cdc-outbox health --all --watch",
        "cdc-outbox health --json | jq -r .next",
        "cdc-outbox health --format nagios --warning retained=40% --critical time_to_loss=2h",
    ),
)
@settings_options("postgres", "http", "health", also=("--table",), without=("--slot",))
@click.option(
    "--slot", "slots", metavar="NAME", multiple=True, help="The replication slot; repeatable.  [outbox_slot]"
)
@click.option("--all", "every", is_flag=True, help="All pgoutput slots of this database.")
@click.option("--watch", is_flag=True, help="Go on, every two seconds: a table in place, or lines.")
@click.option(
    "--format", "format_", type=click.Choice(FORMATS), default="text", help="How to answer.  [text]"
)
@click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
@click.option(
    "--wal-volume-size",
    metavar="SIZE",
    help="Size of the volume that holds pg_wal, where max_slot_wal_keep_size sets no limit.",
)
@click.option("--accept", is_flag=True, help="Take what happened to the publication as seen.")
def command(
    *,
    slots: tuple[str, ...],
    every: bool,
    watch: bool,
    format_: str,
    as_json: bool,
    wal_volume_size: str | None,
    accept: bool,
) -> int:
    """Say in one line whether slot and delivery are well, with the evidence and one next step.

    Asks PostgreSQL only, twice within a second, and a relay that runs here for the age of its oldest commit. Exits 0
    when all is well, 1 with a warning, 2 when it is critical (also when the slot is missing or the server can't be
    reached), 3 when it can't be told.
    """
    settings = load_settings()
    format_ = "json" if as_json else format_
    _check(slots, every=every, watch=watch, format_=format_, accept=accept)
    names = () if every else tuple(dict.fromkeys(slots)) or (settings.postgres.slot,)
    volume = _volume(wal_volume_size)

    from cdc_outbox.watch.vigil import Vigil

    vigil = Vigil(settings, names, volume=volume, repeat=with_flags)
    if watch:
        run(_watch(vigil, format_, settings.redactor.redact, several=every))
        return 0
    healths = run(_once(vigil, accept=accept))
    click.echo(_shown(healths, format_, settings.redactor.redact, several=every or len(names) > 1))

    from cdc_outbox.watch.health import worst

    return worst([health.status for health in healths]).exit_code


def _check(slots: Sequence[str], *, every: bool, watch: bool, format_: str, accept: bool) -> None:
    import re

    for name in slots:
        if not re.fullmatch(r"[a-z0-9_]{1,63}", name, re.ASCII):
            raise UsageError(
                f"--slot is {name!r}: a slot's name has up to 63 lower-case letters, digits and _",
                next="write it like this: --slot outbox_slot",
            )
    for flag, given in (("--slot", bool(slots)), ("--accept", accept)):
        if every and given:
            raise UsageError(f"--all and {flag} contradict each other", next="leave one of them out")
    if watch and format_ in ("nagios", "prometheus"):
        raise UsageError(
            f"--watch has no form for {format_}", next="leave --watch out, and let the monitoring repeat it"
        )
    if watch and accept:
        raise UsageError("--watch and --accept contradict each other", next="leave one of them out")


def _volume(text: str | None) -> int | None:
    if text is None:
        return None
    from cdc_outbox.settings.kind.amount import Size
    from cdc_outbox.settings.place import flag_place

    kind = Size("100GiB", least="1", most="1000000TiB")
    size: int = flag_place("--wal-volume-size", kind).read(partial(kind.text, text), text).value
    return size


async def _once(vigil: Vigil, *, accept: bool) -> list[Health]:
    try:
        healths = await vigil.first()
        if accept and await vigil.accept(healths):
            healths = await vigil.again()
        return healths
    finally:
        await vigil.close()


async def _watch(vigil: Vigil, format_: str, redact: Redact, *, several: bool) -> None:
    """Show it again and again until a signal, which is a clean end."""
    from contextlib import suppress

    try:
        await until_signal(_repeat(vigil, format_, redact, several=several))
    finally:
        with suppress(Exception):
            await vigil.close()


async def _repeat(vigil: Vigil, format_: str, redact: Redact, *, several: bool) -> None:
    import asyncio
    import shutil
    from datetime import UTC, datetime

    from cdc_outbox.watch.render import table

    in_place = format_ == "text" and sys.stdout.isatty()
    drawn = 0
    healths = await vigil.first()
    try:
        if in_place:
            click.echo(table.HIDE_CURSOR, nl=False, color=True)
        while True:
            now = datetime.now(UTC)
            if in_place:
                size = shutil.get_terminal_size()
                lines = table.table(healths, now, width=size.columns, colour=coloured(sys.stdout))[
                    : size.lines - 1
                ]
                click.echo(redact(table.redraw(lines, drawn)), nl=False, color=True)
                drawn = len(lines)
            elif format_ == "json":
                click.echo(_shown(healths, format_, redact, several=several or len(healths) > 1))
            else:
                click.echo(redact("\n".join(table.line(health, now) for health in healths)))
            await asyncio.sleep(INTERVAL)
            healths = await vigil.again()
    finally:
        if in_place:
            click.echo(table.SHOW_CURSOR, nl=False, color=True)


def _shown(healths: Sequence[Health], format_: str, redact: Redact, *, several: bool) -> str:
    if format_ == "json":
        from cdc_outbox.watch import health

        return json_text(plain(health.several(healths) if several else healths[0].document(), redact))
    if format_ == "nagios":
        from cdc_outbox.watch.render.nagios import nagios

        return redact(nagios(healths))
    if format_ == "prometheus":
        from cdc_outbox.watch.render.prometheus import prometheus

        return redact(prometheus(healths))
    from cdc_outbox.watch.render.text import text

    return redact("\n".join(text(health, colour=coloured(sys.stdout)) for health in healths))
