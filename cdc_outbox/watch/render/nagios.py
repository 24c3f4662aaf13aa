"""Health as a monitoring plug-in prints it: status line, performance data, evidence.

https://nagios-plugins.org/doc/guidelines.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc_outbox.terminal import printable
from cdc_outbox.watch.health import Level, worst
from cdc_outbox.watch.render.text import text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cdc_outbox.watch.health import Check, Health

_UNITS = {
    "retained": "%",
    "retained_volume": "%",
    "retained_bytes": "B",
    "time_to_loss": "s",
    "inactive": "s",
    "oldest_unacknowledged": "s",
    "stalled": "s",
    "catalog_xmin_age": "",
}


def nagios(healths: Sequence[Health]) -> str:
    """One or several slots, without a line's end."""
    level = worst([health.status for health in healths]).value.upper()
    said = "; ".join(_said(health) for health in healths)
    if len(healths) == 1:
        said = f"{healths[0].slot}: {healths[0].summary}"
    data = " ".join(datum for health in healths for datum in _data(health, several=len(healths) > 1))
    first = f"CDC-OUTBOX {level} - {_safe(printable(said))}"
    lines = [f"{first} | {data}" if data else first]
    lines += [_safe(text(health)) for health in healths]
    return "\n".join(lines)


def _said(health: Health) -> str:
    """One of several slots: its status, and why it isn't well."""
    why = f" ({health.summary})" if health.status is not Level.OK else ""
    return f"{health.slot} {health.status.value}{why}"


def _data(health: Health, *, several: bool) -> Iterator[str]:
    prefix = f"{health.slot}_" if several else ""
    sample = health.sample
    judged = {check.name for check in health.checks}
    if sample is not None:
        for name, size in (("retained_wal", sample.retained), ("unconfirmed_wal", sample.unconfirmed)):
            if size is not None and (name != "retained_wal" or "retained_bytes" not in judged):
                yield f"'{prefix}{name}'={size}B;;;0"
    for check in health.checks:
        if check.name in _UNITS and isinstance(check.value, float | int):
            yield f"'{prefix}{check.name}'={_datum(check)}"


def _datum(check: Check) -> str:
    unit = _UNITS[check.name]
    # A time to loss is the worse the smaller it is: such a range has its end open.
    after = ":" if check.name == "time_to_loss" else ""
    values = [_number(each, unit) for each in (check.value, check.warning, check.critical)]
    value, warning, critical = values
    limits = ";".join(f"{each}{after}" if each else "" for each in (warning, critical))
    return f"{value}{unit};{limits};0"


def _number(value: float | str | None, unit: str) -> str:
    if not isinstance(value, float | int):
        return ""
    return f"{value * 100 if unit == '%' else value:.3f}".rstrip("0").rstrip(".")


def _safe(said: str) -> str:
    """Without the sign that begins performance data."""
    return said.replace("|", "/")
