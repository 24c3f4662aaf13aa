"""Which columns are recognised, what is missing, and what a change of the table means for a running relay."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from typing import Any

import pytest

from cdc_outbox.errors import MappingError
from cdc_outbox.event import TableName
from cdc_outbox.postgres.pgoutput import Type
from cdc_outbox.table.mapping import Mapping, NoKey, Plan
from cdc_outbox.table.recognise import NAMES, Ambiguous, Shape
from tests.unit.mapped import (
    BYTEA,
    DEFAULT,
    ENUM,
    EVENT,
    INT4,
    INT8,
    JSONB,
    NUMERIC,
    TABLE_A,
    TABLE_B,
    TABLE_C,
    TEXT,
    TIMESTAMPTZ,
    UUID,
    Mapped,
    relation,
    settings,
)

EVERY = [(role, name) for role, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("role", "name"), EVERY)
def test_every_usual_name_is_recognised_whatever_its_case_and_underscores(role: str, name: str):
    camel = name.title().replace("_", "")
    for spelled in (name, name.upper(), name.title(), camel, camel[0].lower() + camel[1:], f"_{name}"):
        field = Shape(relation({"x": TEXT, spelled: JSONB}).columns).recognise(role)
        assert field is not None
        assert (field.name, field.at) == (spelled, 1)


@pytest.mark.parametrize("role", NAMES)
def test_the_order_of_the_list_wins_not_that_of_the_table(role: str):
    columns = dict.fromkeys(reversed(NAMES[role]), JSONB)
    field = Shape(relation(columns).columns).recognise(role)
    assert field is not None
    assert field.name == NAMES[role][0]


def test_an_exact_name_comes_before_one_in_capitals():
    assert Shape(relation({"ID": TEXT, "id": TEXT}).columns).recognise("id").at == 1  # type: ignore[union-attr]


def test_a_configured_column_comes_first():
    columns = {**DEFAULT, "Doc": JSONB, "Kind": TEXT}
    mapped = Mapped(columns, columns={"payload": "Doc", "aggregate_type": "kind"})
    encoded = mapped.encode(Doc="[]", Kind="Cart")
    assert (encoded[0], encoded[3]) == ("outbox.event.Cart", b"[]")
    assert mapped.plan.summary["payload"] == ("Doc", "configured")
    assert mapped.plan.ignored == ("aggregate_type", "payload")


def test_which_relations_are_ours():
    mapping = Mapping(settings(tables=(TableName("public", "Outbox"), TableName("app", "events"))), "s")
    assert mapping.wants(relation({}, name="Outbox"))
    assert not mapping.wants(relation({}, name="outbox"))
    assert not mapping.wants(relation({}, name="events"))


@pytest.mark.parametrize("columns", [TABLE_B, TABLE_C])
def test_a_table_without_aggregate_id_asks_for_a_key(columns: dict[str, int]):
    with pytest.raises(NoKey, match=r"public\.outbox has no aggregate id") as caught:
        Mapped(columns)
    assert caught.value.exit_code == 78
    for way_out in ("--key COLUMN", "payload:/", "--key none"):
        assert way_out in caught.value.next


OWN = {"eventUuid": UUID, "entityKind": TEXT, "entityRef": TEXT, "document": JSONB}


def test_all_that_a_table_lacks_is_told_at_once_and_one_round_mends_it():
    with pytest.raises(NoKey) as caught:
        Mapped(OWN)
    assert str(caught.value) == (
        "table public.outbox has no column that is recognised as id, as payload, as topic or aggregate type, or as "
        "aggregate id; its columns are eventUuid, entityKind, entityRef, document"
    )
    assert caught.value.next == (
        "name them with --column id=NAME, --column payload=NAME, --topic TEMPLATE or --column aggregate_type=NAME; "
        "name the key with --key COLUMN, or by JSON pointer, as --key payload:/order_id; or give up order with "
        "--key none"
    )
    assert Mapped(
        OWN,
        columns={"id": "eventUuid", "payload": "document", "aggregate_type": "entityKind"},
        key="entityRef",
    )


def test_what_a_table_lacks_besides_the_key_is_a_step_of_its_own():
    with pytest.raises(NoKey) as caught:
        Mapped({"id": UUID, "kind": TEXT, "payload": JSONB})
    assert "as topic or aggregate type, or as aggregate id" in str(caught.value)
    assert caught.value.besides == "name it with --topic TEMPLATE or --column aggregate_type=NAME"
    assert caught.value.payload is not None
    with pytest.raises(MappingError) as told:
        Mapped({"eventUuid": UUID, "kind": TEXT, "payload": JSONB}, key="kind")
    assert not isinstance(told.value, NoKey)
    assert "recognised as id, or as topic or aggregate type" in str(told.value)


def test_a_single_role_without_a_column_is_told_with_the_columns_that_there_are():
    with pytest.raises(MappingError, match="neither a topic column") as caught:
        Mapped({"id": UUID, "entityKind": TEXT, "aggregate_id": TEXT, "payload": JSONB})
    assert "--column aggregate_type=NAME: it has id, entityKind, aggregate_id, payload" in caught.value.next
    with pytest.raises(NoKey) as keyless:
        Mapped({"id": UUID, "topic": TEXT, "ref": TEXT, "payload": JSONB})
    assert "--key COLUMN, one of id, topic, ref, payload" in keyless.value.next


WRONG: list[tuple[str, Dict[str, int], dict[str, object], str, str]] = [
    ("no topic", {"id": UUID, "aggregate_id": TEXT, "payload": JSONB}, {}, "topic", "--topic"),
    ("no payload", {"id": UUID, "topic": TEXT, "aggregate_id": TEXT}, {}, "payload", "--column payload="),
    (
        "no id",
        {"topic": TEXT, "aggregate_id": TEXT, "payload": JSONB},
        {},
        "recognised as id",
        "--column id=",
    ),
    ("column", DEFAULT, {"columns": {"id": "nix"}}, "'nix'.*outbox.columns.id", "aggregate_type"),
    ("key column", DEFAULT, {"key": "nix"}, "'nix'.*outbox.key", "aggregate_id"),
    ("key constant", DEFAULT, {"key": "{{x}}"}, "same for all rows", "--key none"),
    ("key brace", DEFAULT, {"key": "{id"}, "brace at character 1", "--key"),
    ("key placeholder", DEFAULT, {"key": "{nix}"}, "'nix'.*outbox.key", "aggregate_id"),
    ("pointer", DEFAULT, {"key": "payload:id"}, "begins with a slash", "payload:/"),
    ("pointer tilde", DEFAULT, {"key": "payload:/a~2"}, "tilde", "payload:/"),
    ("pointer without payload", {"id": UUID, "topic": TEXT}, {"key": "payload:/a"}, "payload", "--column"),
    (
        "pointer into no document",
        {**DEFAULT, "payload": NUMERIC},
        {"key": "payload:/a"},
        "column payload of public.outbox: it is not json",
        "--key COLUMN",
    ),
    (
        "pointer without headers",
        {**TABLE_C, "id": UUID},
        {"key": "headers:/a"},
        "headers",
        "--column headers=",
    ),
    ("topic brace", DEFAULT, {"topic": "a}"}, "character 2", "--topic"),
    ("topic empty brace", DEFAULT, {"topic": "a{}"}, "character 2", "--topic"),
    ("topic nested brace", DEFAULT, {"topic": "{a{id}"}, "character 1", "--topic"),
    ("topic placeholder", DEFAULT, {"topic": "{nix}"}, "'nix'.*outbox.topic", "aggregate_type"),
    ("topic fixed illegal", DEFAULT, {"topic": "a b"}, "'a b' is illegal", "--topic"),
    ("topic part illegal", DEFAULT, {"topic": "x {event_type}"}, "no topic's name has 'x ' in it", "--topic"),
    ("topic part long", DEFAULT, {"topic": "x" * 249 + "{event_type}"}, "it takes 1 to 249", "--topic"),
    ("topic empty", DEFAULT, {"topic": ""}, "illegal", "--topic"),
    ("only", DEFAULT, {"only": {"nix": ("a",)}}, "'nix'.*outbox.only", "id"),
    ("header column", DEFAULT, {"headers": (("x", "nix"),)}, r"'nix'.*outbox\.header\.x", "id"),
    ("header cdc", DEFAULT, {"headers": (("cdc.x", "id"),)}, r"cdc\.x", "another"),
    ("header id", DEFAULT, {"headers": (("id", "event_type"),)}, "header id", "--column id=event_type"),
    ("header twice", DEFAULT, {"headers": (("x", "id"), ("x", "payload"))}, "twice", "outbox.header"),
    ("static cdc", DEFAULT, {"static_headers": (("cdc.x", "1"),)}, r"cdc\.x", "another"),
    ("static id", DEFAULT, {"static_headers": (("id", "1"),)}, "header id", "another"),
    ("static type", DEFAULT, {"static_headers": (("type", "1"),)}, "header type", "another"),
    ("headers type", {**DEFAULT, "h": BYTEA}, {"columns": {"headers": "h"}}, "column h", "--column headers="),
    ("timestamp type", {**DEFAULT, "t": NUMERIC}, {"columns": {"timestamp": "t"}}, "column t", "timestamp="),
    ("partition type", {**DEFAULT, "p": TEXT}, {"columns": {"partition": "p"}}, "column p", "partition="),
    ("profile", DEFAULT, {"profile": "nix"}, "'nix'", "auto"),
]


@pytest.mark.parametrize(
    ("columns", "changes", "message", "remedy"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
def test_what_settings_and_table_cannot_answer(
    columns: dict[str, int], changes: dict[str, Any], message: str, remedy: str
):
    with pytest.raises(MappingError, match=message) as caught:
        Mapped(columns, **changes)
    assert remedy in caught.value.next
    assert "\n" not in str(caught.value) + caught.value.next


CAMEL = {
    "id": INT8,
    "eventId": UUID,
    "aggregateType": TEXT,
    "aggregateId": TEXT,
    "eventType": TEXT,
    "eventVersion": INT4,
    "payload": JSONB,
    "createdAt": TIMESTAMPTZ,
    "nextRunAt": TIMESTAMPTZ,
    "sentAt": TIMESTAMPTZ,
}


def test_a_table_of_camel_case_is_read_as_one_with_underscores():
    mapped = Mapped(CAMEL)
    row = {"id": "7", "eventId": EVENT["id"], "aggregateType": "order", "aggregateId": "17", "payload": "{}"}
    topic, _, key, value, _, headers = mapped.encode(**row, eventType="OrderPlaced", eventVersion="2")
    assert (topic, key, value) == ("outbox.event.order", b"17", b"{}")
    assert headers == [("id", EVENT["id"].encode()), ("type", b"OrderPlaced"), ("version", b"2")]
    plan = mapped.plan
    assert plan.optional["created_at"].name == "createdAt"
    assert plan.optional["due"].name == "nextRunAt"
    assert plan.bookkeeping.sent is not None
    assert plan.bookkeeping.sent.field.name == "sentAt"
    assert plan.ignored == ("id",)
    assert "no header type" not in plan.describe()


def test_a_table_whose_events_have_no_type_says_so_unless_it_is_a_fixed_one():
    untyped = {name: oid for name, oid in DEFAULT.items() if name != "event_type"}
    assert "no header type (no column is recognised: --column type=NAME)" in Mapped(untyped).plan.describe()
    assert "no header type" not in Mapped(untyped, static_headers=(("type", "Placed"),)).plan.describe()


def test_a_column_may_be_named_in_double_quotes_as_sql_has_it():
    columns = {**DEFAULT, "orderRef": TEXT, "order_ref": TEXT, 'a "b"': TEXT, '"c"': TEXT}
    for key, column in (
        ('"orderRef"', "orderRef"),
        ('"a ""b"""', 'a "b"'),
        ('"c"', '"c"'),
        ('nix,"orderRef"', "orderRef"),
    ):
        assert Mapped(columns, key=key).plan.needed["key"].name == column
    assert Mapped(columns, columns={"type": '"orderRef"'}).plan.layout.type.name == "orderRef"  # type: ignore[union-attr]
    with pytest.raises(MappingError, match="no column '\"ORDERREF\"'"):
        Mapped(columns, key='"ORDERREF"')


