"""The commands as click has them, each with the words that its help shows."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from cdc_outbox.cli import SUMMARIES, main
from cdc_outbox.settings.declare import SETTINGS, Setting

BY_FLAG = {flag: setting for setting in SETTINGS for flag in (setting.flag, setting.off) if flag}


@dataclass(frozen=True)
class Flag:
    """One option. `usage` is how it is typed; `setting` what it sets, None where it is the command's own."""

    usage: str
    help: str
    setting: Setting | None


@dataclass(frozen=True)
class Entry:
    """One command: the words that call it, its arguments, help in paragraphs, examples and flags."""

    words: str
    arguments: str
    paragraphs: tuple[str, ...]
    examples: tuple[str, ...]
    flags: tuple[Flag, ...]

    @property
    def own(self) -> list[Flag]:
        """The flags that no setting stands behind, but for the one of the file."""
        return [
            flag for flag in self.flags if flag.setting is None and not flag.usage.startswith("--config ")
        ]

    @property
    def of_settings(self) -> list[Flag]:
        return [flag for flag in self.flags if flag.setting is not None]


def entries() -> Iterator[Entry]:
    """Every command in the order of the program's help; those below a group follow it."""
    context = click.Context(main)
    for name in SUMMARIES:
        command = main.get_command(context, name)
        assert command is not None
        yield from _entries(command, f"cdc-outbox {name}")


def _entries(command: click.Command, words: str) -> Iterator[Entry]:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    yield Entry(
        words,
        " ".join(each.make_metavar(click.Context(command)) for each in arguments),
        tuple(_paragraphs(command.help or "")),
        tuple(getattr(command, "examples", ())),
        tuple(_flag(each) for each in command.params if isinstance(each, click.Option)),
    )
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _entries(below, f"{words} {name}")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in inspect.cleandoc(text).replace("\b\n", "").split("\n\n"):
        yield " ".join(paragraph.split())


def _flag(option: click.Option) -> Flag:
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(main))}"
    setting = next((BY_FLAG[name] for name in option.opts if name in BY_FLAG), None)
    off = setting is not None and option.opts[0] == setting.off
    # A command may have a flag of its own by the name of a setting's.
    own = (
        setting is not None
        and not off
        and option.help is not None
        and not option.help.startswith(setting.help)
    )
    return Flag(", ".join(option.opts) + value, option.help or "", None if own else setting)
