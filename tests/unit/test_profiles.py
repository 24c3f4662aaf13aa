"""The outbox tables of libraries: recognised by name and columns together, and nothing else is taken for one."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from cdc_outbox.errors import MappingError, PoisonEvent
from cdc_outbox.event import Encoded, TableName
from cdc_outbox.postgres.pgoutput import Column, Relation
from cdc_outbox.table.mapping import Mapping, NoKey, Plan
from cdc_outbox.table.profiles import BY_NAME, PROFILES
from cdc_outbox.table.recognise import Shape
from tests.unit.libraries import (
    AXON,
    CAP,
    DJANGO,
    EVENTUATE,
    LIBRARIES,
    MASSTRANSIT,
    MODULITH,
    NSERVICEBUS,
    OID,
    WOLVERINE,
    Library,
)
from tests.unit.mapped import JSONB, LSN, TEXT, settings
from tests.unit.scripted import COMMIT_US

each_library = pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.profile)


def plan(library: Library, name: str | None = None, **changes: object) -> Plan:
    flags = dict(pairwise(library.flags))
    configured = {"key": flags.get("--key"), "topic": None if library.topic else "orders", **changes}
    table = TableName(library.schema, name or library.table)
    columns = tuple(Column(column, oid, -1, False) for column, oid in library.columns.items())
    mapping = Mapping(settings(tables=(table,), **configured), "s")
    return mapping.plan(Relation(1, table.schema, table.name, "d", columns))


def encode(library: Library, compiled: Plan | None = None, /, **cells: str | None) -> Encoded | str:
    row = {**library.row, **cells}
    values = [text.encode() if (text := row.get(name)) is not None else None for name in library.columns]
    return (compiled or plan(library)).encode(values, LSN, 0, COMMIT_US)


def marked(library: Library, **cells: str | None) -> bool:
    result = encode(library, **cells)
    assert result == "sent" or not isinstance(result, str)
    return result == "sent"


@each_library
def test_is_recognised_by_itself(library: Library):
    compiled = plan(library)
    assert compiled.describe().startswith(f"profile {library.profile} (recognised); ")
    encoded = encode(library, compiled)
    assert not isinstance(encoded, str)
    topic, _, key, value, _, headers = encoded
    assert topic == (library.topic or "orders")
    assert key == library.key
    assert {name: text.decode() for name, text in headers} == library.headers
    payload = library.row[compiled.layout.payload.name]
    assert value == (bytes.fromhex(payload[2:]) if payload.startswith("\\x") else payload.encode())


@each_library
def test_is_taken_by_its_name_where_the_table_has_another(library: Library):
    compiled = plan(library, "renamed", profile=library.profile)
    assert compiled.describe().startswith(f"profile {library.profile} (configured); ")
    assert encode(library, compiled) == encode(library)


@each_library
def test_another_name_or_a_missing_column_is_not_taken_for_it(library: Library):
    def taken(table: str, columns: dict[str, int]) -> bool:
        changed = replace(library, table=table, columns=columns)
        try:
            return "profile" in plan(changed, key="none", topic="t").describe()
        except MappingError:
            return False

    assert taken(library.table, library.columns)
    assert not taken("outbox", library.columns)
    distinctive = BY_NAME[library.profile].distinctive
    for name in library.columns:
        if name.lower().replace("_", "") in distinctive:
            rest = {column: oid for column, oid in library.columns.items() if column != name}
            assert not taken(library.table, rest), name


@each_library
def test_none_goes_by_the_usual_names(library: Library):
    try:
        compiled = plan(library, profile="none", key="none", topic="t")
    except MappingError:
        return
    assert "profile" not in compiled.describe()


@each_library
def test_a_profile_that_does_not_fit_is_refused(library: Library):
    other = AXON if library is not AXON else CAP
    with pytest.raises(MappingError, match=BY_NAME[other.profile].product) as caught:
        plan(library, profile=other.profile)
    assert "has no column like" in str(caught.value)
    assert "--profile" in caught.value.next


@each_library
def test_what_is_configured_comes_first(library: Library):
    column = next(iter(library.columns))
    compiled = plan(library, columns={"id": column}, key=column, topic="mine")
    assert compiled.layout.id.name == column
    assert compiled.summary["id"][1] == "configured"
    encoded = encode(library, compiled, **{column: "1"})
    assert not isinstance(encoded, str)
    assert (encoded[0], encoded[2]) == ("mine", b"1")


@pytest.mark.parametrize("library", [MASSTRANSIT, WOLVERINE, MODULITH, DJANGO], ids=lambda each: each.profile)
def test_a_table_without_a_key_says_where_one_may_be(library: Library):
    with pytest.raises(NoKey) as caught:
        plan(library, key=None)
    assert "--key none" in caught.value.next
    assert caught.value.payload is None


@pytest.mark.parametrize("library", [MASSTRANSIT, WOLVERINE, MODULITH], ids=lambda each: each.profile)
def test_a_table_without_topics_says_so(library: Library):
    with pytest.raises(MappingError, match="neither a topic column") as caught:
        plan(library, topic=None)
    assert BY_NAME[library.profile].topic_advice == caught.value.next
    with pytest.raises(NoKey) as both:
        plan(library, topic=None, key=None)
    assert both.value.besides == BY_NAME[library.profile].topic_advice
    assert both.value.next.endswith(BY_NAME[library.profile].key_advice)


def test_names_may_be_in_another_convention():
    snake = {
        "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:]: oid
        for name, oid in MASSTRANSIT.columns.items()
    }
    row = dict(zip(snake, (MASSTRANSIT.row.get(name) for name in MASSTRANSIT.columns), strict=True))
    library = replace(
        MASSTRANSIT, table="outbox_message", columns=snake, row={k: v for k, v in row.items() if v}
    )
    assert encode(library) == encode(MASSTRANSIT)


@pytest.mark.parametrize("library", [CAP, EVENTUATE], ids=lambda each: each.profile)
@pytest.mark.parametrize("document", ["{}", '{"Headers": {"cap-kafka-key": null}, "PARTITION_ID": ""}'])
def test_a_row_without_the_librarys_own_key_has_its_id_as_key(library: Library, document: str):
    column = plan(library).layout.payload.name if library is CAP else "headers"
    encoded = encode(library, **{column: document})
    assert not isinstance(encoded, str)
    assert encoded[2] == next(iter(library.row.values())).encode()


def test_what_marks_a_row_as_sent():
    assert [marked(CAP, StatusName=word) for word in ("Scheduled", "Failed", "Succeeded", "succeeded")] == [
        *(False, False, True, True)
    ]
    assert [marked(EVENTUATE, published=flag) for flag in ("0", None, "1")] == [False, False, True]
    assert [marked(DJANGO, status=number) for number in ("1", "-1", "2")] == [False, False, True]
    assert not marked(MODULITH, status="PUBLISHED")
    assert marked(MODULITH, completion_date="2024-01-17 13:14:10+00")
    # When the application sent it into the outbox, which is no mark of a relay.
    assert not marked(MASSTRANSIT, SentTime="2024-01-17 13:14:10+00")
    assert not marked(AXON)
    assert not marked(WOLVERINE)


def test_what_waits_is_known_to_those_who_read_the_table():
    books = {library.profile: plan(library).bookkeeping for library in LIBRARIES}
    assert [name for name, book in books.items() if book.deleted] == ["masstransit", "wolverine"]
    assert [name for name, book in books.items() if book.sent is None and not book.deleted] == ["axon"]
    cap, django, modulith = books["cap"], books["django-outbox-pattern"], books["spring-modulith"]
    assert cap.failed is not None
    assert cap.failed.retried == {"failed"}
    assert [(mark.field.name, mark.words) for mark in cap.marks] == [
        ("StatusName", ("Succeeded",)),
        ("ExpiresAt", ()),
    ]
    assert django.failed is not None
    assert django.failed.given_up == {"-1"}
    assert [(mark.field.name, mark.words) for mark in modulith.marks] == [
        ("completion_date", ()),
        ("status", ("COMPLETED",)),
    ]


def test_only_the_externalizers_publications_of_spring_modulith_are_sent():
    compiled = plan(MODULITH)
    assert encode(MODULITH, compiled, listener_id="com.example.Mailer.on(java.lang.Object)") == "bus"
    assert compiled.other_buses == {"com.example.Mailer.on(java.lang.Object)": None}
    mine = plan(MODULITH, only={"listener_id": ("mine",)})
    assert encode(MODULITH, mine) == "bus"
    assert not isinstance(encode(MODULITH, mine, listener_id="mine"), str)


def test_a_message_of_masstransit_that_is_due_later_is_poison():
    with pytest.raises(PoisonEvent, match="EnqueueTime"):
        encode(MASSTRANSIT, EnqueueTime="2099-01-01 00:00:00+00")


def test_axons_payload_as_a_large_object_is_refused():
    with pytest.raises(MappingError, match="large object") as caught:
        plan(replace(AXON, columns={**AXON.columns, "payload": OID}))
    assert "bytea" in caught.value.next


@pytest.mark.parametrize("profile", ["auto", "nservicebus"])
def test_nservicebus_is_refused_with_the_reason(profile: str):
    _, columns = NSERVICEBUS
    library = replace(CAP, schema="public", table="SalesOutboxData", columns=columns)
    with pytest.raises(MappingError, match=r"NServiceBus \(profile nservicebus\).*one JSON column") as caught:
        plan(library, profile=profile)
    assert "init --create-table --table public.outbox" in caught.value.next


def test_every_profile_is_named_and_has_its_own_columns():
    shapes = {
        library.profile: Shape([Column(n, o, -1, False) for n, o in library.columns.items()])
        for library in LIBRARIES
    }
    assert {*shapes, "nservicebus"} == {profile.name for profile in PROFILES}
    for profile in PROFILES:
        if profile.refused:
            continue
        for role, names in profile.columns.items():
            assert any(shapes[profile.name].find(name) is not None for name in names), role


def test_usual_names_beside_a_librarys_are_not_its_roles():
    """A table of one's own that is called `message` or `published` stays one's own."""
    own = replace(
        CAP,
        schema="public",
        table="published",
        columns={"id": TEXT, "topic": TEXT, "aggregate_id": TEXT, "payload": JSONB},
    )
    assert plan(own).summary["key"] == ("aggregate_id", "recognised")
