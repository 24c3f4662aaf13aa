"""Health as a table that lives in place on a terminal, and as repeated lines elsewhere."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

from cdc_outbox.terminal import printable
from cdc_outbox.watch import words
from cdc_outbox.watch.forecast import Outlook
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.render.text import headline, status

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from cdc_outbox.watch.health import Health

_HEADS: Final = ("slot", "status", "not confirmed", "caught up", "kept", "limit", "WAL rate", "lost")
_STATUS: Final = 1

HIDE_CURSOR: Final = "\x1b[?25l"
SHOW_CURSOR: Final = "\x1b[?25h"


def table(healths: Sequence[Health], at: datetime, *, width: int, colour: bool) -> list[str]:
    """The lines of the table: a row for each slot, and below the summary and next step of what isn't well."""
    rows = [_HEADS, *(_row(health) for health in healths)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADS))]
    lines = [f"{at:%Y-%m-%d %H:%M:%S}Z"[:width]]
    for number, row in enumerate(rows):
        cells = [cell.ljust(widths[column]) for column, cell in enumerate(row)]
        line = "  ".join(cells).rstrip()[:width]
        if number and colour:
            plain = cells[_STATUS].rstrip()
            line = line.replace(plain, status(healths[number - 1].status, colour=True), 1)
        lines.append(line)
    for health in healths:
        if health.status is not Level.OK:
            lines += ["", *_wrapped(headline(health), width)]
            lines += _wrapped(f"  next step     {printable(health.next)}", width) if health.next else []
    return lines


def _wrapped(said: str, width: int) -> list[str]:
    """All of it, in lines of the terminal's width."""
    indent = " " * min(4, width - 1)
    return textwrap.wrap(said, width, subsequent_indent=indent, break_on_hyphens=False)


def redraw(lines: Sequence[str], before: int) -> str:
    """What replaces the `before` lines above the cursor by these."""
    up = f"\x1b[{before}A" if before else ""
    return f"{up}\r\x1b[J" + "".join(f"{line}\n" for line in lines)


def line(health: Health, at: datetime) -> str:
    """The same as one line, where there is no terminal."""
    return f"{at:%Y-%m-%dT%H:%M:%S}Z  {headline(health)}"


def _row(health: Health) -> tuple[str, ...]:
    sample, forecast = health.sample, health.forecast
    word = health.status.value.upper()
    if sample is None or forecast is None or sample.kept is None:
        return (health.slot, word, *("-" for _ in _HEADS[2:]))
    rates = forecast.rates
    return (
        health.slot,
        word,
        _size(sample.unconfirmed),
        _when(forecast.caught_up, forecast.seconds_to_caught_up)
        if not health.delivery.stuck
        else str(health.delivery.state),
        _size(sample.retained),
        "none" if sample.limit is None else words.size(sample.limit),
        "-" if rates is None else words.rate(rates.wal),
        _when(forecast.loss, forecast.seconds_to_loss),
    )


def _size(size: int | None) -> str:
    return "-" if size is None else words.size(size)


def _when(outlook: Outlook, seconds: float | None) -> str:
    if outlook is Outlook.IN:
        return f"in {words.duration(seconds or 0)}"
    return "-" if outlook is Outlook.UNKNOWN else outlook.value
