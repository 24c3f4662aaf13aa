"""Which rows are sent at all.

A rule answers with the word under which a row is left out and counted, or None. Rules are tried before
anything else is read, so that a row for another bus can't be poison here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from cdc_outbox.event import Values
from cdc_outbox.table.sent import Sent
from cdc_outbox.table.unfit import Unfit
from cdc_outbox.table.values import BOOL, BPCHAR, TIMESTAMP, Field, epoch_us, significant

Rule: TypeAlias = Callable[[Values, int], str | None]
"""From a row and its commit time in µs since 1970 to the reason for leaving it out."""

_REMEMBERED: Final = 1000
_BOOLEANS: Final = {"true": b"t", "false": b"f"}


def accept(field: Field, accepted: Collection[str]) -> frozenset[bytes]:
    """The accepted values of a column as PostgreSQL prints them, without the blanks that `char(n)` adds."""
    spelled = _BOOLEANS if field.type_oid == BOOL else {}
    printed = (spelled.get(value.lower(), value.encode()) for value in accepted)
    return frozenset(significant(field, value) or b"" for value in printed)


def only(field: Field, accepted: Collection[str]) -> Rule:
    """Rows with one of the accepted values; NULL is none of them."""
    at = field.at
    sent = accept(field, accepted)

    if field.type_oid == BPCHAR:
        return lambda values, _commit_us: None if significant(field, values[at]) in sent else "only"
    return lambda values, _commit_us: None if values[at] in sent else "only"


def bus(field: Field, accepted: Collection[str], others: dict[str, None]) -> Rule:
    """Rows for our bus. Each other value is put into `others` once (`NULL` for NULL), for a warning."""
    at = field.at
    ours = accept(field, accepted)
    padded = field.type_oid == BPCHAR
    seen: set[bytes | None] = set()

    def rule(values: Values, _commit_us: int) -> str | None:
        value = significant(field, values[at]) if padded else values[at]
        if value in ours:
            return None
        if value not in seen and len(seen) < _REMEMBERED:
            seen.add(value)
            others["NULL" if value is None else value[:200].decode("utf-8", "backslashreplace")] = None
        return "bus"

    return rule


def sent(by: Sent, seen: dict[str, None]) -> Rule:
    """Rows that were not inserted as sent already. The column that says it is put into `seen`, for a warning."""
    field, at = by.field, by.field.at

    def timed(values: Values, _commit_us: int) -> str | None:
        if values[at] is None:
            return None
        seen[field.name] = None
        return "sent"

    if by.by == "time":
        return timed
    words = frozenset(word.encode() for word in by.words)
    alone = frozenset(word.encode() for word in by.alone)
    beside = by.beside.at if by.beside is not None else at
    padded = field.type_oid == BPCHAR

    def rule(values: Values, _commit_us: int) -> str | None:
        value = significant(field, values[at]) if padded else values[at]
        if value is None or value.lower() not in words:
            return None
        if values[beside] is None and value.lower() not in alone:
            return None
        seen[field.name] = None
        return "sent"

    return rule


def due(field: Field) -> Rule:
    """Rows that may be sent at their commit: a stream can't wait for a later time."""
    at = field.at
    name = field.name
    read = ", read as UTC since it has no time zone," if field.type_oid == TIMESTAMP else ""

    def rule(values: Values, commit_us: int) -> str | None:
        value = values[at]
        if value is not None and epoch_us(value, name) > commit_us:
            raise Unfit(
                "scheduled",
                f"its {name}{read} lies after its commit, and a stream can't wait",
                'send such rows at once with outbox.scheduled = "ignore", or insert them when they are due',
            )
        return None

    return rule
