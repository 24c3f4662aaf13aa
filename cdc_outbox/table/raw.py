"""The default envelope: the payload byte for byte, what identifies the event in headers.

https://kafka.apache.org/documentation/#recordheader
"""

from __future__ import annotations

from typing import Final

from cdc_outbox.event import Encoded, Headers, Values
from cdc_outbox.table.layout import Encode, Layout
from cdc_outbox.table.unfit import LEAVE_OUT, Unfit
from cdc_outbox.table.values import NEVER, Field, Reader, epoch_us, integer

SOURCE: Final = "cdc.source"
"""The header of rows that come from the table."""


def compile(layout: Layout) -> Encode:  # noqa: A001 - as in re.compile
    """The function that runs once per event. Everything that doesn't depend on the row is decided here."""
    fixed, known, topic_at, find_topic = (
        layout.topics.fixed,
        layout.topics.known,
        layout.topics.at,
        layout.topics.find,
    )
    key = layout.key
    key_at = key.at if isinstance(key, Field) else -1
    key_read = key.read if isinstance(key, Field) else None
    find_key = key if callable(key) else None
    payload_at, payload_read = layout.payload.at, layout.payload.read
    columns = _columns(layout)
    members_at, append_members = -1, None
    if layout.members is not None:
        members_at, append_members = layout.members[0].at, layout.members[1]
    static = list(layout.static)
    timestamp, partition, slot = layout.timestamp, layout.partition, layout.slot.encode()
    provenance = layout.provenance and layout.source is None
    if layout.source is not None:
        static.append((SOURCE, layout.source.encode()))

    def encode(values: Values, lsn: int, seq: int, commit_us: int) -> Encoded:
        topic = fixed or known.get(values[topic_at]) or find_topic(values)
        key: bytes | None = None
        if key_at >= 0:
            key = values[key_at]
            if key is None:
                raise _keyless(layout)
            if key_read is not None:
                key = key_read(key)
        elif find_key is not None:
            key = find_key(values)
            if key is None:
                raise _keyless(layout)
        headers: Headers = []
        for name, at, read in columns:
            value = values[at]
            if value is not None:
                headers.append((name, value if read is None else read(value)))
        if append_members is not None:
            document = values[members_at]
            if document is not None:
                append_members(document, headers)
        if static:
            headers += static
        if provenance:
            headers += (
                ("cdc.lsn", b"%016x" % lsn),
                ("cdc.seq", b"%d" % seq),
                ("cdc.commit_ts", b"%d" % (commit_us // 1000)),
                ("cdc.slot", slot),
            )
        value = values[payload_at]
        if payload_read is not None and value is not None:
            value = payload_read(value)
        return (
            topic,
            None if partition is None else _partition(partition, values),
            key,
            value,
            commit_us // 1000 if timestamp is None else _timestamp(timestamp, values, commit_us),
            headers,
        )

    return encode


def _columns(layout: Layout) -> tuple[tuple[str, int, Reader | None], ...]:
    """The headers that are columns, in the contract's order."""
    named = [("id", layout.id), ("type", layout.type), ("version", layout.version), *layout.placed]
    return tuple((name, field.at, field.read) for name, field in named if field is not None)


def _keyless(layout: Layout) -> Unfit:
    return Unfit(
        "key",
        f"it has no key: {layout.key_described} is NULL or missing",
        f"name another source with --key, give up keys (and order) with --key none, or {LEAVE_OUT}",
    )


def _partition(field: Field, values: Values) -> int | None:
    raw = values[field.at]
    return None if raw is None else integer(raw, field.name)


def _timestamp(field: Field, values: Values, commit_us: int) -> int:
    """Milliseconds of the timestamp column; the commit's where it is NULL."""
    raw = values[field.at]
    moment = commit_us if raw is None else epoch_us(raw, field.name)
    if not 0 <= moment < NEVER:
        raise Unfit(
            "timestamp",
            f"its {field.name} is no time that Kafka takes: from 1970 to 9999",
            f"leave the timestamp to the commit, without outbox.columns.timestamp, or {LEAVE_OUT}",
        )
    return moment // 1000