@pytest.mark.parametrize(
    ("role", "one", "other"), [("payload", "Payload", "PAYLOAD"), ("id", "eventId", "EventID")]
)
def test_columns_that_differ_only_by_case_or_underscores_are_refused_unless_one_is_meant(
    role: str, one: str, other: str
):
    name = NAMES[role][0]
    shape = Shape(relation({one: TEXT, other: TEXT}).columns)
    alike = f'"{one}" and "{other}" differ only by case or underscores'
    with pytest.raises(Ambiguous, match=alike) as caught:
        shape.find(name)
    assert caught.value.next == "name the one that is meant as the table spells it; or rename the other"
    with pytest.raises(Ambiguous, match=alike) as caught:
        shape.recognise(role)
    assert f"--column {role}={one}" in caught.value.next
    assert shape.find(other).at == 1  # type: ignore[union-attr]
    exact = Shape(relation({one: TEXT, other: TEXT, name: TEXT}).columns)
    for found in (exact.recognise(role), exact.find(name)):
        assert found is not None
        assert found.at == 2


def test_a_role_may_be_named_for_each_of_several_tables():
    tables = (TableName("public", "outbox"), TableName("public", "second"))
    mapping = Mapping(settings(tables=tables, columns={"payload": "body,doc"}, key="customer, order"), "s")
    first = mapping.plan(relation({"id": UUID, "topic": TEXT, "body": TEXT, "customer": TEXT}))
    second = mapping.plan(relation({"id": UUID, "topic": TEXT, "doc": TEXT, "order": TEXT}, name="second"))
    assert [plan.layout.payload.name for plan in (first, second)] == ["body", "doc"]
    assert [plan.layout.key.name for plan in (first, second)] == ["customer", "order"]  # type: ignore[union-attr]
    assert Mapped(TABLE_A, key="aggregate_id,payload:/order_id").plan.summary["key"][0] == "aggregate_id"
    assert Mapped(TABLE_B, key="aggregate_id,payload:/a,b").plan.summary["key"][0] == "payload:/a,b"
    assert Mapped(TABLE_B, key="aggregate_id, nix, {topic},{bus}").plan.summary["key"][0] == "{topic},{bus}"
    assert Mapped(TABLE_B, key="aggregate_id,none").plan.layout.key is None
    with pytest.raises(MappingError, match="no column 'customer, order'") as caught:
        mapping.plan(relation({"id": UUID, "topic": TEXT, "doc": TEXT}, name="second"))
    assert "one for each table, with commas between" in caught.value.next


