"""The row that an event becomes, and the events that are refused before they can spoil a transaction."""

from __future__ import annotations

import enum
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any
from uuid import UUID

import orjson
import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider

from cdc_outbox.enqueue import asyncpg, psycopg, sqlalchemy
from cdc_outbox.enqueue.event import Event
from cdc_outbox.enqueue.table import COLUMNS, MAX_BYTES, TYPES, OutboxTable, Row, alike
from cdc_outbox.errors import CallRefused, EventTooLarge, EventUnfit
from cdc_outbox.kafka.records import size_of
from cdc_outbox.postgres.steps import default_columns
from cdc_outbox.settings.model import ROLES

TABLE = OutboxTable()
ID = "00000000-0000-4000-8000-000000000001"


def event(**parts: Any) -> Event:
    """A whole event, with some parts changed."""
    whole = {"aggregate_type": "order", "aggregate_id": 42, "event_type": "Placed", "payload": {}}
    made: Event = {**whole, **parts}  # type: ignore[typeddict-item]
    return made


def row(table: OutboxTable = TABLE, **parts: Any) -> dict[str, object]:
    made = table.row(event(**parts))
    return dict(zip(made.roles + made.other, made.values, strict=True))


def refused(table: OutboxTable = TABLE, **parts: Any) -> EventUnfit:
    with pytest.raises(EventUnfit) as caught:
        table.row(event(**parts))
    assert caught.value.__notes__ == [f"next: {caught.value.next}"], "a traceback shows the next step"
    return caught.value


class Kind(str, enum.Enum):  # noqa: UP042 - its str() is not its value, other than a StrEnum's
    ORDER = "order"


class TestRow:
    def test_the_columns_of_the_default_table_are_those_that_init_makes(self) -> None:
        assert {*default_columns()} - {"created_at"} == {*COLUMNS.values()}
        assert TYPES.keys() <= {*ROLES}

    def test_all_parts(self) -> None:
        assert row(id=ID, event_version=2, headers={"tenant": "x", "n": 1}, payload={"a": [1, "ü"]}) == {
            "id": ID,
            "aggregate_type": "order",
            "aggregate_id": "42",
            "type": "Placed",
            "version": "2",
            "payload": '{"a":[1,"ü"]}',
            "headers": '{"tenant":"x","n":1}',
        }

    def test_what_is_not_said_is_left_to_the_table(self) -> None:
        made = row(event_version=None, headers=None)
        assert made.keys() == {"id", "aggregate_type", "aggregate_id", "type", "payload"}
        assert UUID(str(made["id"])).version == 4
        assert row()["id"] != made["id"]

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("42", "42"),
            (42, "42"),
            (UUID(ID), ID),
            (Kind.ORDER, "order"),
            ("Zürich 日本", "Zürich 日本"),
            ("", ""),
        ],
    )
    def test_keys(self, given: object, kept: str) -> None:
        assert row(aggregate_id=given)["aggregate_id"] == kept

    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            (None, None),
            ('{"a":  1.50}', '{"a":  1.50}'),
            (b'{"a":  1e400}'.replace(b"1e400", b"1.0"), '{"a":  1.0}'),
            ([1, None], "[1,null]"),
            ("\\u0000".join(['"\\', '"']), '"\\\\u0000"'),
        ],
    )
    def test_payloads(self, given: object, kept: str | None) -> None:
        assert row(payload=given)["payload"] == kept

    def test_types_that_json_has_no_word_for(self) -> None:
        assert "str(amount)" in refused(payload={"amount": Decimal("1.50")}).next
        assert row(OutboxTable(default=str), payload={"amount": Decimal("1.50")})["payload"] == (
            '{"amount":"1.50"}'
        )


