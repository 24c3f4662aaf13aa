"""Headers: which, in which order, and how each value is spelled."""

from __future__ import annotations

import pytest

from cdc_outbox.errors import PoisonEvent
from tests.unit.mapped import BOOL, BYTEA, DEFAULT, EVENT, INT4, JSON, JSONB, TEXT, Mapped

ID = ("id", EVENT["id"].encode())
TYPE = ("type", b"OrderPlaced")
VERSION = ("version", b"1")


def test_nothing_is_sent_for_null():
    assert Mapped().headers(event_type=None, event_version=None, headers=None) == [ID]
    assert Mapped().headers(id=None) == [TYPE, VERSION]


def test_the_order_of_all_kinds():
    mapped = Mapped(
        {**DEFAULT, "tenant": TEXT, "Actor": TEXT},
        headers=(("x-tenant", "tenant"), ("actor", "Actor")),
        static_headers=(("source", "shop"),),
        provenance=True,
    )
    assert mapped.headers(headers='{"b": "1", "a": "2"}', tenant="acme", Actor="eve") == [
        ID,
        TYPE,
        VERSION,
        ("x-tenant", b"acme"),
        ("actor", b"eve"),
        ("b", b"1"),
        ("a", b"2"),
        ("source", b"shop"),
        ("cdc.lsn", b"00000016b374d848"),
        ("cdc.seq", b"3"),
        ("cdc.commit_ts", b"1705497250250"),
        ("cdc.slot", b"outbox_slot"),
    ]


@pytest.mark.parametrize("type_oid", [JSON, JSONB, TEXT])
@pytest.mark.parametrize(
    ("member", "value"),
    [
        ('"text"', b"text"),
        ('""', b""),
        ('"\\u00e4\\n\\"\\/"', 'ä\n"/'.encode()),
        ('"\\ud83d\\ude00"', "😀".encode()),
        ("1", b"1"),
        ("0", b"0"),
        ("-0", b"-0"),
        ("1.0", b"1.0"),
        ("1.50", b"1.50"),
        ("-1E+5", b"-1E+5"),
        ("1e400", b"1e400"),
        ("123456789012345678901234567890.5", b"123456789012345678901234567890.5"),
        ("9" * 5000, b"9" * 5000),
        ("true", b"true"),
        ("false", b"false"),
        ("[]", b"[]"),
        ("{}", b"{}"),
        ('[1, 2.50 , "a b", null]', b'[1,2.50,"a b",null]'),
        ('{"a" : {"b\\" c": "d  e"}}', b'{"a":{"b\\" c":"d  e"}}'),
        ('{"ä": "\\\\"}', '{"ä":"\\\\"}'.encode()),
    ],
)
def test_how_a_member_is_spelled(type_oid: int, member: str, value: bytes):
    mapped = Mapped({**DEFAULT, "headers": type_oid})
    assert mapped.headers(headers='{"x":' + member + "}") == [ID, TYPE, VERSION, ("x", value)]
    around = '\n{ "before" : "1",\t"x" : ' + member + ' , "after": true }\n'
    assert mapped.headers(headers=around)[3:] == [("before", b"1"), ("x", value), ("after", b"true")]


@pytest.mark.parametrize("text", ["{}", " { } ", '{"a": null}', '{"a": null, "b": null}'])
def test_null_members_and_empty_objects_send_nothing(text: str):
    assert Mapped().headers(headers=text) == [ID, TYPE, VERSION]


def test_doubled_names_keep_the_first_place_and_the_last_value():
    mapped = Mapped({**DEFAULT, "headers": JSON})
    assert mapped.headers(headers='{"a": "1", "b": "2", "a": "3"}')[3:] == [("a", b"3"), ("b", b"2")]
    assert mapped.headers(headers='{"a": 1.0, "b": 2.0, "a": 3.0}')[3:] == [("a", b"3.0"), ("b", b"2.0")]


def test_trace_context_passes_untouched():
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    text = f'{{"traceparent": "{trace}", "tracestate": "a=1,b=2", "baggage": "k=v; p"}}'
    assert Mapped().headers(headers=text)[3:] == [
        ("traceparent", trace.encode()),
        ("tracestate", b"a=1,b=2"),
        ("baggage", b"k=v; p"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "1",
        "1e400",
        '"text"',
        "true",
        "",
        "rubbish",
        "{",
        '{"a"}',
        '{"a":}',
        '{"a": 1.5',
        '{"a": 1.5,}',
        '{"a": 1.5} x',
        '{1: "a"}',
        '{"a": NaN}',
        '{"a": 1.5 "b": 2}',
        '{"a": ' + "[" * 100_000,
        '{"a": "\\ud800"}',
        '{"\\udc80": "a"}',
        b'{"\xff": "a"}',
    ],
)
def test_what_is_not_an_object_of_texts_is_poison(text: str | bytes):
    with pytest.raises(PoisonEvent, match="column headers") as caught:
        Mapped({**DEFAULT, "headers": TEXT}).encode(headers=text)
    assert caught.value.reason == "headers"


