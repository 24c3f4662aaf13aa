"""Where a row goes: the topic from the first source that has a value.

A name is never mended: what Kafka would refuse makes the row poison, since a mended name is a topic that
nobody reads. Names are checked once and remembered.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cdc_outbox.event import Values
from cdc_outbox.table import template
from cdc_outbox.table.template import Part
from cdc_outbox.table.unfit import LEAVE_OUT, Unfit
from cdc_outbox.table.values import Field

_LEGAL: Final = re.compile(rb"[A-Za-z0-9._-]{1,249}\Z")
_LEGAL_PART: Final = re.compile(rb"[A-Za-z0-9._-]{0,248}\Z")
_REMEDY: Final = f"make legal names with --topic TEMPLATE, or {LEAVE_OUT}"
_KNOWN: Final = 4096


def check(raw: bytes) -> str:
    """A topic's name as text; Unfit where Kafka would refuse it."""
    if _LEGAL.match(raw) is None or raw in {b".", b".."}:
        shown = raw.decode("utf-8", "backslashreplace")
        if len(shown) > 260:
            shown = shown[:250] + "…"
        raise Unfit(
            "topic",
            f"the topic name {shown!r} is illegal: it takes 1 to 249 of A-Z a-z 0-9 . _ -, not . or ..",
            _REMEDY,
        )
    return raw.decode("ascii")


@dataclass(frozen=True, slots=True)
class Topics:
    """The topic of each row.

    `fixed` is the only topic, where there is one. Else `known.get(values[at])` is the topic, or None: then
    `find` works it out, and may remember it there.
    """

    fixed: str | None
    at: int
    known: dict[bytes | None, str]
    sources: tuple[template.Source, ...]
    names: dict[bytes, str]
    alone: bool
    described: str

    def find(self, values: Values) -> str:
        """The topic of a row that isn't known yet; Unfit where it has none, or an illegal one."""
        if self.fixed is not None:
            return self.fixed
        for place, source in enumerate(self.sources):
            raw = source(values)
            if not raw:
                continue
            name = self.names.get(raw)
            if name is None:
                name = check(raw)
                _remember(self.names, raw, name)
            if place == 0 and self.alone:
                _remember(self.known, values[self.at], name)
            return name
        raise Unfit("topic", f"it has no topic: {self.described} is NULL or empty", _REMEDY)


def topics(sources: Sequence[Sequence[Part]], described: str) -> Topics:
    """Compile the sources, in their order of precedence; each is the parts of a template.

    Raises Unfit where a fixed topic's name is illegal, or what stands around the columns makes all names so.
    """
    first = sources[0]
    fields = [part for part in first if isinstance(part, Field)]
    literal = b"".join(part for part in first if isinstance(part, bytes))
    fixed = None if fields else check(literal)
    if fields and _LEGAL_PART.match(literal) is None:
        raise Unfit(
            "topic",
            f"no topic's name has {literal.decode('utf-8', 'backslashreplace')[:250]!r} in it: it takes 1 to 249 of "
            "A-Z a-z 0-9 . _ -",
            _REMEDY,
        )
    return Topics(
        fixed=fixed,
        at=fields[0].at if fields else 0,
        known={},
        sources=tuple(template.compose(parts, empty=False) for parts in sources),
        names={},
        alone=len(fields) == 1,
        described=described,
    )


def _remember(known: dict[bytes, str] | dict[bytes | None, str], raw: bytes | None, name: str) -> None:
    if len(known) >= _KNOWN:
        known.clear()
    known[raw] = name  # type: ignore[index]  # both kinds of keys are bytes here
