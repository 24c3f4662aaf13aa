"""The report for a person: a table of one line a check, then what to do, each remedy on lines of its own to paste."""

from __future__ import annotations

import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final

from cdc_outbox.doctor.check import Status
from cdc_outbox.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_outbox.doctor.report import Report

_COLOURS: Final = {Status.OK: "32", Status.WARNING: "33", Status.FAILED: "31"}
_NARROWEST: Final = 40
_TITLES: Final = {"relay": "relay", "postgres": "PostgreSQL", "kafka": "Kafka"}


def render(report: Report, *, width: int | None, colour: bool) -> str:
    """The whole text. `width`: columns to wrap messages at, None for not at all; remedies are never wrapped."""
    painter = _Painter(colour)
    lines = [*_table(report, width, painter), *_mapping(report, width), *_remedies(report, width, painter)]
    return "\n".join([*lines, "", _summary(report, painter)])


class _Painter:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def status(self, status: Status, text: str | None = None) -> str:
        return self._with(_COLOURS[status], text or status.value)

    def title(self, text: str) -> str:
        return self._with("1", text)

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def _table(report: Report, width: int | None, painter: _Painter) -> Iterator[str]:
    names = max((len(check.name) for check in report.checks), default=0)
    words = max(len(status.value) for status in Status)
    side = None
    for check in report.checks:
        if check.side != side:
            if side is not None:
                yield ""
            side = check.side
            yield painter.title(_TITLES[side])
        padding = " " * (words - len(check.status.value))
        before = f"  {painter.status(check.status)}{padding}  {check.name:{names}}  "
        yield from _hanging(before, 2 + words + 2 + names + 2, check.message, width)


def _mapping(report: Report, width: int | None) -> Iterator[str]:
    for table, words in report.mapping.items():
        yield ""
        yield f"{table} as messages"
        for part in words.split("; "):
            yield from _hanging("  ", 4, printable(part), width)


def _remedies(report: Report, width: int | None, painter: _Painter) -> Iterator[str]:
    urgent = [check for check in report.checks if check.status is Status.FAILED]
    rest = [check for check in report.checks if check.status is Status.WARNING]
    if not urgent and not rest:
        return
    yield ""
    yield painter.title("what to do")
    for check in (*urgent, *rest):
        head = f"  {painter.status(check.status, f'{_TITLES[check.side]} {check.name}')}: "
        yield from _hanging(head, 4, check.message, width)
        for line in (check.remedy or "").splitlines():
            yield f"      {printable(line)}"


def _hanging(head: str, indent: int, text: str, width: int | None) -> list[str]:
    """The text behind `head`, its further lines indented; colours in the head take no room."""
    if width is None:
        return [head + text]
    visible = len(_plain(head))
    room = max(width, indent + _NARROWEST)
    wrapped = textwrap.wrap(
        "x" * visible + text,
        room,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [head + wrapped[0][visible:], *wrapped[1:]] if wrapped else [head]


def _plain(text: str) -> str:
    at, parts = 0, []
    while (begin := text.find("\x1b[", at)) >= 0:
        parts.append(text[at:begin])
        at = text.index("m", begin) + 1
    return "".join([*parts, text[at:]])


def _summary(report: Report, painter: _Painter) -> str:
    counts = Counter(check.status for check in report.checks)
    parts = []
    if counts[Status.FAILED]:
        parts.append(painter.status(Status.FAILED, f"{counts[Status.FAILED]} failed"))
    if counts[Status.WARNING]:
        noun = "warning" if counts[Status.WARNING] == 1 else "warnings"
        parts.append(painter.status(Status.WARNING, f"{counts[Status.WARNING]} {noun}"))
    parts.append(painter.status(Status.OK, f"{counts[Status.OK]} ok"))
    return ", ".join(parts)
