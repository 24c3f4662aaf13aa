"""`python -m tests.documents.recording`: a run of the demo, as a picture that plays, docs/images/demo.svg.

The run is a real one, under a pseudo-terminal. Its lines appear in their own time, with pauses cut to a second; then
the last screen stays. Who asks for less motion sees that at once. Nothing in the picture is loaded from elsewhere.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from tests.servers.cache import CHECKOUT
from tests.servers.relay import clean_environment

TARGET: Final = CHECKOUT / "docs" / "images" / "demo.svg"
ROWS: Final = 26
COLUMNS: Final = 82
LONGEST_PAUSE: Final = 1.0
"""Seconds."""

ADVANCE: Final = 8.4
LEADING: Final = 18
MARGIN: Final = 16
COLOURS: Final = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y"}
"""SGR parameters of the demo and their classes in the picture."""

STYLE: Final = """
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;fill:#d8dee9;white-space:pre}
.b{font-weight:bold;fill:#fff}.d{fill:#8fbcbb}.r{fill:#ff6b6b}.g{fill:#8fce7e}.y{fill:#ebcb8b}
.l{opacity:0;animation:l 1ms forwards}@keyframes l{to{opacity:1}}
"""


@dataclass(frozen=True)
class Line:
    """A line of the terminal with its colours, and the second at which it came."""

    at: float
    text: str


def record(command: Sequence[str]) -> list[Line]:
    """Run a command on a terminal; its lines. Raises CalledProcessError when it fails."""
    ours, theirs = pty.openpty()
    environment = clean_environment({"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)})
    environment.pop("NO_COLOR", None)
    lines: list[Line] = []
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        began, rest = time.monotonic(), b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux' way to say that nobody writes any more
                break
            if not part:
                break
            *whole, rest = (rest + part).split(b"\n")
            lines += [Line(time.monotonic() - began, each.decode().rstrip("\r")) for each in whole]
    os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return lines


def in_time(lines: Sequence[Line]) -> list[Line]:
    """The same lines without long pauses."""
    told: list[Line] = []
    now = before = 0.0
    for line in lines:
        now += min(line.at - before, LONGEST_PAUSE)
        before = line.at
        told.append(Line(round(now, 2), line.text))
    return told


def picture(lines: Sequence[Line]) -> str:
    """The SVG."""
    width, height = COLUMNS * ADVANCE + 2 * MARGIN, ROWS * LEADING + 2 * MARGIN
    end = lines[-1].at
    over = max(0, len(lines) - ROWS)
    moves = {f"{100 * lines[ROWS + n].at / end:.1f}": (n + 1) * LEADING for n in range(over)}
    steps = "".join(f"{percent}%{{transform:translateY(-{way}px)}}" for percent, way in moves.items())
    scroll = f"@keyframes s{{0%{{transform:none}}{steps}}}.s{{animation:s {end:.2f}s steps(1,end) forwards}}"
    still = (
        "@media(prefers-reduced-motion){.l{animation:none;opacity:1}"
        f".s{{animation:none;transform:translateY(-{over * LEADING}px)}}}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width:g} {height:g}">',
            "<title>cdc-outbox demo, recorded</title>",
            f"<style>{STYLE}{scroll}{still}</style>",
            '<rect width="100%" height="100%" rx="8" fill="#1c2128"/>',
            f'<svg x="{MARGIN}" y="{MARGIN}" width="{width - 2 * MARGIN:g}" height="{ROWS * LEADING}"><g class="s">',
            *(_text(number, line) for number, line in enumerate(lines) if plain(line.text).strip()),
            "</g></svg></svg>\n",
        ]
    )


def plain(text: str) -> str:
    """The text without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _text(number: int, line: Line) -> str:
    length = f'textLength="{len(plain(line.text)) * ADVANCE:.1f}"'
    place = f'y="{number * LEADING + 14}" {length} style="animation-delay:{line.at:g}s"'
    return f'<text class="l" {place}>{"".join(_spans(line.text))}</text>'


def _spans(text: str) -> Iterator[str]:
    style = ""
    for part in re.split(r"(\x1b\[[0-9;]*m)", text):
        if part.startswith("\x1b"):
            style = COLOURS.get(part[2:-1], "")
        elif part:
            shown = escape(part, quote=False)
            yield f'<tspan class="{style}">{shown}</tspan>' if style else shown


if __name__ == "__main__":
    command = "cdc-outbox demo"
    lines = [Line(0.0, f"\x1b[1m$ {command}\x1b[0m"), Line(0.6, "")]
    lines += [
        Line(0.6 + line.at, line.text)
        for line in record([sys.executable, "-m", *command.replace("-", "_", 1).split()])
    ]
    TARGET.write_text(picture(in_time(lines)))
    print(f"{TARGET.relative_to(CHECKOUT)}: {TARGET.stat().st_size} bytes")
