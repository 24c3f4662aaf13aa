"""How a command ends when something is wrong: two lines for a person, or one JSON line, and an exit code.

`error:` says what is wrong, `next:` what to do. `start` with JSON logs writes one JSON line instead. A
traceback is for `--log-level debug` only. Whatever is written has passed the redactor. Who reads `health` by machine
finds an answer on stdout all the same: that it is unknown, and why.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

import click

from cdc_outbox.errors import CdcOutboxError, PoisonEvent
from cdc_outbox.instant import iso
from cdc_outbox.settings.secret import Redactor
from cdc_outbox.terminal import one_line

INTERRUPTED = 130
"""Ended by Ctrl-C, as shells count it."""

_UNKNOWN = 3
"""What `health` answers to wrong usage or configuration, or a fault of its own, as the monitoring plug-ins do."""

_WAYS_OUT = "; each way out, and what it costs: docs/how-to/get-past-a-poison-row.md"


@dataclass(slots=True)
class Reporter:
    """How to speak of a failure, as far as it is known by then: flags first, then the settings."""

    command: str = ""
    json: bool = False
    debug: bool = False
    redact: Callable[[str], str] = field(default=Redactor().redact)
    complete: Callable[[str], str] = field(default=str)
    health_format: str = ""
    """`json`, `nagios` or `prometheus`, where a health in that form was asked for."""
    slot: str = ""

    @classmethod
    def guess(cls, args: Sequence[str], environ: Mapping[str, str], *, terminal: bool) -> Reporter:
        """From the bare arguments and environment, for what fails before the settings are read."""
        command = next((word for word in args if not word.startswith("-")), "")
        format_ = _option(args, "--log-format") or environ.get("CDC_OUTBOX_LOG_FORMAT", "")
        level = _option(args, "--log-level") or environ.get("CDC_OUTBOX_LOG_LEVEL", "")
        json = format_.lower() == "json" or (format_.lower() != "text" and not terminal)
        reporter = cls(command, json=command == "start" and json, debug=level.lower() == "debug")
        if command == "health":
            reporter.health_format = "json" if "--json" in args else _option(args, "--format") or ""
            reporter.slot = _option(args, "--slot") or environ.get("CDC_OUTBOX_SLOT", "")
        return reporter

    def report(self, error: BaseException) -> int:
        """Write what is wrong and what to do; answer the exit code."""
        error = gravest(error)
        if isinstance(error, CdcOutboxError):
            message, remedy, code = str(error), error.next, error.exit_code
            if isinstance(error, PoisonEvent) and self.command == "start":
                remedy += _WAYS_OUT
        elif isinstance(error, click.ClickException):
            message, remedy, code = _usage(error, self.command)
        else:
            message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            message = f"unexpected {message}"
            remedy, code = "run it again with --log-level debug, and report what it prints", 1
        if self.command == "health":
            code = _UNKNOWN
        with suppress(OSError):  # nobody hears it: the exit code tells
            self._write(message, remedy, error)
        if self.health_format in ("json", "nagios", "prometheus"):
            with suppress(OSError):
                click.echo(self._unknown(message, remedy))
        return code

    def _unknown(self, message: str, remedy: str) -> str:
        from cdc_outbox.log import json_text, plain
        from cdc_outbox.watch.checks import unasked
        from cdc_outbox.watch.render.nagios import nagios
        from cdc_outbox.watch.render.prometheus import prometheus

        health = unasked(self.slot, message, self.complete(remedy))
        if self.health_format == "nagios":
            return self.redact(nagios([health]))
        if self.health_format == "prometheus":
            return self.redact(prometheus([health]))
        return json_text(plain(health.document(), self.redact))

    def _write(self, message: str, remedy: str, error: BaseException) -> None:
        remedy = self.complete(remedy)
        message, remedy = (one_line(self.redact(text)) for text in (message, remedy))
        trace = "".join(traceback.format_exception(error)) if self.debug else ""
        if not self.json:
            print(self.redact(trace), end="", file=sys.stderr)
            print(f"error: {message}\nnext: {remedy}", file=sys.stderr)
            return
        from cdc_outbox.log import json_text

        document = {
            "ts": iso(datetime.now(UTC)),
            "level": "error",
            "event": "stopped",
            "error": message,
            "next": remedy,
        }
        if trace:
            document["exception"] = self.redact(trace)
        print(json_text(document), file=sys.stderr)


def gravest(error: BaseException) -> BaseException:
    """The one error to speak of: of a group, that with the highest exit code of ours, else the first."""
    leaves = list(_leaves(error))
    ours = [leaf for leaf in leaves if isinstance(leaf, CdcOutboxError)]
    if ours:
        return max(ours, key=lambda leaf: leaf.exit_code)
    return leaves[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def _usage(error: click.ClickException, command: str) -> tuple[str, str, int]:
    message = error.format_message().rstrip(".")
    message = message[:1].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else f"cdc-outbox {command}".strip()
    return message, f"{path} --help", error.exit_code


def _option(args: Sequence[str], name: str) -> str | None:
    for at, word in enumerate(args):
        if word.startswith(name + "="):
            return word.removeprefix(name + "=")
        if word == name and at + 1 < len(args):
            return args[at + 1]
    return None
