"""Where another relay's messages have the event's id: the option `--id-from`, and what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cdc_outbox.errors import UsageError

if TYPE_CHECKING:
    from cdc_outbox.repair.books import IdFrom

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def id_from_option(function: Decorated) -> Decorated:
    """Add `--id-from`, which comes as texts for `ids_from`."""
    return click.option(
        "--id-from",
        metavar="SOURCE",
        multiple=True,
        help="Where messages without a header id have the event's id: header:NAME or payload:/pointer; repeatable.",
    )(function)


def ids_from(texts: Iterable[str]) -> tuple[IdFrom, ...]:
    """How the id is found in a message. Raises UsageError."""
    return tuple(_id_from(text) for text in texts)


def _id_from(text: str) -> IdFrom:
    from cdc_outbox.repair.books import id_from

    try:
        return id_from(text)
    except ValueError as reason:
        raise UsageError(
            f"--id-from is {text!r}: {reason}", next="write it like this: --id-from payload:/event_id"
        ) from None
