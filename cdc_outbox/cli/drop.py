"""`cdc-outbox drop`: remove slot, publication and witness row, after a person has agreed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from cdc_outbox.cli import Command, ask, load_settings, run, settings_options
from cdc_outbox.cli.streams import say
from cdc_outbox.errors import UsageError

if TYPE_CHECKING:
    from cdc_outbox.postgres.teardown import Removable
    from cdc_outbox.settings import PostgresSettings


@click.command(
    cls=Command,
    examples=(
        "cdc-outbox drop --slot outbox_slot",
        "cdc-outbox drop --yes --slot outbox_slot --dsn postgresql://owner@localhost/app",
    ),
)
@settings_options("postgres", "admin")
@click.option("--yes", is_flag=True, help="Don't ask.")
def command(*, yes: bool) -> int:
    """Remove slot, publication and witness row. The outbox table and its rows stay.

    The publication is the one that the slot was made with, unless another is named.

    What was committed after the last confirmation can't be read from the slot any more then. Refuses while a
    relay streams from the slot.
    """
    settings = load_settings()
    if not yes and not sys.stdin.isatty():
        raise UsageError(
            "drop asks before it removes anything, and there is no terminal to ask on",
            next=f"cdc-outbox drop --yes --slot {settings.postgres.slot}",
        )

    from cdc_outbox.postgres import teardown

    agreed = yes

    def confirm(removable: Removable) -> bool:
        nonlocal agreed
        agreed = agreed or ask(_question(settings.postgres, removable))
        return agreed

    removable = run(teardown.drop(settings, confirm=confirm, told=click.echo))
    if removable.nothing:
        publication = f'publication "{removable.name}"'
        users = ", ".join(removable.users)
        click.echo(
            f'nothing to remove: there is no slot "{settings.postgres.slot}", and '
            + (f"slot {users} uses {publication}" if users else f"no {publication}")
        )
        return 0
    if not agreed:
        say("nothing was removed")
        return 1
    return 0


def _question(settings: PostgresSettings, removable: Removable) -> str:
    parts = []
    if removable.slot is not None:
        behind = "" if removable.unconfirmed is None else f", with {removable.unconfirmed} bytes unconfirmed"
        parts.append(f'the slot "{settings.slot}"{behind}')
    if removable.pending is not None:
        parts.append(f'the slot "{removable.pending.name}"')
    if removable.witness:
        parts.append("its witness row")
    if removable.publication and not removable.users:
        parts.append(f'the publication "{removable.name}"')
    return f"Remove {', '.join(parts)}?"
