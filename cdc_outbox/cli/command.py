"""What a command looks like: help that begins with examples, a module imported when needed, one way to fail.

A command `name` is a module `cdc_outbox.cli.name` with an attribute `command`:

    @click.command(cls=Command, examples=("cdc-outbox peek --limit 10",))
    @settings_options("postgres", "outbox")
    @click.option("--limit", type=click.IntRange(min=1), default=10)
    def command(limit: int) -> int | None:
        \"\"\"Show the next events as they would be sent.\"\"\"
        settings = load_settings()
        return run(show(settings, limit))

It imports psycopg, aiokafka and asyncio inside functions, writes data to stdout, raises errors of
`cdc_outbox.errors`, and returns its exit code, or None for 0.
"""

from __future__ import annotations

import sys
from collections.abc import Coroutine, Mapping, Sequence
from importlib import import_module
from typing import Any, TypeVar

import click

from cdc_outbox.cli import streams
from cdc_outbox.cli.failure import INTERRUPTED, Reporter
from cdc_outbox.errors import CdcOutboxError

Answer = TypeVar("Answer")

TYPED = "cdc_outbox.typed"
"""The key in a context's `meta` of what was typed after the command's name."""

_ELSEWHERE = {"status": "health", "check": "doctor", "run": "start"}
"""What other programs call a command, with our name for it."""


class _Examples:
    """Help that begins with examples."""

    examples: Sequence[str]

    def write_examples(self, formatter: click.HelpFormatter) -> None:
        formatter.write("Examples:\n")
        for example in self.examples:
            formatter.write(f"  {example}\n")
        formatter.write("\n")


class Command(_Examples, click.Command):
    """A command whose help begins with examples."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = tuple(args)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_examples(formatter)
        super().format_help(ctx, formatter)


class Group(_Examples, click.Group):
    """A group whose help begins with examples."""

    def __init__(self, *args: Any, examples: Sequence[str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(limit=200)) for name, command in self.commands.items()]
            )

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.write_examples(formatter)
        super().format_help(ctx, formatter)


class Program(Group):
    """The program: imports a command's module when called for, and turns every failure into its lines."""

    def __init__(self, *args: Any, summaries: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.summaries = summaries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.summaries:
            return None
        command = import_module(f"cdc_outbox.cli.{cmd_name.replace('-', '_')}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"cdc_outbox.cli.{cmd_name} has no command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first word names. Raises click.UsageError, with the nearest name, where none does."""
        if args[0] not in self.summaries:
            from difflib import get_close_matches

            elsewhere = _ELSEWHERE.get(args[0])
            if near := [elsewhere] if elsewhere else get_close_matches(args[0], self.summaries, 1):
                raise click.UsageError(f"no such command {args[0]!r}; did you mean {near[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; report here what click would take for a closed pipe or the end of input.

        Ctrl-C ends it wherever stderr leads: click fails where that can't be written.
        """
        try:
            return super().invoke(ctx)
        except (OSError, EOFError) as error:
            if isinstance(error, BrokenPipeError) and streams.is_unread():
                raise
            reporter = ctx.find_object(Reporter) or Reporter()
            return reporter.report(streams.told(error))
        except KeyboardInterrupt:
            streams.say("")  # what follows is not to stand behind the terminal's ^C
            raise click.Abort from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and end the process with its exit code."""
        import os

        from cdc_outbox.cli import ending

        streams.open_closed()
        words = list(sys.argv[1:] if args is None else args)
        reporter = Reporter.guess(words, os.environ, terminal=sys.stderr.isatty())
        try:
            answer = super().main(
                words or ["--help"],
                prog_name=prog_name or "cdc-outbox",
                complete_var=complete_var,
                standalone_mode=False,
                windows_expand_args=windows_expand_args,
                obj=reporter,
                **extra,
            )
        except (click.Abort, KeyboardInterrupt):
            code = INTERRUPTED
        except SystemExit:
            # Click ends so, with 1, where nobody reads stdout any more.
            if streams.is_unread():
                streams.end_unread()
            raise
        except Exception as error:
            code = reporter.report(streams.told(error))
        else:
            code = answer if isinstance(answer, int) else 0
        ending.said(code)
        streams.give_up()
        sys.exit(code)


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end; errors come out as they are."""
    import asyncio

    from cdc_outbox.oversleep import Loop

    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(work)


def ask(question: str) -> bool:
    """Ask a person, from within a running loop. Ctrl-C ends the program, as at any prompt: raises click.Abort."""
    import asyncio
    import signal

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        answer = click.confirm(question, err=True)
    except click.Abort:
        # The loop was told as well, and would stop in order what has just been broken off.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        raise
    signal.signal(signal.SIGINT, before)
    return answer


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end, or until SIGTERM or SIGINT, which is a clean end whatever it breaks off."""
    import asyncio
    import signal

    working = asyncio.create_task(work)
    stopped = asyncio.Event()

    def stop() -> None:
        stopped.set()
        working.cancel()

    loop = asyncio.get_running_loop()
    for which in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(which, stop)
    try:
        await working
    except (asyncio.CancelledError, CdcOutboxError):
        if not stopped.is_set():
            raise
