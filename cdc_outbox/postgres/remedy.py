"""The next step that several errors share, worded once, and the flags that make its commands ours.

Who words a remedy knows the slot at most; which table and publication a person named, and how the running command was
called, is known where the remedy is shown, so `complete` and `repeat` are called there.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final

from cdc_outbox.settings.declare import BY_KEY, SETTINGS
from cdc_outbox.settings.entries import Entries

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cdc_outbox.event import TableName
    from cdc_outbox.settings import Settings

# A command and the flags after it: `cdc-outbox init --slot s --create-table`, and no word of the sentence around it
# but the first after a flag without a value.
_VALUE: Final = r"""(?:'[^']*'|"[^"]*"|[^\s,;|&'"])+"""
_FLAGS: Final = rf"(?: --[a-z-]+(?:[ =](?!-){_VALUE})?)"
_COMMAND: Final = re.compile(
    rf"cdc-outbox (init|start|backfill|replay|find|cleanup|audit|peek|doctor|drop|health)({_FLAGS}*)(?![\w-])"
)
_SAME: Final = "the same command with"
_AGAIN: Final = re.compile(rf"{_SAME}({_FLAGS}+)")
_ITSELF: Final = frozenset({"backfill", "audit"})
"""Commands that are told again to do the same: then flags that are no settings count as well."""
_ELSEWHERE: Final = frozenset({"--slot", "--publication", "--table"})
"""Flags that `complete_for` adds."""
_BY_FLAG: Final = {flag: each for each in SETTINGS for flag in (each.flag, each.off) if flag is not None}
_ASIDE: Final = frozenset(flag for flag, each in _BY_FLAG.items() if each.group in ("http", "log"))
"""Flags that change nothing of what is done."""
_EXCLUDES: Final = {"--where": ("--all ",), "--all": ("--where ",)}
_SLOT: Final = re.compile(r" --slot[ =]([^\s,;|&]+)")
_OWNED: Final = frozenset({"init", "backfill", "replay", "find", "cleanup", "audit", "drop"})
"""Commands that need what only an owner has, as a rule."""
_BY_OWNER: Final = 'export CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && '
"""Before a command: in a flag everybody on the machine could read it. What that command prints has it at hand."""
_WHO: Final = ", with the owner's connection in OWNER_DSN"


def recover(slot: str | None = None) -> str:
    """How delivery begins anew when the slot can't be used any more; `slot` where its name is at hand.

    The audit at its end tells which rows were lost with the slot, and prints the replay that sends them again.
    """
    named = f" --slot {slot}" if slot else ""
    return (
        f"recover{_WHO}, and before a relay is started again do what the audit at the end says, a replay of what was "
        f"lost: {_BY_OWNER}cdc-outbox drop --yes{named} && cdc-outbox init --no-backfill{named} && "
        f"cdc-outbox audit{named}"
    )


def by_owner(step: str) -> str:
    """The step for a role that isn't the tables' owner: each command that needs one takes the owner's connection."""

    def owned(found: re.Match[str]) -> str:
        needed = found[1] in _OWNED and not _is_by_owner(found)
        return _BY_OWNER + found[0] if needed else found[0]

    by = _COMMAND.sub(owned, step)
    return step if by == step else f"{by}{_WHO}"


def by_superuser(init: Sequence[str], then: str = "") -> str:
    """What a superuser runs of an `init` that prints its SQL, given in words; `then`: what is done afterwards."""
    return (
        f"let a superuser make it, with that one's connection in SUPERUSER_DSN{then}: "
        f'{shlex.join(init)} | psql "$SUPERUSER_DSN"'
    )


def by_relay(role: str, slot: str) -> str:
    """`init` with the relay's role for the slot and the owner for the rest, each by its own connection."""
    return (
        f"with the connection of {role} in RELAY_DSN and the owner's in OWNER_DSN: "
        'export CDC_OUTBOX_DSN="$RELAY_DSN" CDC_OUTBOX_ADMIN_DSN="$OWNER_DSN" && '
        f"cdc-outbox init --slot {slot}"
    )


def again(*flags: tuple[str, str]) -> str:
    """The running command once more with these flags, in place of what they said; `repeat` makes a command of it."""
    return f"{_SAME} {' '.join(_typed(flag, value) for flag, value in flags)}"


