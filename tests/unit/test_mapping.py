"""The message of a row: topic, key, value, timestamp, partition, as the contract has them."""

from __future__ import annotations

import pytest

from cdc_outbox.errors import PoisonEvent
from tests.unit.mapped import (
    BYTEA,
    DEFAULT,
    ENUM,
    EVENT,
    INT4,
    INT8,
    JSON,
    JSONB,
    LSN,
    NUMERIC,
    TABLE_A,
    TABLE_B,
    TABLE_C,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    Mapped,
)
from tests.unit.scripted import COMMIT_US


def test_the_default_table_needs_no_settings():
    mapped = Mapped()
    assert mapped.encode() == (
        "outbox.event.order",
        None,
        b"order-17",
        b'{"a": 1}',
        1_705_497_250_250,
        [("id", EVENT["id"].encode()), ("type", b"OrderPlaced"), ("version", b"1")],
    )
    assert mapped.plan.summary["topic"] == ("outbox.event.{aggregate_type}", "recognised")
    assert mapped.plan.summary["key"] == ("aggregate_id", "recognised")
    assert mapped.plan.ignored == ()


def test_table_a_of_a_polling_relay_needs_no_settings():
    mapped = Mapped(TABLE_A, row={"id": "1", "topic": "orders", "aggregate_id": "o-1", "payload": "{}"})
    assert mapped.encode(status="pending") == (
        "orders",
        None,
        b"o-1",
        b"{}",
        1_705_497_250_250,
        [("id", b"1")],
    )
    assert mapped.plan.ignored == ("attempts", "locked_by", "locked_at", "last_error", "sent_at")


def test_table_b_with_a_key_from_its_payload():
    mapped = Mapped(TABLE_B, key="payload:/order_id")
    encoded = mapped.encode(
        id="7", event_id="e-7", bus="kafka", topic="orders", payload='{"order_id": "o-7"}', status="pending"
    )
    assert encoded[0] == "orders"
    assert encoded[2] == b"o-7"
    assert encoded[5] == [("id", b"e-7")]
    assert "id" in mapped.plan.ignored


def test_table_c_with_its_key_given_up():
    mapped = Mapped(TABLE_C, key="none")
    assert mapped.encode(id="1", topic="orders", payload="{}")[:3] == ("orders", None, None)


# Topic


def test_the_topic_column_comes_before_the_aggregate_type():
    mapped = Mapped({**DEFAULT, "topic": TEXT})
    assert mapped.topic(topic="orders") == "orders"
    assert mapped.topic(topic=None) == "outbox.event.order"
    assert mapped.topic(topic="") == "outbox.event.order"
    assert mapped.topic(topic="orders") == "orders"


def test_the_case_of_the_aggregate_type_is_kept():
    assert Mapped().topic(aggregate_type="OrderLine") == "outbox.event.OrderLine"


def test_a_template_replaces_topic_column_and_aggregate_type():
    mapped = Mapped(
        {**DEFAULT, "topic": TEXT, "Region": TEXT}, topic="{aggregate_type}.{event_type}.{Region}"
    )
    assert mapped.topic(topic="other", Region="eu") == "order.OrderPlaced.eu"
    assert "topic" in mapped.plan.ignored
    with pytest.raises(PoisonEvent, match="NULL or empty") as caught:
        mapped.topic(topic="other", Region=None)
    assert caught.value.reason == "topic"


def test_a_template_names_roles_whatever_their_columns_are_called():
    columns = {"id": UUID, "AggregateType": TEXT, "aggregateid": TEXT, "type": TEXT, "payload": JSONB}
    mapped = Mapped(columns, topic="{aggregate_type}-{event_type}")
    row = {"id": "1", "AggregateType": "Order", "aggregateid": "7", "type": "Placed", "payload": "{}"}
    assert mapped.topic(**row) == "Order-Placed"


def test_a_template_without_braces_is_one_topic_for_all_rows():
    assert Mapped(topic="orders").topic(aggregate_type=None) == "orders"


@pytest.mark.parametrize("kind", [None, ""])
def test_every_source_empty_is_poison(kind: str | None):
    mapped = Mapped({**DEFAULT, "topic": TEXT})
    with pytest.raises(PoisonEvent, match="topic and aggregate_type is NULL or empty") as caught:
        mapped.encode(aggregate_type=kind)
    assert caught.value.reason == "topic"


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "outbox.event."])
def test_legal_topic_names(name: str):
    assert Mapped({**DEFAULT, "topic": TEXT}).topic(topic=name) == name


