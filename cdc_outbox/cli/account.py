"""The account of a comparison, for a person: what is the same, and what would be different, each with its next step."""

from __future__ import annotations

from typing import Any

from cdc_outbox.terminal import printable

_WIDTH = 8

PARTITIONER = (
    "note: no table tells which partition the old relay chose, and both have to choose the same (kafka.partitioner); "
    "how to check: docs/how-to/try-beside-the-old-relay.md"
)


def lines(document: dict[str, Any]) -> list[str]:
    """The account's lines, from the document that a machine gets."""
    written = ["", *_same(document)]
    for count, what in (
        (document["neither"], "left by the old relay, and ours would leave them out"),
        (document["undecided"], "committed a moment ago: the old relay had no time for them"),
        (document["unwatched"], "not compared: too many waited for their mark"),
    ):
        if count:
            written.append(_line(count, what))
    for reason, count in document["left_out"].items():
        what = "inserted as sent" if reason == "sent" else "left out as the settings say"
        written.append(_line(count, f"{what} ({reason}), not compared"))
    if document["updates_unknown"]:
        written.append(
            "note: rows that an UPDATE sets back to unsent were not looked for, and ours sends inserts only: where the "
            "application writes events so, see docs/how-to/leave-a-polling-relay.md"
        )
    if not document["kafka_reached"]:
        written.append("note: Kafka was not reached, so nobody knows whether it would take them")
    if len(document["inserted_as"]) > 1:
        statuses = ", ".join(f"{count} {status}" for status, count in document["inserted_as"].items())
        written.append(
            f"note: rows are inserted with several statuses ({statuses}), and ours sends each at its insert, whatever "
            "becomes of its status later; --only leaves others out"
        )
    if document["events"]:
        written.append(PARTITIONER)
    for difference in document["differences"]:
        written += _different(difference)
    return [*written, "", _verdict(document)]


def _same(document: dict[str, Any]) -> list[str]:
    delay = document["old_relay_delay_seconds"]
    if delay is None:
        return []
    at_most = "at most " if delay["at_most"] else ""
    spread = ", ".join(f"{name} {at_most}{_seconds(delay[name])}" for name in ("p50", "p99", "max"))
    return [
        _line(document["same"], "sent by the old relay, and ours would send them"),
        f"{'':{_WIDTH}}  the old relay after their commit: {spread}; ours would have had them in the topic then",
    ]


def _different(difference: dict[str, Any]) -> list[str]:
    old = "the old relay sent" if difference["sent"] else "the old relay has not sent"
    what = f" ({difference['what']})" if difference["what"] else ""
    more = ", …" if difference["count"] > len(difference["ids"]) else ""
    ids = ", ".join(map(printable, difference["ids"]))
    return [
        _line(difference["count"], f"DIFFERENT: {_KINDS[difference['kind']]}{what}, {old}"),
        f"{'':{_WIDTH}}  {difference['error']}",
        f"{'':{_WIDTH}}  ids: {ids}{more}",
        f"{'':{_WIDTH}}  next: {difference['next']}",
    ]


_KINDS = {
    "not sent": "ours would send",
    "left out": "ours would leave out",
    "poison": "ours would stop at",
    "stuck": "ours could not deliver",
    "same id": "ours would send twice under one id",
    "no id": "ours would send without an id",
    "changed": "ours would send as it was inserted",
    "never inserted": "ours would never send",
}


def _verdict(document: dict[str, Any]) -> str:
    events, different = document["events"], document["different"]
    if not events:
        return "nothing was compared: no event was committed meanwhile"
    if different:
        return f"{different} of {events} events would be different"
    return f"{events} events: nothing would be different"


def _line(count: int, what: str) -> str:
    return f"{count:{_WIDTH}}  {what}"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
