"""What an audit has to say: the kinds of faults, how many, which first, and the next step."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any, Final, Literal

from cdc_outbox.instant import iso, iso_us

if TYPE_CHECKING:
    from datetime import datetime

    from cdc_outbox.event import TableName
    from cdc_outbox.repair.findings import Findings

NAMED: Final = 20
"""Missing events that are sent again one by one, at most."""


@dataclass(slots=True)
class Report:
    """What was compared, and what was found."""

    tables: tuple[TableName, ...]
    since: datetime | None
    until: datetime | None
    topics: dict[str, int]
    """Messages by topic; -1 where the cluster has no such topic."""
    rows: int
    messages: int
    unjudged: int
    unnamed_rows: int
    elsewhere: int
    """Messages whose row the table has, but not among those that were read."""
    findings: Findings
    twice_ok: bool
    notes: list[str]
    """What limits the answer, in sentences."""
    later: str = "--since TIME"
    """The flags that leave out what is older."""
    meant: str | None = None
    """The flags of the window by another clock that the rows' times may go by."""
    idle_slot: str | None = None
    """The slot in which rows wait, where no relay streams from it."""

    @property
    def faults(self) -> dict[str, int]:
        """The kinds that make it unclean, with their numbers."""
        found = self.findings
        kinds = {
            "missing": found.missing.count,
            "twice": 0 if self.twice_ok else found.twice.count,
            "out_of_order": found.out_of_order.count,
            "foreign": found.foreign.count,
            "moved_keys": found.moved_keys.count,
            "unknown": found.unknown.count + self.unnamed_rows,
        }
        return {kind: count for kind, count in kinds.items() if count}

    @property
    def status(self) -> Literal["clean", "unclean", "empty"]:
        """What an audit has shown that found no row, or no message of any, is nothing: `empty`."""
        if self.faults:
            return "unclean"
        found = self.findings
        compared = self.rows - found.sent_elsewhere - found.left_out
        return "clean" if compared or found.without_row else "empty"

    @property
    def well(self) -> bool:
        """Nothing is wrong, as far as can be known.

        A window that holds no row may be one of another clock; and where all that its rows show is that somebody marked
        them as sent, nothing is known.
        """
        unproven = self.meant is not None or self.findings.sent_elsewhere > 0
        return self.status == "clean" or (self.status == "empty" and not unproven)

    @property
    def next(self) -> str | None:
        """The next step for the gravest kind; where nothing is wrong, for an empty window or for rows that wait."""
        found = self.findings
        if found.missing.count:
            return (
                f"cdc-outbox find {quote(found.missing.events[0]['id'])}; then send them again: {self._again}"
            )
        if found.out_of_order.count:
            return "have the consumers of these keys look: they have seen an older state after a newer one"
        if found.moved_keys.count:
            return (
                "if the topic got more partitions, or another relay chose partitions in its own way, audit from after "
                f"that: cdc-outbox audit {self.later}"
            )
        if found.foreign.count:
            return (
                "if rows are removed from the table, or other producers write to the topic: cdc-outbox audit "
                "--foreign-ok; if the ids of another relay's messages are elsewhere: --id-from payload:/event_id"
            )
        if self.faults.get("unknown"):
            return f"audit only what the topics still have: cdc-outbox audit {self.later}"
        if "twice" in self.faults:
            return "if copies are expected, as after a crash: cdc-outbox audit --twice-ok"
        if not self.well and found.sent_elsewhere:
            return (
                "if the ids of another relay's messages are elsewhere: cdc-outbox audit --id-from payload:/event_id; "
                "if nobody has sent these rows: cdc-outbox audit --all, which calls them missing"
            )
        if not self.well:
            return f"cdc-outbox audit {self.meant}"
        return None if self.idle_slot is None else f"cdc-outbox start --slot {self.idle_slot}"

    @property
    def _again(self) -> str:
        """The replay of all that is missing: by their ids where they are few, else of all rows since the oldest.

        It is one of the rows of one table.
        """
        missing, oldest = self.findings.missing, self.findings.oldest_missing
        replay = "cdc-outbox replay --table NAME" if len(self.tables) > 1 else "cdc-outbox replay"
        if oldest is not None and missing.count > min(NAMED, len(missing.events)):
            return f"{replay} --since {iso_us(oldest)}, which sends all rows since the oldest of them"
        ids = " ".join(f"--id {quote(each['id'])}" for each in missing.events[:NAMED])
        return f"{replay} {ids}"

    def document(self) -> dict[str, Any]:
        """The report, for a machine."""
        found = self.findings
        kinds = {
            name: {"count": kind.count, "events": [_shown(each) for each in kind.events]}
            for name, kind in (
                ("missing", found.missing),
                ("twice", found.twice),
                ("out_of_order", found.out_of_order),
                ("foreign", found.foreign),
                ("moved_keys", found.moved_keys),
                ("unknown", found.unknown),
                ("under_way", found.under_way),
                ("undecided", found.undecided),
            )
        }
        return {
            "schema_version": 1,
            "status": self.status,
            "tables": [str(table) for table in self.tables],
            "since": None if self.since is None else iso(self.since, "microseconds"),
            "until": None if self.until is None else iso(self.until, "microseconds"),
            "topics": [
                {"name": name, "exists": count >= 0, "messages": max(0, count)}
                for name, count in self.topics.items()
            ],
            "rows": {
                "read": self.rows,
                "delivered": found.delivered,
                "under_way": found.under_way.count,
                "oldest_under_way": _moment(found.oldest_under_way),
                "left_out": found.left_out,
                "marked_sent": found.sent_elsewhere,
                "without_id": self.unnamed_rows,
                "same_id": found.same_id,
            },
            "messages": {
                "read": self.messages,
                "repeats": found.repeats,
                "without_row": found.without_row,
                "elsewhere": self.elsewhere,
                "order_not_judged": self.unjudged,
            },
            "faults": self.faults,
            **kinds,
            "notes": self.notes,
            "next": self.next,
        }


def _shown(event: dict[str, Any]) -> dict[str, Any]:
    if "created_us" not in event:
        return event
    return {name: value for name, value in event.items() if name != "created_us"} | {
        "created_at": _moment(event["created_us"])
    }


def _moment(us: int | None) -> str | None:
    return None if us is None else iso_us(us)
