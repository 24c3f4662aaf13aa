"""The signals of a slot's health, and how their thresholds are spelled: `50%`, `6h`, `1GiB`, `100M`, or `off`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cdc_outbox.settings.entries import Entries
from cdc_outbox.settings.kind import Kind, plain_text
from cdc_outbox.settings.kind.amount import Duration, Size
from cdc_outbox.settings.kind.word import Choice

_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s?(%?)", re.ASCII)
_COUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s?([kMG]?)", re.ASCII)
_FACTORS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}

OFF: Final = "off"


class Share(Kind):
    """`50%`, or `0.5`."""

    def text(self, text: str) -> float:
        found = _SHARE.fullmatch(text.strip())
        share = 0.0 if found is None else float(found[1]) / (100 if found[2] else 1)
        if not 0 < share <= 1:
            raise ValueError("it must be a share: between 0% and 100%, or off")
        return share


class Count(Kind):
    """`500000`, or `100M`; k, M and G are thousands."""

    def text(self, text: str) -> int:
        found = _COUNT.fullmatch(text.strip())
        count = 0 if found is None else int(float(found[1]) * _FACTORS[found[2]])
        if count < 1:
            raise ValueError("it must be a number, as 500000 or 100M, or off")
        return count


_DURATION: Final = {"least": "1s", "most": "36500d"}

SIGNALS: Final[Mapping[str, Kind]] = {
    "retained": Share("50%"),
    "retained_bytes": Size("1GiB", least="1", most="1000000TiB"),
    "retained_volume": Share("10%"),
    "time_to_loss": Duration("6h", **_DURATION),
    "wal_status": Choice("extended", "unreserved", "lost"),
    "inactive": Duration("1m", **_DURATION),
    "oldest_unacknowledged": Duration("30s", **_DURATION),
    "stalled": Duration("1m", **_DURATION),
    "catalog_xmin_age": Count("100M"),
}
"""Each signal that has thresholds, with an example of one."""


def threshold(signal: str, text: str) -> float | str | None:
    """The value of a threshold, in the signal's unit: a share of 1, bytes, seconds, a count, a word. None: off.

    Raises ValueError on anything else.
    """
    if text.strip().lower() == OFF:
        return None
    value: float | str = SIGNALS[signal].text(text)
    return value


class SignalEntries(Entries):
    """A threshold for each signal. Values are kept as they were spelled; the signal's kind has looked at them."""

    def __init__(self, example: str) -> None:
        super().__init__(
            Kind(example.partition("=")[2]),
            example,
            "SIGNAL=VALUE",
            names=tuple(SIGNALS),
            normal=lambda name: name.strip().lower().replace("-", "_"),
            spelled=str.lower,
        )

    def kind_of(self, name: str) -> Kind:
        return SIGNALS[name]

    def texts(self, name: str, texts: Sequence[str]) -> str:
        threshold(name, texts[-1])
        return texts[-1].strip()

    def toml(self, name: str, value: object) -> str:
        return self.texts(name, [plain_text(value)])

    def schema(self) -> dict[str, object]:
        properties: dict[str, Any] = {
            name: {"anyOf": [kind.schema(), {"type": "number", "exclusiveMinimum": 0}, {"const": OFF}]}
            for name, kind in SIGNALS.items()
        }
        return {"type": "object", "properties": properties, "additionalProperties": False}
