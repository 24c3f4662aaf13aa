"""The next step that several errors share, worded once, and the flags that make its commands ours.

Who words a remedy knows the slot at most; which table and publication a person named is known where the remedy is
shown, so `complete` is called there.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from cdc_outbox.settings.declare import BY_KEY, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

# A command and the flags after it: `cdc-outbox init --slot s --create-table`, and no word of the sentence around it
# but the first after a flag without a value.
_VALUE: Final = r"""(?:'[^']*'|"[^"]*"|[^\s,;|'"])+"""
_COMMAND: Final = re.compile(
    r"cdc-outbox (init|start|backfill|replay|find|cleanup|audit|peek|doctor|drop)"
    rf"((?: --[a-z-]+(?:[ =](?!-){_VALUE})?)*)(?![\w-])"
)
_SAME_ROWS: Final = frozenset({"init", "backfill", "start", "doctor"})
_OF_ROWS: Final = frozenset(
    each.flag
    for each in SETTINGS
    if each.flag is not None and each.group == "outbox" and each.key not in ("outbox.table", "outbox.mark")
) | {"--config"}
_ELSEWHERE: Final = frozenset(
    {"--slot", "--publication", "--table", "--dsn", "--admin-dsn", "--kafka", "--log-level", "--log-format"}
)
"""Flags that `complete_for` adds, that may hold a secret, or that change nothing of what is done."""
_EXCLUDES: Final = {"--where": ("--all ",), "--all": ("--where ",)}
_SLOT: Final = re.compile(r" --slot[ =]([^\s,;|]+)")


def recover(slot: str | None = None) -> str:
    """How delivery begins anew when the slot can't be used any more; `slot` where its name is at hand."""
    named = f" --slot {slot}" if slot else ""
    return f"recover: cdc-outbox drop{named} && cdc-outbox init --no-backfill{named}"


def begin_with_the_table(slot: str) -> str:
    """How delivery begins anew where nothing came from the slot yet, so that the table has what it would skip."""
    return (
        f"begin anew, with the rows that wait in the table: cdc-outbox drop --slot {slot}; then, with the old relay"
        f" stopped: cdc-outbox init --slot {slot}; cdc-outbox backfill --slot {slot}"
    )


def accept_gap(slot: str | None = None) -> str:
    """How delivery goes on past rows that the server skipped; all that it didn't skip is still behind the slot."""
    named = f" --slot {slot}" if slot else ""
    return f"cdc-outbox start{named} --accept-gap"


def complete(text: str, settings: Settings) -> str:
    """`complete_for` what the settings name."""
    postgres = settings.postgres
    return complete_for(text, postgres.slot, postgres.publication, settings.outbox.tables)


def repeat(text: str, running: str, given: Sequence[tuple[str, str | None]]) -> str:
    """The text with each command that decides over the same rows having the flags that were `given` to the running one.

    Flags come with their values as they were typed, None for a switch. A flag that the command has already stays as it
    is there, and of two that exclude each other the command's own counts. Only `backfill` gets flags that are no
    settings, for it is told again to do the same.
    """

    def repeated(found: re.Match[str]) -> str:
        name, there = found.groups()
        if name not in _SAME_ROWS:
            return found[0]
        added = [
            flag if value is None else f"{flag} {shlex.quote(value)}"
            for flag, value in given
            if (flag in _OF_ROWS or (name == running == "backfill" and flag not in _ELSEWHERE))
            and not any(f" {known}" in f"{there} " for known in (f"{flag} ", *_EXCLUDES.get(flag, ())))
        ]
        return f"cdc-outbox {name}{there}{''.join(f' {words}' for words in added)}"

    return _COMMAND.sub(repeated, text)


def complete_for(text: str, slot: str, publication: str, tables: Sequence[TableName]) -> str:
    """The text with each command naming slot, publication and tables, as far as they differ from the defaults.

    A command that names another slot, or has such a flag already, stays as it is there.
    """
    flags = {
        "slot": [slot] if slot != BY_KEY["postgres.slot"].default else [],
        "publication": [publication] if publication != BY_KEY["postgres.publication"].default else [],
        "table": [str(table) for table in tables] if tuple(tables) != BY_KEY["outbox.table"].default else [],
    }

    def completed(found: re.Match[str]) -> str:
        name, given = found.groups()
        named = _SLOT.search(given)
        if named is not None and named[1] != slot:
            return found[0]
        added = [
            f" --{flag} {shlex.quote(value)}"
            for flag, values in flags.items()
            if f" --{flag}" not in given and (flag, name) != ("table", "drop")
            for value in values
        ]
        return f"cdc-outbox {name}{''.join(added)}{given}"

    return _COMMAND.sub(completed, text)