@pytest.mark.parametrize("name", [".", "..", "a b", "a/b", "a:b", "größe", "x" * 250, "a\n", " a", "{a}"])
def test_illegal_topic_names_are_poison_and_named(name: str):
    mapped = Mapped({**DEFAULT, "topic": TEXT})
    for _ in range(2):  # a refusal is remembered no better than a legal name
        with pytest.raises(PoisonEvent, match="illegal") as caught:
            mapped.encode(topic=name)
        assert repr(name)[1:-1][:200] in str(caught.value)
        assert caught.value.reason == "topic"


def test_a_topic_of_stray_bytes_is_poison():
    with pytest.raises(PoisonEvent, match=r"\\\\xff"):
        Mapped({**DEFAULT, "topic": TEXT}).encode(topic=b"\xff")


def test_more_topics_than_are_remembered():
    mapped = Mapped({**DEFAULT, "topic": TEXT})
    for number in range(5000):
        assert mapped.topic(topic=f"t{number}") == f"t{number}"
    assert len(mapped.plan.layout.topics.known) <= 4096


# Key


def test_a_bytea_key_is_its_bytes():
    assert Mapped({**DEFAULT, "aggregate_id": BYTEA}).key(aggregate_id="\\x00ff10") == b"\x00\xff\x10"
    assert Mapped({**DEFAULT, "aggregate_id": BYTEA}).key(aggregate_id="\\x") == b""


@pytest.mark.parametrize("text", ["\\000abc", "", "\\x0", "\\xzz"])
def test_bytea_in_another_form_than_hex_is_poison(text: str):
    with pytest.raises(PoisonEvent, match="aggregate_id") as caught:
        Mapped({**DEFAULT, "aggregate_id": BYTEA}).key(aggregate_id=text)
    assert caught.value.reason == "column"


@pytest.mark.parametrize(
    ("type_oid", "text"), [(INT8, "-42"), (UUID, EVENT["id"]), (NUMERIC, "1.50"), (ENUM, "x")]
)
def test_other_keys_are_sent_as_postgresql_prints_them(type_oid: int, text: str):
    assert Mapped({**DEFAULT, "aggregate_id": type_oid}).key(aggregate_id=text) == text.encode()


def test_the_empty_key_is_a_key():
    assert Mapped().key(aggregate_id="") == b""


def test_a_null_key_is_poison_unless_keys_are_given_up():
    with pytest.raises(PoisonEvent, match="aggregate_id is NULL") as caught:
        Mapped().encode(aggregate_id=None)
    assert caught.value.reason == "key"
    assert Mapped(key="none").key(aggregate_id=None) is None
    assert Mapped(key="none").key(aggregate_id="x") is None


def test_a_key_from_another_column():
    mapped = Mapped({**DEFAULT, "Customer": TEXT}, key="customer")
    assert mapped.key(Customer="c-1") == b"c-1"
    assert "aggregate_id" in mapped.plan.ignored
    with pytest.raises(PoisonEvent, match="Customer is NULL"):
        mapped.key(Customer=None)


def test_a_key_from_a_template():
    mapped = Mapped({**DEFAULT, "tenant": BYTEA}, key="{tenant}:{{{aggregate_id}}}")
    assert mapped.key(tenant="\\xff") == b"\xff:{order-17}"
    assert mapped.key(tenant="\\x", aggregate_id="") == b":{}"
    with pytest.raises(PoisonEvent) as caught:
        mapped.key(tenant="\\xff", aggregate_id=None)
    assert caught.value.reason == "key"
    assert Mapped(key="{aggregate_id}").key() == b"order-17"


@pytest.mark.parametrize(
    ("pointer", "payload", "key"),
    [
        ("/id", '{"id": "a"}', b"a"),
        ("/id", '{"id": ""}', b""),
        ("/id", '{"id": "\\u00e4"}', "ä".encode()),
        ("/id", '{"id": 42}', b"42"),
        ("/id", '{"id": 0}', b"0"),
        ("/id", '{"id": -0}', b"-0"),
        ("/id", '{"id": 1.50}', b"1.50"),
        ("/id", '{"id": 1e400}', b"1e400"),
        ("/id", '{"id": 123456789012345678901234567890}', b"123456789012345678901234567890"),
        ("/id", '{"id": 9223372036854775808}', b"9223372036854775808"),
        ("/id", '{"id": true}', b"true"),
        ("/id", '{"id": false}', b"false"),
        ("/order/id", '{"order": {"id": "a"}}', b"a"),
        ("/lines/1/sku", '{"lines": [{"sku": "a"}, {"sku": "b"}]}', b"b"),
        ("/a~1b/m~0n", '{"a/b": {"m~n": "x"}}', b"x"),
        ("/~01", '{"~1": "x"}', b"x"),
        ("/", '{"": "x"}', b"x"),
        ("/ä", '{"ä": "x"}', b"x"),
        ("", '"whole"', b"whole"),
        ("/id", '{"id": "first", "id": "last"}', b"last"),
    ],
)
def test_a_key_by_json_pointer(pointer: str, payload: str, key: bytes):
    assert Mapped(key=f"payload:{pointer}").key(payload=payload) == key