class TestRefused:
    @pytest.mark.parametrize(
        ("parts", "words"),
        [
            ({"aggregate_id": None}, "aggregate_id is None"),
            ({"aggregate_id": object()}, "aggregate_id is of type object"),
            ({"aggregate_id": True}, "aggregate_id is of type bool"),
            ({"aggregate_id": b"x"}, "aggregate_id is of type bytes"),
            ({"aggregate_id": "a\x00b"}, "aggregate_id holds the character U+0000"),
            ({"event_type": "a\ud800"}, "event_type holds half of a surrogate pair"),
            ({"event_type": None}, "event_type is None"),
            ({"aggregate_type": ""}, "its topic would be '', which Kafka refuses"),
            (
                {"aggregate_type": "order items"},
                "its topic would be 'outbox.event.order items', which Kafka refuses",
            ),
            ({"aggregate_type": "x" * 237}, "its topic would be 'outbox.event.xxx"),
            ({"extra": {"payload": "{}"}}, "the column 'payload' plays a role already"),
            ({"event_version": "2"}, "event_version is '2'"),
            ({"event_version": 2**31}, "event_version is 2147483648"),
            ({"id": "17"}, "id is '17', which is no UUID"),
            ({"topic": "orders"}, "topic is given, and no column of public.outbox is named for it"),
            ({"payload": "hello"}, "payload isn't valid JSON"),
            ({"payload": ""}, "payload isn't valid JSON"),
            ({"payload": b"\xff"}, "payload isn't valid JSON"),
            ({"payload": '"\\ud800"'}, "payload isn't valid JSON"),
            ({"payload": {"a": "b\x00"}}, "payload holds the character U+0000, which jsonb"),
            ({"payload": {"a\x00": "b"}}, "payload holds the character U+0000, which jsonb"),
            ({"payload": '"\\\\\\u0000"'}, "payload holds the character U+0000, which jsonb"),
            ({"payload": "\x00"}, "payload holds the character U+0000, which PostgreSQL"),
            ({"payload": {"a": "\ud800"}}, "payload can't be written as JSON"),
            ({"payload": {1: "a"}}, "payload can't be written as JSON"),
            ({"headers": {"a": object()}}, "headers can't be written as JSON"),
            ({"headers": {"a": "\x00"}}, "headers holds the character U+0000"),
            ({"headers": {"id": "x"}}, "the header 'id' is the relay's own"),
            ({"headers": {"version": 1}}, "the header 'version' is the relay's own"),
            ({"headers": {"cdc.source": "x"}}, "the header 'cdc.source' is the relay's own"),
        ],
    )
    def test_before_anything_is_sent(self, parts: dict[str, Any], words: str) -> None:
        assert str(refused(**parts)).startswith(words)

    def test_a_payload_that_is_not_said(self) -> None:
        with pytest.raises(EventUnfit, match="payload is missing"):
            TABLE.row({"aggregate_type": "a", "aggregate_id": 1, "event_type": "b"})  # type: ignore[typeddict-item]

    def test_an_argument_that_there_is_not(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'agregate_id'"):
            TABLE.row(event(agregate_id=1))

    def test_no_value_is_shown_that_may_be_a_secret(self) -> None:
        assert "s3cret" not in str(refused(aggregate_id=["s3cret"]))

    def test_of_many_by_its_place(self) -> None:
        with pytest.raises(EventUnfit) as caught:
            TABLE.rows([event(), event(aggregate_id=None)])
        assert "number 1, counted from 0" in caught.value.__notes__[-1]


class TestSize:
    def test_names_the_size_and_three_limits(self) -> None:
        with pytest.raises(EventTooLarge) as caught:
            TABLE.row(event(payload={"a": "x" * MAX_BYTES}))
        assert f"and {MAX_BYTES} is the limit" in str(caught.value)
        for limit in ("max_bytes", "max.request.size", "max.message.bytes"):
            assert limit in caught.value.next

    def test_blanks_that_jsonb_sets_are_counted_and_those_in_texts_are_not(self) -> None:
        numbers = [1] * 400_000
        assert len(orjson.dumps(numbers)) < MAX_BYTES
        with pytest.raises(EventTooLarge):
            TABLE.row(event(payload=numbers))
        assert row(payload=["," * 900_000])
        assert row(payload='["' + ':\\"' * 300_000 + '"]')

    def test_what_jsonb_drops_is_not_counted(self) -> None:
        assert row(payload=json.dumps({"a": 1}, indent=4) + " " * MAX_BYTES)

    def test_headers_are_counted(self) -> None:
        with pytest.raises(EventTooLarge):
            TABLE.row(event(payload=None, headers={"a": "x" * MAX_BYTES}))

    @pytest.mark.parametrize("payload", [{}, {"a": [1, 2, {"b": "c,:d"}]}, None, ["x" * 5000], [1] * 9000])
    def test_is_no_less_than_the_relay_counts_and_hardly_more(self, payload: object) -> None:
        parts = event(id=ID, event_version=3, payload=payload, headers={"tenant": "Zürich", "n": 5})
        printed = json.dumps(payload, ensure_ascii=False).encode() if payload is not None else None
        headers = [("id", ID.encode()), ("type", b"Placed"), ("version", b"3"), ("tenant", "Zürich".encode())]
        size = size_of(("t", None, b"42", printed, 0, [*headers, ("n", b"5")]))
        with pytest.raises(EventTooLarge):
            OutboxTable(max_bytes=size - 1).row(parts)
        assert OutboxTable(max_bytes=size + 100).row(parts)

    def test_another_limit_and_none(self) -> None:
        assert row(OutboxTable(max_bytes=None), payload="[" + "1," * MAX_BYTES + "1]")
        assert refused(OutboxTable(max_bytes=100))

    def test_a_column_of_bytes_is_counted_as_it_is(self) -> None:
        table = OutboxTable(types={"payload": "bytea"}, max_bytes=1000)
        assert row(table, payload=b"," * 700)
        with pytest.raises(EventTooLarge):
            table.row(event(payload=b"," * 1000))


class TestTrace:
    @pytest.fixture(autouse=True)
    def _span(self) -> Any:
        with TracerProvider().get_tracer("test").start_as_current_span("order") as span:
            self.parent = span.get_span_context()
            yield

    def headers(self, **parts: Any) -> dict[str, Any]:
        found = row(**parts).get("headers", "{}")
        loaded: dict[str, Any] = json.loads(str(found))
        return loaded

    def test_becomes_headers(self) -> None:
        token = context.attach(baggage.set_baggage("tenant", "x y"))
        try:
            headers = self.headers(headers={"a": 1})
        finally:
            context.detach(token)
        assert headers == {
            "a": 1,
            "traceparent": f"00-{self.parent.trace_id:032x}-{self.parent.span_id:016x}-{self.parent.trace_flags:02x}",
            "baggage": "tenant=x+y",
        }

    def test_a_trace_that_is_named_stays(self) -> None:
        assert self.headers(headers={"tracestate": "a=1"}) == {"tracestate": "a=1"}

    def test_is_left_out_where_it_is_not_wanted(self) -> None:
        assert "headers" not in row(OutboxTable(trace_context=False))
        without = {role: name for role, name in COLUMNS.items() if role != "headers"}
        assert "headers" not in row(OutboxTable(columns=without))

    def test_without_a_span(self) -> None:
        with trace.use_span(trace.INVALID_SPAN):
            assert "headers" not in row()


class TestTable:
    def test_statement_of_the_default_table(self) -> None:
        made = TABLE.row(event())
        assert TABLE.statement(made) == (
            "insert into public.outbox (id, aggregate_type, aggregate_id, event_type, payload) values "
            "(cast(cast(%s as text) as uuid), cast(%s as text), cast(%s as text), cast(%s as text), "
            "cast(cast(%s as text) as jsonb))"
        )
        assert TABLE.statement(TABLE.row(event())) is TABLE.statement(made)

    @pytest.mark.parametrize(
        ("library", "spelled"),
        [
            (psycopg.Outbox, '"50%%: ""a""" (id, "50%%:") values (cast(%s as text)'),
            (asyncpg.Outbox, '"50%: ""a""" (id, "50%:") values (cast($1 as text)'),
            (sqlalchemy.Outbox, r'"50%\: ""a""" (id, "50%\:") values (cast(:p0 as text)'),
        ],
    )
    def test_hostile_names_stay_names(self, library: type[OutboxTable], spelled: str) -> None:
        table = library(
            '"50%: ""a"""', columns={"id": "id", "payload": "50%:"}, types={"id": "text"}, max_bytes=None
        )
        made = table.row({"payload": None})
        assert f"insert into public.{spelled}" in table.statement(made)

    def test_a_number_as_id_is_made_by_the_database(self) -> None:
        table = OutboxTable(
            "shop.events",
            columns={"id": "id", "topic": "topic", "payload": "body"},
            types={"id": "bigint", "payload": "text"},
            extra={"bus": "kafka"},
        )
        made = table.row({"topic": "orders", "payload": "not JSON", "extra": {"tenant": 7}})
        assert made == Row(None, ("topic", "payload"), ("bus", "tenant"), ("orders", "not JSON", "kafka", 7))
        assert table.statement(made) == (
            "insert into shop.events (topic, body, bus, tenant) values (cast(%s as text), cast(%s as text), %s, %s)"
            " returning cast(id as text)"
        )
        assert table.row({"id": 9, "payload": None}).id == "9"

    def test_a_topic_that_the_relay_makes_is_not_ours_to_judge(self) -> None:
        assert row(OutboxTable(check_topic=False), aggregate_type="order items")
        table = OutboxTable(columns={**COLUMNS, "topic": "topic"})
        assert row(table, aggregate_type="order items", topic="orders")["topic"] == "orders"
        assert "'a b'" in str(refused(table, topic="a b"))
        assert "order items" in str(refused(table, aggregate_type="order items", topic=""))

    def test_a_uuid_as_key_is_checked(self) -> None:
        table = OutboxTable(types={"aggregate_id": "uuid"})
        assert row(table, aggregate_id=UUID(ID))["aggregate_id"] == ID
        assert "no UUID" in str(refused(table, aggregate_id=42))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"table": "a.b.c"}, "not a table name"),
            ({"columns": {"id": "id"}}, "columns names none for the role 'payload'"),
            ({"columns": {"id": "id", "payload": "p", "event_type": "t"}}, "no role 'event_type'"),
            ({"types": {"key": "text"}}, "no role 'key'"),
            ({"types": {"type": "char"}}, "'char' can't be the type of type"),
            ({"types": {"type": "varchar(40)"}}, "can't be the type of type"),
            ({"types": {"type": "text); drop table x; --"}}, "can't be the type of type"),
        ],
    )
    def test_a_configuration_that_is_wrong(self, options: dict[str, Any], words: str) -> None:
        with pytest.raises(CallRefused, match=words.replace(")", r"\)").replace("(", r"\(")):
            OutboxTable(**options)

    def test_types_of_users(self) -> None:
        table = OutboxTable(
            types={"type": '"Kind"', "aggregate_type": "shop.kind", "version": "character varying"}
        )
        statement = table.statement(table.row(event(event_version=1)))
        for cast in ('as public."Kind")', "as shop.kind)", "as character varying)"):
            assert cast in statement

    def test_runs_of_rows_that_are_alike_keep_the_order(self) -> None:
        rows = TABLE.rows([event(event_version=version) for version in (1, 2, None, 3)])
        assert [len(run) for run in alike(rows)] == [2, 1, 1]
        assert [each for run in alike(rows) for each in run] == rows


