"""The plan: how the rows of one relation become messages.

Compiled once per Relation message, then run for each row. It knows the row's place in the stream, and so
turns what the rooms of this package find unfit into the poison event that a person reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cdc_outbox.errors import PoisonEvent
from cdc_outbox.event import Encoded, TableName, Values
from cdc_outbox.lsn import place
from cdc_outbox.table.layout import Encode, Layout
from cdc_outbox.table.recognise import Shape
from cdc_outbox.table.selection import Rule
from cdc_outbox.table.sent import Bookkeeping
from cdc_outbox.table.unfit import Unfit
from cdc_outbox.table.values import NEVER, Field, epoch_us


class Plan:
    """How the rows of one relation become messages, until its next Relation message."""

    def __init__(
        self,
        *,
        table: TableName,
        shape: Shape,
        layout: Layout,
        encode: Encode,
        rules: Iterable[Rule],
        summary: dict[str, tuple[str, str]],
        needed: dict[str, Field],
        optional: dict[str, Field],
        read: frozenset[int],
        ignored: tuple[str, ...],
        dropped: dict[str, int],
        other_buses: dict[str, None],
        inserted_sent: dict[str, None],
        bookkeeping: Bookkeeping,
        selected: tuple[tuple[Field, tuple[str, ...]], ...],
    ) -> None:
        self.table = table
        self.summary = summary
        """Role → (column or source, rule), for the line at start; the rule is `configured`, `recognised`,
        …"""
        self.ignored = ignored
        """Columns that nothing reads."""
        self.dropped = dropped
        """Members of `headers` that lost their name, counted by that name (`id`, `type`, `cdc.`,
        `placed`)."""
        self.other_buses = other_buses
        """Values of the bus column that were left out, each once; the caller warns and clears."""
        self.inserted_sent = inserted_sent
        """Columns by which rows were left out as sent already at their insert; the caller warns and clears."""
        self.bookkeeping = bookkeeping
        """How the table tells rows that were sent from those that wait."""
        self.selected = selected
        """The columns by whose values rows are ours, with these values."""
        self.needed = needed
        self.optional = optional
        self.read = read
        """Places of the columns that a message is made of, or left out by."""
        self.shape = shape
        self.layout = layout
        """Where each part of the event is in a row."""
        self.encode = self._guard(encode, tuple(rules))

    encode: Callable[[Values, int, int, int], Encoded | str]
    """From a row, the final LSN, the place and the commit time (µs since 1970) to the message, or to the
    reason for leaving it out: `only`, `bus`, `sent`. Raises PoisonEvent, and nothing else whatever bytes
    the columns hold."""

    def _guard(
        self, encode: Encode, rules: tuple[Rule, ...]
    ) -> Callable[[Values, int, int, int], Encoded | str]:
        def guarded(values: Values, lsn: int, seq: int, commit_us: int) -> Encoded | str:
            try:
                for rule in rules:
                    reason = rule(values, commit_us)
                    if reason is not None:
                        return reason
                return encode(values, lsn, seq, commit_us)
            except Unfit as unfit:
                raise self._poison(unfit, values, lsn, seq) from None

        return guarded

    def _poison(self, unfit: Unfit, values: Values, lsn: int, seq: int) -> PoisonEvent:
        event_id = self.event_id(values)
        shown = "without an id" if event_id is None else event_id[:200]
        if not shown.isprintable():
            shown = ascii(shown)
        return PoisonEvent(
            f"event {shown} of {self.table} {place(lsn, seq)}, can't be published: {unfit}",
            next=unfit.next,
            reason=unfit.reason,
            lsn=lsn,
            seq=seq,
            event_id=event_id,
        )

    def event_id(self, values: Values) -> str | None:
        """The event's id as PostgreSQL prints it."""
        return _text(values[self.layout.id.at])

    def created_us(self, values: Values, otherwise: int) -> int:
        """When a row was written by its own account, in µs since 1970; `otherwise` where it doesn't say.

        For rows from the table, whose commit time nobody knows.
        """
        field = self.optional.get("created_at")
        raw = None if field is None else values[field.at]
        if field is None or raw is None:
            return otherwise
        try:
            moment = epoch_us(raw, field.name)
        except Unfit:
            return otherwise
        return moment if 0 <= moment < NEVER else otherwise

    def raw(self, values: Values) -> dict[str, str | None]:
        """The whole row: column → text as PostgreSQL prints it."""
        return {field.name: _text(values[field.at]) for field in self.shape.fields}

    def describe(self) -> str:
        """The mapping in one line of words."""
        parts = [
            f"{role} from {source} ({rule})" if source else f"{role} ({rule})"
            for role, (source, rule) in self.summary.items()
        ]
        return "; ".join([*parts, f"ignored: {', '.join(self.ignored) or 'nothing'}"])

    def lost(self, previous: Plan) -> tuple[str, ...]:
        """Optional roles that the previous plan of the relation filled and this one doesn't, for a
        warning."""
        return tuple(role for role in previous.optional if role not in self.optional)


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "backslashreplace")
