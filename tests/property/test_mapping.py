"""Whatever a row holds, it becomes one legal message, is left out by rule, or is poison."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc_outbox.errors import MappingError, PoisonEvent
from cdc_outbox.event import TableName, quote
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.table import hstore, members, pointer, template, topic
from cdc_outbox.table.mapping import Mapping
from cdc_outbox.table.recognise import NAMES
from cdc_outbox.table.unfit import Unfit
from tests.unit.libraries import LIBRARIES, Library
from tests.unit.mapped import (
    BOOL,
    BYTEA,
    DEFAULT,
    ENUM,
    INT8,
    JSON,
    JSONB,
    LSN,
    NUMERIC,
    TABLE_A,
    TABLE_B,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    relation,
    settings,
)
from tests.unit.scripted import COMMIT_US

TYPES = [BOOL, BYTEA, INT8, JSON, JSONB, NUMERIC, TEXT, TIMESTAMP, TIMESTAMPTZ, UUID, ENUM]
ALL = {
    **TABLE_A,
    **TABLE_B,
    **DEFAULT,
    "at": TIMESTAMPTZ,
    "since": INT8,
    "shard": INT8,
    "blob": BYTEA,
}
EVERYTHING = settings(
    columns={"timestamp": "at", "partition": "shard"},
    key="payload:/order/0",
    headers=(("blob", "blob"), ("note", "last_error")),
    static_headers=(("source", "shop"),),
    provenance=True,
)
FINE = {
    "id": b"7",
    "aggregate_type": b"order",
    "aggregate_id": b"o-7",
    "topic": b"orders",
    "payload": b'{"order": ["o-7"]}',
    "event_id": b"e-7",
    "event_type": b"OrderPlaced",
    "event_version": b"1",
    "bus": b"kafka",
    "status": b"pending",
    "headers": b'{"a": "1", "n": 1.50}',
    "at": b"2024-01-17 13:14:10.25+00",
    "blob": b"\\x00ff",
}
LEGAL = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,249}\Z")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.text(max_size=6), st.sampled_from(["id", "type", "cdc.x", "note"])),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
json_texts = st.builds(
    lambda document, ascii_only, gap: json.dumps(
        document, ensure_ascii=ascii_only, separators=("," + gap, gap + ":")
    ).encode("utf-8", "surrogatepass"),
    documents,
    st.booleans(),
    st.sampled_from(["", " ", "\n\t "]),
)
cells = st.one_of(
    st.none(),
    st.binary(max_size=12),
    json_texts,
    st.sampled_from(
        [
            b"kafka",
            b"pending",
            b"sent",
            b"\\x00ff",
            b"\\x",
            b"0",
            b"17",
            b"-1",
            b"1" * 30,
            b"2024-01-17 13:14:10.25+00",
            b"2024-01-17 13:14:10",
            b"infinity",
            b"-infinity",
            b"0044-03-15 00:00:00 BC",
            b"294276-12-31 23:59:59+00",
            b"orders",
            b"{}",
            b'{"order": ["k"]}',
            b'{"order": [1.50]}',
        ]
    ),
)


def check(encoded: object, static: set[str]) -> None:
    if isinstance(encoded, str):
        assert encoded in {"only", "bus", "sent"}
        return
    assert isinstance(encoded, tuple)
    name, partition, key, value, milliseconds, headers = encoded
    assert LEGAL.match(name)
    assert partition is None or isinstance(partition, int)
    assert key is None or type(key) is bytes
    assert value is None or type(value) is bytes
    assert 0 <= milliseconds < 2**63 // 1000
    names = [header for header, _ in headers]
    assert len(names) == len(set(names))
    assert static <= set(names)
    for header, content in headers:
        header.encode()
        assert type(content) is bytes


@given(st.dictionaries(st.sampled_from(list(ALL)), cells))
@example({})
def test_a_plan_of_every_part_raises_nothing_but_poison(changed: dict[str, bytes | None]):
    plan = Mapping(EVERYTHING, "s").plan(relation(ALL))
    row = {**FINE, **changed}
    values = [row.get(name) for name in ALL]
    poison: PoisonEvent | None = None
    try:
        check(
            plan.encode(values, LSN, 0, COMMIT_US),
            {"source", "cdc.lsn", "cdc.seq", "cdc.commit_ts", "cdc.slot"},
        )
    except PoisonEvent as caught:
        poison = caught
    if poison is not None:
        assert poison.reason in {"topic", "key", "headers", "timestamp", "column", "scheduled"}
        assert poison.event_id == plan.event_id(values)
        assert "\n" not in str(poison)
    assert list(plan.raw(values)) == list(ALL)


names = st.sampled_from(
    [name for usual in NAMES.values() for name in usual] + ["status", "sent_at", "next_run_at", "X"]
)


@given(st.dictionaries(names, st.sampled_from(TYPES), max_size=14), st.data())
def test_any_table_is_mapped_or_refused_by_name(columns: dict[str, int], data: st.DataObject):
    key = data.draw(st.sampled_from([None, "none", "payload:/id", "{id}-{X}", "X", "{", "payload:x"]))
    topics = data.draw(st.sampled_from([None, "orders", "{aggregate_type}.{event_type}", "{X}", "}"]))
    try:
        plan = Mapping(settings(key=key, topic=topics), "s").plan(relation(columns))
    except MappingError:
        return
    assert plan.describe()
    values = [data.draw(cells) for _ in columns]
    with suppress(PoisonEvent):
        check(plan.encode(values, LSN, 0, COMMIT_US), set())


@given(st.sampled_from(LIBRARIES), st.data())
def test_any_row_of_a_librarys_table_is_a_message_left_out_or_poison(library: Library, data: st.DataObject):
    flags = dict(pairwise(library.flags))
    table = TableName(library.schema, library.table)
    columns = tuple(Column(name, oid, -1, False) for name, oid in library.columns.items())
    mapping = Mapping(settings(tables=(table,), key=flags.get("--key"), topic=library.topic or "orders"), "s")
    plan = mapping.plan(Relation(1, table.schema, table.name, "d", columns))
    row = {name: text.encode() for name, text in library.row.items()}
    row |= data.draw(st.dictionaries(st.sampled_from(list(library.columns)), cells, max_size=4))
    with suppress(PoisonEvent):
        check(plan.encode([row.get(name) for name in library.columns], LSN, 0, COMMIT_US), set())


def printed(pairs: dict[str, str | None]) -> bytes:
    """As PostgreSQL prints an hstore."""

    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    return ", ".join(
        f"{quoted(name)}=>{'NULL' if value is None else quoted(value)}" for name, value in pairs.items()
    ).encode()


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


@given(st.dictionaries(texts, st.none() | texts, max_size=5))
def test_an_hstore_reads_back_what_is_printed(pairs: dict[str, str | None]):
    expected = {name: None if value is None else value.encode() for name, value in pairs.items()}
    assert hstore.pairs(printed(pairs), "h") == expected


@given(st.binary(max_size=40))
def test_other_text_is_no_hstore_or_one(raw: bytes):
    with suppress(Unfit):
        hstore.pairs(raw, "h")


@given(st.binary(max_size=300))
@example(b"x" * 249)
@example(b"x" * 250)
@example(b".")
@example(b"..")
@example(b"a\n")
def test_a_topic_name_is_legal_or_refused(raw: bytes):
    if LEGAL.match(raw.decode("latin-1")):
        assert topic.check(raw).encode() == raw
        return
    with pytest.raises(Unfit) as caught:
        topic.check(raw)
    assert len(str(caught.value)) < 500


def spelled(value: Any) -> bytes | None:
    """What the contract says of a member, by way of the standard library."""
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@given(st.dictionaries(st.text(max_size=6), documents, max_size=5), st.sampled_from(["", " ", "\n\t "]))
def test_members_are_spelled_as_the_document_has_them(document: dict[str, Any], gap: str):
    text = json.dumps(document, ensure_ascii=False, separators=("," + gap, gap + ":" + gap))
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    dropped: dict[str, int] = {}
    found: list[tuple[str, bytes]] = []
    members.compile("headers", {"id", "type"}, dropped)(raw, found)
    expected = [
        (name, spelled(value))
        for name, value in document.items()
        if value is not None and name not in {"id", "type"} and not name.startswith("cdc.")
    ]
    assert found == expected


@given(documents, st.lists(st.text(max_size=4), max_size=3))
def test_a_pointer_shows_what_a_plain_walk_shows(document: Any, tokens: list[str]):
    try:
        raw = json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    text = "".join("/" + token.replace("~", "~0").replace("/", "~1") for token in tokens)
    assert pointer.parse(text) == tuple(tokens)
    value = document
    for token in tokens:
        value = value.get(token) if isinstance(value, dict) else None
    if not isinstance(document, dict) and tokens:
        return
    find = pointer.compile(text)
    if isinstance(value, dict | list):
        with pytest.raises(Unfit):
            find(raw)
    elif not any(isinstance(part, list) for part in _parts(document, tokens)):
        assert find(raw) == spelled(value)


def _parts(document: Any, tokens: list[str]) -> list[Any]:
    parts = [document]
    for token in tokens:
        parts.append(parts[-1].get(token) if isinstance(parts[-1], dict) else None)
    return parts


@given(st.text(alphabet="{}ab", max_size=12))
def test_templates_are_read_or_refused(text: str):
    try:
        pieces = template.parse(text)
    except ValueError:
        return
    escaped = "".join(
        literal.replace("{", "{{").replace("}", "}}") + (f"{{{name}}}" if name else "")
        for literal, name in pieces
    )
    assert escaped == text


@given(
    st.text(min_size=1).filter(lambda text: "\0" not in text),
    st.text(min_size=1).filter(lambda t: "\0" not in t),
)
def test_a_table_name_reads_back_what_it_prints(schema: str, name: str):
    table = TableName(schema, name)
    assert TableName.parse(str(table)) == table
    if str(table) == f"{schema}.{name}":
        assert quote(schema) == schema
