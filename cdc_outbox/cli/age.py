"""A duration as an option of a command: how long to wait, or how old."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from cdc_outbox.settings.units import parse_duration

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def older_than_option(text: str, *, required: bool) -> Callable[[Decorated], Decorated]:
    """Add `--older-than`, which comes as seconds. Wrong usage where it is no duration."""
    return click.option("--older-than", metavar="AGE", required=required, callback=_seconds, help=text)


def wait_option(function: Decorated) -> Decorated:
    """Add `--wait`, which comes as seconds."""
    return click.option(
        "--wait",
        default="30s",
        metavar="DURATION",
        callback=duration,
        help="How long to wait for open transactions.  [30s]",
    )(function)


def duration(_context: click.Context, _option: click.Parameter, value: str) -> float:
    """The seconds of a duration. Wrong usage where it is none."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _seconds(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r}: {error}, such as 7d", context, option) from None