def begin_with_the_table(slot: str) -> str:
    """How delivery begins anew where nothing came from the slot yet, so that the table has what it would skip."""
    return by_owner(
        f"begin anew, with the rows that wait in the table: cdc-outbox drop --yes --slot {slot}; then, with the old"
        f" relay stopped: cdc-outbox init --slot {slot}; cdc-outbox backfill --slot {slot}"
    )


def accept_gap(slot: str | None = None) -> str:
    """How delivery goes on past rows that the server skipped; all that it didn't skip is still behind the slot."""
    named = f" --slot {slot}" if slot else ""
    return f"cdc-outbox start{named} --accept-gap"


def complete(text: str, settings: Settings) -> str:
    """`complete_for` what the settings name; an owner's connection that file or environment have needs no word."""
    postgres = settings.postgres
    return complete_for(at_hand(text, settings), postgres.slot, postgres.publication, settings.outbox.tables)


def at_hand(text: str, settings: Settings) -> str:
    """The text without words on an owner's connection that file or environment have."""
    if settings.origins["postgres.admin_dsn"].startswith(("file ", "environment ")):
        return text.replace(_BY_OWNER, "").replace(_WHO, "")
    return text


def repeat(
    text: str, running: str, given: Sequence[tuple[str, str | None]], takes: Callable[[str], Collection[str]]
) -> str:
    """The text with each command having the flags that were `given` to the `running` one, as far as it `takes` them.

    Flags come with their values as they were typed, None for a switch; those that hold a secret are left out, but for
    an owner's connection, which is named. A flag that the command has already stays as it is there, and of two that
    exclude each other the command's own counts.
    """
    given = [each for each in given if each[0] not in _ASIDE and not _is_secret(*each)]
    flags = {flag for flag, _ in given}

    def repeated(found: re.Match[str]) -> str:
        name, there = found.groups()
        known = takes(name)
        whole = name == running and name in _ITSELF
        by = (
            _BY_OWNER if "--admin-dsn" in known and "--admin-dsn" in flags and not _is_by_owner(found) else ""
        )
        added = [
            _typed(flag, value)
            for flag, value in given
            if flag in known
            and flag not in (*_ELSEWHERE, "--admin-dsn")
            and (whole or flag in _BY_FLAG or flag == "--config")
            and not any(f" {other}" in f"{there} " for other in (f"{flag} ", *_EXCLUDES.get(flag, ())))
        ]
        return f"{by}cdc-outbox {name}{there}{''.join(f' {words}' for words in added)}"

    return _COMMAND.sub(repeated, text)


def once_more(text: str, running: str, given: Sequence[tuple[str, str | None]]) -> str:
    """The text with each `again` written out as the running command."""

    def written(found: re.Match[str]) -> str:
        changed = found[1]
        kept = [
            _typed(flag, value)
            for flag, value in given
            if flag not in (*_ASIDE, "--admin-dsn")
            and not _is_secret(flag, value)
            and f" {flag} " not in changed
        ]
        by = _BY_OWNER if any(flag == "--admin-dsn" for flag, _ in given) else ""
        return f"{by}cdc-outbox {running}{''.join(f' {words}' for words in kept)}{changed}"

    return _AGAIN.sub(written, text)


def _is_by_owner(found: re.Match[str]) -> bool:
    """Whether the command comes after the owner's connection, in one line to be pasted."""
    return _BY_OWNER in re.split(r"[;,]", found.string[: found.start()])[-1]


def _typed(flag: str, value: str | None) -> str:
    """A flag as it is typed. A comma would end the command in the sentence around it."""
    if value is None:
        return flag
    quoted = shlex.quote(value)
    return f"{flag} '{value}'" if quoted == value and "," in value else f"{flag} {quoted}"


def _is_secret(flag: str, value: str | None) -> bool:
    setting = _BY_FLAG.get(flag)
    if setting is None or flag == "--admin-dsn":
        return False
    kind = setting.kind
    if not isinstance(kind, Entries):
        return setting.secret
    try:
        return kind.normal((value or "").partition("=")[0].strip()) in kind.secret
    except ValueError:
        return True


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
            f" {_typed(f'--{flag}', value)}"
            for flag, values in flags.items()
            if f" --{flag}" not in given and (flag, name) != ("table", "drop")
            for value in values
        ]
        return f"cdc-outbox {name}{''.join(added)}{given}"

    return _COMMAND.sub(completed, text)