def test_stray_bytes_in_a_member_pass_as_they_are():
    assert Mapped().headers(headers=b'{"a": "\xe4", "b": ["\xff"]}')[3:] == [
        ("a", b"\xe4"),
        ("b", b'["\xff"]'),
    ]


@pytest.mark.parametrize("extra", ["", ', "n": 1.5'])
def test_our_own_names_are_dropped_and_counted(extra: str):
    mapped = Mapped()
    text = (
        '{"id": "x", "a": "1", "type": "y", "version": 9, "cdc.lsn": "z", "cdc.": "z", "Id": "2"'
        + extra
        + "}"
    )
    expected = [ID, TYPE, VERSION, ("a", b"1"), ("Id", b"2")]
    assert mapped.headers(headers=text) == expected + ([("n", b"1.5")] if extra else [])
    assert mapped.plan.dropped == {"id": 1, "type": 1, "placed": 1, "cdc.": 2}


def test_a_member_named_version_passes_where_the_table_has_no_event_version():
    columns = {name: oid for name, oid in DEFAULT.items() if name != "event_version"}
    assert Mapped(columns).headers(headers='{"version": 2}') == [ID, TYPE, ("version", b"2")]


def test_a_placed_column_wins_over_a_member_even_when_it_is_null():
    mapped = Mapped({**DEFAULT, "tenant": TEXT}, headers=(("tenant", "tenant"),))
    assert mapped.headers(tenant="acme", headers='{"tenant": "other"}')[3:] == [("tenant", b"acme")]
    assert mapped.headers(tenant=None, headers='{"tenant": "other"}')[3:] == []
    assert mapped.plan.dropped == {"placed": 2}


def test_a_fixed_header_wins_over_a_member():
    mapped = Mapped(static_headers=(("source", "shop"),))
    assert mapped.headers(headers='{"source": "other"}')[3:] == [("source", b"shop")]


@pytest.mark.parametrize(
    ("type_oid", "text", "value"),
    [(BYTEA, "\\x00ff", b"\x00\xff"), (BOOL, "t", b"t"), (INT4, "7", b"7"), (JSONB, '{"a": 1}', b'{"a": 1}')],
)
def test_how_a_placed_column_is_spelled(type_oid: int, text: str, value: bytes):
    mapped = Mapped({**DEFAULT, "extra": type_oid}, headers=(("extra", "extra"),))
    assert mapped.headers(extra=text)[3:] == [("extra", value)]


def test_placing_what_is_sent_anyway_changes_nothing():
    mapped = Mapped(headers=(("id", "id"), ("type", "event_type"), ("version", "event_version")))
    assert mapped.headers() == [ID, TYPE, VERSION]


def test_a_column_named_version_is_sent_only_when_placed():
    columns = {name: oid for name, oid in DEFAULT.items() if name != "event_version"} | {"version": INT4}
    assert Mapped(columns).headers(version="4") == [ID, TYPE]
    assert Mapped(columns, headers=(("version", "version"),)).headers(version="4") == [
        ID,
        TYPE,
        ("version", b"4"),
    ]
    assert Mapped(columns, columns={"version": "version"}).headers(version="4") == [
        ID,
        TYPE,
        ("version", b"4"),
    ]


def test_a_placed_version_replaces_the_recognised_one():
    mapped = Mapped({**DEFAULT, "v": TEXT}, headers=(("version", "v"),))
    assert mapped.headers(v="2.1") == [ID, TYPE, ("version", b"2.1")]


def test_a_fixed_type_for_a_table_without_one():
    columns = {name: oid for name, oid in DEFAULT.items() if name != "event_type"}
    assert Mapped(columns, static_headers=(("type", "Order"),)).headers() == [ID, VERSION, ("type", b"Order")]


def test_metadata_is_read_only_when_named():
    columns = {name: oid for name, oid in DEFAULT.items() if name != "headers"} | {"metadata": JSONB}
    assert Mapped(columns).headers(metadata='{"a": "1"}') == [ID, TYPE, VERSION]
    named = Mapped(columns, columns={"headers": "metadata"})
    assert named.headers(metadata='{"a": "1"}') == [ID, TYPE, VERSION, ("a", b"1")]


def test_a_headers_column_of_a_strange_type_is_left_alone():
    mapped = Mapped({**DEFAULT, "headers": BYTEA})
    assert mapped.headers(headers="\\x00") == [ID, TYPE, VERSION]
    assert mapped.plan.ignored == ("headers",)