@pytest.mark.parametrize(
    ("pointer", "payload"),
    [
        ("/id", "{}"),
        ("/id", '{"id": null}'),
        ("/id", "[1]"),
        ("/id", '"text"'),
        ("/id/more", '{"id": "text"}'),
        ("/01", '["a", "b"]'),
        ("/-", '["a", "b"]'),
        ("/2", '["a", "b"]'),
        ("/99999999999999999999", '["a", "b"]'),
        ("/id", '{"id": {"x": 1}}'),
        ("/id", '{"id": []}'),
        ("/id", '{"id": 1.5e3, "x": '),
        ("/id", "not json"),
        ("/id", "[" * 100_000),
        ("/id", '{"id": "\\ud800"}'),
        ("/id", '{"id": NaN}'),
        ("/id", None),
    ],
)
def test_a_pointer_that_shows_no_key_is_poison(pointer: str, payload: str | None):
    with pytest.raises(PoisonEvent) as caught:
        Mapped(key=f"payload:{pointer}").key(payload=payload)
    assert caught.value.reason == "key"


def test_a_pointer_into_a_text_or_bytea_payload():
    assert Mapped({**DEFAULT, "payload": TEXT}, key="payload:/id").key(payload='{"id":"a"}') == b"a"
    hexed = "\\x" + b'{"id":"a"}'.hex()
    assert Mapped({**DEFAULT, "payload": BYTEA}, key="payload:/id").key(payload=hexed) == b"a"


def test_stray_bytes_of_an_sql_ascii_database_pass_as_they_are():
    mapped = Mapped({**DEFAULT, "payload": TEXT})
    encoded = mapped.encode(aggregate_id=b"\xe4", payload=b"\xff\xfe", event_type=b"\xfc")
    assert encoded[2] == b"\xe4"
    assert encoded[3] == b"\xff\xfe"
    assert encoded[5][1] == ("type", b"\xfc")
    assert Mapped(key="payload:/id").key(payload=b'{"id": "\xe4"}') == b"\xe4"


def test_a_key_from_inside_the_headers():
    mapped = Mapped(key="headers:/tenant/id")
    assert mapped.key(headers='{"tenant": {"id": 1.50}}') == b"1.50"
    assert mapped.plan.summary["key"] == ("headers:/tenant/id", "configured")
    for document in ("{}", None):
        with pytest.raises(PoisonEvent, match="headers:/tenant/id is NULL or missing"):
            mapped.key(headers=document)
    with pytest.raises(PoisonEvent, match="no JSON in the headers that a key can be taken from"):
        mapped.key(headers="{")


# Value


@pytest.mark.parametrize(
    ("type_oid", "text", "value"),
    [
        (JSON, '{ "b" :1}', b'{ "b" :1}'),
        (JSONB, '{"a": [1, 2], "b": 1}', b'{"a": [1, 2], "b": 1}'),
        (TEXT, "anything at all, ä", "anything at all, ä".encode()),
        (TEXT, "", b""),
        (BYTEA, "\\x00ff", b"\x00\xff"),
        (BYTEA, "\\x", b""),
        (JSONB, "null", b"null"),
        (JSONB, None, None),
        (BYTEA, None, None),
    ],
)
def test_the_payload_goes_out_byte_for_byte(type_oid: int, text: str | None, value: bytes | None):
    assert Mapped({**DEFAULT, "payload": type_oid}).encode(payload=text)[3] == value


# Timestamp


def test_the_commit_time_is_floored_to_milliseconds():
    assert Mapped().encode()[4] == COMMIT_US // 1000 == 1_705_497_250_250