# Types that aren't built in


def described(table: dict[str, int], /, *types: tuple[int, str, str], **changes: object) -> Plan:
    """A plan for columns some of whose types the stream has described: OID, schema, name of the type under it."""
    mapping = Mapping(settings(**changes), "s")
    for oid, namespace, name in types:
        mapping.learn(Type(oid, namespace, name))
    return mapping.plan(relation(table))


def test_a_domain_over_bytea_is_bytes():
    columns = {**DEFAULT, "payload": 16501, "aggregate_id": 16501}
    plan = described(columns, (16501, "", "bytea"))
    row = [
        {**EVENT, "payload": "\\x00ff", "aggregate_id": "\\x6b"}[name] if name != "headers" else None
        for name in DEFAULT
    ]
    encoded = plan.encode([text.encode() if text is not None else None for text in row], 0, 0, 0)
    assert not isinstance(encoded, str)
    assert (encoded[2], encoded[3]) == (b"k", b"\x00\xff")


@pytest.mark.parametrize(
    ("role", "under", "fits"),
    [
        ("headers", "jsonb", True),
        ("headers", "numeric", False),
        ("partition", "int2", True),
        ("partition", "date", False),
        ("timestamp", "timestamptz", True),
        ("timestamp", "text", False),
        ("payload", "oid", False),
    ],
)
def test_a_domain_plays_what_its_type_can_play(role: str, under: str, fits: bool):
    columns = {**DEFAULT, "x": 16501}
    if fits:
        assert described(columns, (16501, "", under), columns={role: "x"}).summary[role] == (
            "x",
            "configured",
        )
        return
    with pytest.raises(MappingError, match=f"column x of public.outbox can't be the {role}"):
        described(columns, (16501, "", under), columns={role: "x"})


