"""In which order the rows of a table were written: the option `--order-by`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def order_by_option(function: Decorated) -> Decorated:
    """Add `--order-by`, which comes as text."""
    return click.option(
        "--order-by",
        metavar="COLUMNS",
        help="The order in which the rows were written, as COLUMN[ desc],…  [the column that a sequence fills; else "
        "the time of creation and the id]",
    )(function)