@pytest.mark.parametrize(
    ("type_oid", "text", "milliseconds"),
    [
        (TIMESTAMPTZ, "2024-01-17 13:14:10.25+00", 1_705_497_250_250),
        (TIMESTAMPTZ, "2024-01-17 13:14:10+00", 1_705_497_250_000),
        (TIMESTAMPTZ, "2024-01-17 13:14:10.250999+00", 1_705_497_250_250),
        (TIMESTAMPTZ, "2024-01-17 18:44:10.25+05:30", 1_705_497_250_250),
        (TIMESTAMPTZ, "1970-01-01 00:00:00+00", 0),
        (TIMESTAMP, "2024-01-17 13:14:10.25", 1_705_497_250_250),
        (TIMESTAMP, "9999-12-31 23:59:59.999999", 253_402_300_799_999),
        (INT8, "1705497250", 1_705_497_250_000),
        (INT8, "1705497250250", 1_705_497_250_250),
        (INT8, "99999999999", 99_999_999_999_000),
        (INT8, "100000000000", 100_000_000_000),
        (INT4, "0", 0),
        (TIMESTAMPTZ, None, COMMIT_US // 1000),
    ],
)
def test_the_time_of_a_timestamp_column(type_oid: int, text: str | None, milliseconds: int):
    mapped = Mapped({**DEFAULT, "at": type_oid}, columns={"timestamp": "at"})
    assert mapped.encode(at=text)[4] == milliseconds


@pytest.mark.parametrize(
    ("type_oid", "text"),
    [
        (TIMESTAMPTZ, "infinity"),
        (TIMESTAMPTZ, "-infinity"),
        (TIMESTAMPTZ, "0044-03-15 00:00:00+00 BC"),
        (TIMESTAMPTZ, "1969-12-31 23:59:59.999999+00"),
        (TIMESTAMPTZ, "294276-12-31 23:59:59.999999+00"),
        (TIMESTAMPTZ, "rubbish"),
        (INT8, "-1"),
        (INT8, "1705497250250999"),
        (INT8, "1" * 5000),
    ],
)
def test_a_time_that_kafka_does_not_take_is_poison(type_oid: int, text: str):
    mapped = Mapped({**DEFAULT, "at": type_oid}, columns={"timestamp": "at"})
    if (type_oid, text) == (
        TIMESTAMPTZ,
        "2024",
    ):  # reads as seconds, and that is what it would be as an integer
        assert mapped.encode(at=text)[4] == 2_024_000
        return
    with pytest.raises(PoisonEvent, match=r"\bat\b") as caught:
        mapped.encode(at=text)
    assert caught.value.reason in {"timestamp", "column"}


def test_created_at_is_not_the_timestamp_unless_named():
    assert Mapped().encode(created_at="2000-01-01 00:00:00+00")[4] == COMMIT_US // 1000
    named = Mapped(columns={"timestamp": "created_at"})
    assert named.encode(created_at="2000-01-01 00:00:00+00")[4] == 946_684_800_000


# Partition


def test_a_partition_column():
    mapped = Mapped({**DEFAULT, "shard": INT4}, columns={"partition": "shard"})
    assert mapped.encode(shard="3")[1] == 3
    assert mapped.encode(shard="-1")[1] == -1
    assert mapped.encode(shard=None)[1] is None
    assert Mapped({**DEFAULT, "partition": INT4}).encode(partition="3")[1] is None


# What a person reads


def test_poison_names_row_and_reason_and_no_content():
    with pytest.raises(PoisonEvent) as caught:
        Mapped().encode(aggregate_id=None, payload='{"secret": 1}')
    poison = caught.value
    assert (poison.lsn, poison.seq, poison.event_id) == (LSN, 3, EVENT["id"])
    assert str(poison) == (
        f"event {EVENT['id']} of public.outbox at 16/B374D848, row 3, can't be published: "
        "it has no key: aggregate_id is NULL or missing"
    )
    assert "--key none" in poison.next
    assert poison.exit_code == 70


def test_poison_fits_one_line_whatever_the_id():
    with pytest.raises(PoisonEvent) as caught:
        Mapped({**DEFAULT, "id": TEXT}).encode(id="a\nb" * 1000, aggregate_id=None)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    with pytest.raises(PoisonEvent, match="event without an id"):
        Mapped().encode(id=None, aggregate_id=None)


def test_a_row_can_be_shown_whole():
    mapped = Mapped({**DEFAULT, "note": BYTEA})
    values = mapped.values(note="\\x00", headers=None, event_type=b"\xff")
    assert mapped.plan.event_id(values) == EVENT["id"]
    assert mapped.plan.raw(values) == {**EVENT, "note": "\\x00", "headers": None, "event_type": "\\xff"}


def test_a_fixed_topic_is_told_apart_from_a_column():
    said = Mapped(TABLE_C, key="none", topic="shop.events").plan.describe()
    assert "; topic shop.events (configured); " in said
    said = Mapped(TABLE_C, key="none", topic="shop.{topic}").plan.describe()
    assert "; topic from shop.{topic} (configured); " in said


def test_the_mapping_in_one_line():
    assert Mapped(TABLE_C, key="none").plan.describe() == (
        "id from id (recognised); topic from topic (recognised); key none (configured); "
        "payload from payload (recognised); no header type (no column is recognised: --column type=NAME); "
        "sent from sent_at (recognised); ignored: nothing"
    )