def test_a_status_under_a_domain_is_a_word_only_if_it_is_text():
    columns = {**DEFAULT, "status": 16501}
    assert described(columns, (16501, "", "varchar")).bookkeeping.sent is not None
    assert described(columns, (16501, "", "int4")).bookkeeping.sent is None
    assert described(columns, (16501, "shop", "state")).bookkeeping.sent is not None


def test_an_hstore_is_headers():
    columns = {**DEFAULT, "headers": 16501}
    plan = described(columns, (16501, "public", "hstore"))
    row: list[bytes | None] = [EVENT[name].encode() if name in EVENT else None for name in DEFAULT]
    row[list(DEFAULT).index("headers")] = b'"a"=>"1", "b \\"c"=>"d\\\\e", "n"=>NULL, "id"=>"lost"'
    encoded = plan.encode(row, 0, 0, 0)
    assert not isinstance(encoded, str)
    assert encoded[5][3:] == [("a", b"1"), ('b "c', b"d\\e")]
    assert plan.dropped == {"id": 1}


def test_types_made_by_users_are_taken_at_their_word():
    mapped = Mapped({**DEFAULT, "p": ENUM, "h": ENUM}, columns={"partition": "p", "headers": "h"})
    assert mapped.encode(p="2", h='{"a": "1"}')[1] == 2


