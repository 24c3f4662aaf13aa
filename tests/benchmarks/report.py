"""Tables for a person, with the bar of the design beside each figure that has one."""

from __future__ import annotations

from collections.abc import Sequence


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Text in columns: the first to the left, the others to the right."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
    rule = "  ".join("-" * width for width in widths)
    return "\n".join(["", title, "", lines[0], rule, *lines[1:]])


def against(value: float, bar: float, *, least: bool, form: str = "{:.2f}") -> str:
    """A figure and whether it reaches its bar; `least`: the bar is the least it should be, else the most."""
    reached = value >= bar if least else value <= bar
    sign = ">=" if least else "<="
    return f"{form.format(value)} ({sign} {form.format(bar)}: {'yes' if reached else 'NO'})"


def mib(size: int) -> str:
    """Bytes in MB of 2**20, as `ps` and the kernel count."""
    return f"{size / 2**20:.1f} MB" if size else ""
