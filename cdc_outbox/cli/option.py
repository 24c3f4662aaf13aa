"""The options that stand for settings, made from the declarations, and the way from them to `Settings`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from cdc_outbox import log
from cdc_outbox.cli.command import TYPED
from cdc_outbox.cli.failure import Reporter
from cdc_outbox.postgres.remedy import complete, once_more, repeat
from cdc_outbox.settings import SETTINGS, Setting, Settings, load, parameter
from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.kind.word import Choice

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_FLAGS = "cdc_outbox.flags"
_NEXT = "cdc_outbox.next"
_FLAGGED = "cdc_outbox.flagged"
_ALWAYS = "log"


def settings_options(
    *groups: str, also: Collection[str] = (), without: Collection[str] = ()
) -> Callable[[Decorated], Decorated]:
    """Add the flags of these groups of settings to a command, and `--config` and the log's to every one.

    A group is a section of the file (`postgres`, `outbox`, `kafka`, `delivery`, `limits`, `http`, `health`),
    or `admin` for `--admin-dsn`. `also` are single flags of other groups, `without` flags that the command has
    in a way of its own. The values aren't passed to the command: it calls `load_settings`.
    """
    wanted = [
        setting
        for setting in SETTINGS
        if setting.flag
        and (setting.group in (*groups, _ALWAYS) or setting.flag in also)
        and setting.flag not in without
    ]

    def decorate(function: Decorated) -> Decorated:
        for setting in reversed(wanted):
            function = _options(setting)(function)
        return _option("--config", "FILE", "The config file. Default: cdc-outbox.toml, if there is one.")(
            function
        )

    return decorate


def load_settings(command: str | None = None) -> Settings:
    """The settings of the running command: its flags, the environment, the file; sets up the log with them.

    `command` is the name whose defaults count; by default the running command's own.
    """
    context = click.get_current_context()
    running = _top_command(context)
    settings = load(command or running, context.meta.get(_FLAGS, {}), os.environ, Path.cwd())
    for_start = running == "start"
    format_ = settings.log.format or (log.stderr_format() if for_start else "text")
    given = _typed(context)

    def flagged(text: str) -> str:
        return repeat(once_more(text, running, given), running, given, _takes)

    def completed(text: str) -> str:
        return repeat(complete(once_more(text, running, given), settings), running, given, _takes)

    context.meta[_NEXT], context.meta[_FLAGGED] = completed, flagged
    log.set_up(settings.log.level, format_, settings.redactor.redact, completed)
    reporter = context.find_object(Reporter)
    if reporter is not None:
        reporter.json = for_start and format_ == "json"
        reporter.debug = settings.log.level == "debug"
        reporter.redact = settings.redactor.redact
        reporter.complete = completed
    own = log.get(__name__)
    for notice in settings.notices:
        own.warning(notice.text, **notice.fields)
    return settings


def next_step(text: str) -> str:
    """A next step as the running command shows it: its commands have the settings and flags that they need.

    To be called after `load_settings`.
    """
    completed: Callable[[str], str] = click.get_current_context().meta[_NEXT]
    return completed(text)


def with_flags(text: str) -> str:
    """A next step whose commands have the flags that were given, and of the settings none: for one that names them.

    To be called after `load_settings`.
    """
    flagged: Callable[[str], str] = click.get_current_context().meta[_FLAGGED]
    return flagged(text)


def _takes(name: str) -> frozenset[str]:
    """The flags of a command."""
    command = import_module(f"cdc_outbox.cli.{name}").command
    return frozenset(flag for each in command.params for flag in (*each.opts, *each.secondary_opts))


def _typed(context: click.Context) -> list[tuple[str, str | None]]:
    """The long flags as they were typed, each with its value, None for a switch."""
    switches = {
        name
        for each in context.command.params
        if isinstance(each, click.Option) and each.is_flag
        for name in each.opts
    }
    given: list[tuple[str, str | None]] = []
    words = iter(context.meta.get(TYPED, ()))
    for word in words:
        flag, equals, value = word.partition("=")
        if not flag.startswith("--"):
            continue
        text = None if flag in switches else value if equals else next(words, "")
        # A step of `init` shares the flag of filters, and belongs to `init` alone.
        if flag != "--only" or "=" in (text or ""):
            given.append((flag, text))
    return given


def _top_command(context: click.Context) -> str:
    """The word after the program's name: `config` for `config show`."""
    while context.parent is not None and context.parent.parent is not None:
        context = context.parent
    return context.info_name or ""


def _keep(context: click.Context, option: click.Parameter, value: object) -> None:
    if option.name is not None:
        context.meta.setdefault(_FLAGS, {})[option.name] = value


def _option(flag: str, metavar: str, text: str, **more: Any) -> Callable[[Decorated], Decorated]:
    return click.option(
        flag,
        parameter(flag),
        metavar=metavar or None,
        help=text,
        default=None,
        expose_value=False,
        callback=_keep,
        **more,
    )


def _options(setting: Setting) -> Callable[[Decorated], Decorated]:
    def decorate(function: Decorated) -> Decorated:
        assert setting.flag is not None  # noqa: S101 - the caller chose settings that have a flag
        if setting.off is not None:
            function = _option(
                setting.off, "", f"No {setting.flag.lstrip('-').upper()} at all.", is_flag=True
            )(function)
        if setting.switch:
            return _option(setting.flag, "", setting.help, is_flag=True)(function)
        metavar = setting.kind.metavar
        more: dict[str, Any] = {"multiple": True} if setting.repeated else {}
        if isinstance(setting.kind, Choice):
            more["shell_complete"] = _completing(setting.kind)
        return _option(setting.flag, metavar, _help(setting), **more)(function)

    return decorate


def _completing(kind: Choice) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """What a shell offers for a value of this kind."""
    return lambda _context, _option, begun: [word for word in kind.values if word.startswith(begun)]


def _help(setting: Setting) -> str:
    if isinstance(setting.kind, Entries) or setting.default is None or setting.secret:
        return setting.help
    return f"{setting.help}  [{setting.kind.show(setting.default)}]"
