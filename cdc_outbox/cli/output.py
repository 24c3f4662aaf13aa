"""How a command answers: in text for a person, or in JSON; the options that say so."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click


def json_options(
    help_: str = "Short for --format json.",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--format text|json` and `--json`, which come to the command as one `as_json`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def command(*, format_: str, as_json: bool, **rest: Any) -> Any:
            return function(as_json=as_json or format_ == "json", **rest)

        short = click.option("--json", "as_json", is_flag=True, help=help_)
        formats = click.Choice(["text", "json"])
        return click.option(
            "--format", "format_", type=formats, default="text", help="How to answer.  [text]"
        )(short(command))

    return decorate