@pytest.mark.parametrize("library", ["psycopg", "asyncpg", "sqlalchemy", "django"])
def test_an_application_gets_no_part_of_the_relay(library: str) -> None:
    code = (
        "import sys\n"
        f"import cdc_outbox.enqueue.{library}, cdc_outbox.inbox.{library}\n"
        "ours = sorted(name for name in sys.modules if name.startswith('cdc_outbox.'))\n"
        "heavy = {'aiokafka', 'click', 'prometheus_client', 'opentelemetry'} & sys.modules.keys()\n"
        "others = {'psycopg', 'asyncpg', 'sqlalchemy', 'django'} & sys.modules.keys()\n"
        "print(heavy or '', others, [name for name in ours if name.split('.')[1] not in\n"
        "      {'enqueue', 'inbox', 'errors', 'event'}])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{{{library!r}}} []"


def test_sqlalchemy_without_greenlet_writes_all_the_same() -> None:
    """It is what `pip install sqlalchemy` gives: only its asynchronous connections need more."""
    program = """
import sys
sys.modules["greenlet"] = None
from cdc_outbox.enqueue.sqlalchemy import Outbox, enqueue
from cdc_outbox.inbox.sqlalchemy import first_time
try:
    enqueue(object(), aggregate_type="a", aggregate_id=1, event_type="b", payload={})
except TypeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "a Connection or Session of SQLAlchemy is needed, not object\n", done.stderr
