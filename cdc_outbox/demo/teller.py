"""How the story is told: numbered headings, short sentences, a table. Colour on a terminal only, ASCII only."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import IO, Final

from cdc_outbox.demo.account import Account, Line
from cdc_outbox.terminal import coloured

_WIDTH: Final = 78
_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"

_NAMES: Final = 15
_HEAD: Final = (
    f"{'':{_NAMES}}{' orders ':-^21}   {' cdc-outbox ':-^19}   {' naive ':-^13}",
    f"{'':{_NAMES}}committed rolled back   arrived twice  lost   arrived  lost",
)


class Teller:
    """Writes to `out` at once, whoever reads there."""

    def __init__(self, out: IO[str], environ: Mapping[str, str] = os.environ) -> None:
        self._out = out
        self._colours = coloured(out, environ)
        self._headings = 0

    def open(self, text: str) -> None:
        """Say what is about to be told."""
        self._write(textwrap.fill(text, _WIDTH))

    def heading(self, text: str) -> None:
        """Begin the next chapter."""
        self._headings += 1
        self._write(f"\n{self._painted(f'{self._headings}. {text}', _BOLD)}")

    def say(self, text: str) -> None:
        """A sentence or two."""
        for line in textwrap.wrap(text, _WIDTH - 3):
            self._write(f"   {line}")

    def command(self, text: str) -> None:
        """A command that is run, or that the reader may run."""
        self._write(self._painted(f"   $ {text}", _DIM))

    def table(self, account: Account) -> None:
        """What committed, what arrived, what arrived twice, what was lost."""
        self._write("")
        for text in _HEAD:
            self._write(self._painted(text, _BOLD))
        for line in account.lines:
            self._write(self._row(line))
        self._write("   " + "-" * (len(_HEAD[0]) - 3))
        self._write(self._row(account.total))
        self._write("")

    def _row(self, line: Line) -> str:
        relayed, naive = line.relayed, line.naive
        cells = (
            f"   {line.name:<{_NAMES - 3}}{line.committed:>9}{line.rolled_back:>12}   {relayed.arrived:>7}",
            self._painted(f"{relayed.again:>6}", _YELLOW if relayed.again else ""),
            self._painted(f"{relayed.lost:>6}", _RED if relayed.lost else _GREEN),
            f"   {naive.arrived:>7}",
            self._painted(f"{naive.lost:>6}", _RED if naive.lost else _GREEN),
        )
        return "".join(cells)

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colours and colour else text

    def _write(self, text: str) -> None:
        print(text, file=self._out, flush=True)