# F14: the table changes while we run


def plans(before: dict[str, int], after: dict[str, int], **changes: object) -> tuple[Plan, Plan]:
    mapping = Mapping(settings(**changes), "s")
    first = mapping.plan(relation(before))
    return first, mapping.plan(relation(after), first)


def without(*names: str) -> dict[str, int]:
    return {name: oid for name, oid in DEFAULT.items() if name not in names}


@pytest.mark.parametrize("role", ["id", "aggregate_type", "aggregate_id", "payload"])
@pytest.mark.parametrize("renamed", [False, True])
def test_a_needed_column_that_is_gone_is_named(role: str, renamed: bool):
    after = (
        {("new" if name == role else name): oid for name, oid in DEFAULT.items()}
        if renamed
        else without(role)
    )
    with pytest.raises(
        MappingError, match=rf"column {role} of public\.outbox, .* was dropped or renamed"
    ) as caught:
        plans(DEFAULT, after)
    assert f"--column {role}=NEW,{role}" in caught.value.next


def test_the_remedy_for_a_renamed_column_reads_old_and_new_rows():
    columns = {"aggregate_id": "entity,aggregate_id"}
    old = Mapped(columns=columns)
    new = Mapped({("entity" if n == "aggregate_id" else n): o for n, o in DEFAULT.items()}, columns=columns)
    assert old.key() == b"order-17"
    assert new.key(entity="order-18") == b"order-18"


def test_any_column_may_be_named_by_its_new_and_its_old_name():
    changes: dict[str, Any] = {
        "key": "customer,client",
        "topic": "t.{region,area}",
        "headers": (("who", "customer, client"),),
    }
    old = Mapped({**DEFAULT, "client": TEXT, "area": TEXT}, **changes).encode(client="c", area="eu")
    new = Mapped({**DEFAULT, "customer": TEXT, "region": TEXT}, **changes).encode(customer="c", region="eu")
    assert old == new
    assert old[0] == "t.eu"
    assert Mapped({**DEFAULT, "a,b": TEXT, "a": TEXT}, key="a,b").key(**{"a,b": "x", "a": "y"}) == b"x"


def test_a_topic_column_that_is_gone_does_not_silently_change_topics():
    with pytest.raises(MappingError, match=r"column topic of"):
        plans({**DEFAULT, "topic": TEXT}, DEFAULT)


def test_a_bus_column_that_is_gone_does_not_silently_send_all_rows():
    with pytest.raises(MappingError, match="column bus of"):
        plans({**DEFAULT, "bus": TEXT}, DEFAULT)


def test_another_id_does_not_silently_take_the_place_of_one_that_is_gone():
    with pytest.raises(MappingError, match="column event_id of"):
        plans({"event_id": UUID, **DEFAULT}, DEFAULT)


def test_a_configured_column_that_is_gone_is_named():
    with pytest.raises(MappingError, match=r"'note' of .*outbox.header.note.* was dropped or renamed"):
        plans({**DEFAULT, "note": TEXT}, DEFAULT, headers=(("note", "note"),))


def test_a_column_renamed_to_another_usual_name_goes_on():
    after = {("entity_id" if name == "aggregate_id" else name): oid for name, oid in DEFAULT.items()}
    _, plan = plans(DEFAULT, after)
    assert plan.summary["key"] == ("entity_id", "recognised")


def test_added_columns_are_taken_up():
    before, after = plans(without("headers"), DEFAULT)
    assert "headers" not in before.summary
    assert after.summary["headers"] == ("headers", "recognised")
    _, after = plans(DEFAULT, {"event_id": UUID, **DEFAULT})
    assert after.summary["id"] == ("event_id", "recognised")


def test_optional_columns_that_are_gone_are_told():
    before, after = plans(DEFAULT, without("event_type", "event_version", "created_at"))
    assert after.lost(before) == ("type", "version", "created_at")


def test_columns_are_found_by_name_wherever_they_stand():
    mapped = Mapped(dict(reversed(DEFAULT.items())))
    assert mapped.encode()[2:4] == (b"order-17", EVENT["payload"].encode())
    assert Mapped({"extra": INT4, **DEFAULT}).encode(extra="1")[2] == b"order-17"
