"""The audit's judgement, case by case: what is a fault, what isn't, and what can't be told."""

from __future__ import annotations

import errno
import tempfile
import uuid
from contextlib import closing
from pathlib import Path
from struct import Struct

import pytest

from cdc_outbox.errors import SetupError
from cdc_outbox.event import TableName, Values
from cdc_outbox.repair.books import ACKNOWLEDGED, LEFT_OUT, SENT, Books, id_from, ids_placed
from cdc_outbox.repair.findings import Findings
from cdc_outbox.repair.judgement import Judge, Rules
from cdc_outbox.repair.report import Report
from cdc_outbox.repair.second_look import spelled
from cdc_outbox.repair.spool import Ids, Spool, buckets_for
from tests.unit.audited import CREATED_US, TOPIC, Sent, enter_row, ids, judged, message, reader_of
from tests.unit.mapped import BYTEA, INT4, INT8, TABLE_B, TEXT, UUID

A, B, C = (str(uuid.UUID(int=n)) for n in (1, 2, 3))
SURE = [(A, ACKNOWLEDGED), (B, ACKNOWLEDGED)]


def test_what_is_not_acknowledged_is_under_way_and_not_missing() -> None:
    found = judged([(A, ACKNOWLEDGED), (B, 0), (C, 0)], [[message(0, C)]], Rules(unacknowledged="under way"))
    assert (ids(found.missing.events), ids(found.under_way.events), found.delivered) == ([A], [B], 1)
    assert found.oldest_under_way == CREATED_US
    settled = judged([(A, ACKNOWLEDGED), (B, 0)], [[]], Rules())
    assert ids(settled.missing.events) == [A, B]


def test_rows_that_a_rule_leaves_out_or_another_relay_sent_are_asked_for_on_request_only() -> None:
    rows = [(A, ACKNOWLEDGED | LEFT_OUT), (B, ACKNOWLEDGED | SENT), (C, ACKNOWLEDGED | SENT)]
    found = judged(rows, [[message(0, C)]], Rules(sent=False))
    assert (found.missing.count, found.left_out, found.sent_elsewhere, found.delivered) == (0, 1, 1, 1)
    assert ids(judged(rows, [[]], Rules(left_out=True)).missing.events) == [A, B, C]
    assert ids(judged(rows, [[]], Rules()).missing.events) == [B, C]


def test_a_row_from_the_slot_is_known_by_the_bytes_of_its_id() -> None:
    reader = reader_of({"id": BYTEA, "topic": TEXT, "aggregate_id": TEXT, "payload": TEXT})
    values: Values = [b"\\x00ff", TOPIC.encode(), b"k", b"{}"]
    for scoped in (False, True):
        with closing(Books(100, None, scoped=scoped)) as books:
            books.enter_rows(reader, [values], 0)
            ((key, *_),) = (record for at in range(len(books.events)) for record in books.events.bucket(at))
            assert books.row_key(reader.plan, values) == key


def test_copies_from_the_table_are_expected_and_others_are_not() -> None:
    streamed, again = message(0, A), message(1, A, source="replay")
    found = judged(SURE[:1], [[streamed, again, message(2, A, source="recover")]])
    assert (found.twice.count, found.repeats) == (0, 2)
    found = judged(SURE[:1], [[message(0, A, source="backfill"), message(1, A)]])
    assert (found.twice.count, found.repeats) == (0, 1)
    found = judged(SURE[:1], [[message(0, A, source="backfill"), message(1, A, source="backfill")]])
    assert (found.twice.count, found.repeats) == (0, 1)
    found = judged(SURE[:1], [[streamed, again, message(2, A)]])
    assert found.twice.events == [
        {
            "id": A,
            "copies": 2,
            "first": {"topic": TOPIC, "partition": 0, "offset": 0},
            "last": {"topic": TOPIC, "partition": 0, "offset": 2},
        }
    ]


def test_rows_that_share_an_id_may_have_a_message_each() -> None:
    rows = [(A, ACKNOWLEDGED)] * 3
    found = judged(rows, [[message(0, A), message(1, A), message(2, A)]])
    assert (found.twice.count, found.same_id) == (0, 2)
    assert judged(rows, [[message(at, A) for at in range(4)]]).twice.count == 1


def test_where_rows_that_share_an_id_have_too_few_messages_it_is_not_clean() -> None:
    rows = [(A, ACKNOWLEDGED)] * 3
    found = judged(rows, [[message(0, A), message(1, A, source="replay")]])
    assert [each["why"] for each in found.unknown.events] == ["same id"]
    found = judged([*rows[:1], (A, 0)], [[message(0, A)]], Rules(unacknowledged="under way"))
    assert (found.unknown.count, found.under_way.count) == (0, 1)
    found = judged([*rows[:1], (A, 0)], [[message(0, A)]], Rules(unacknowledged="missing"))
    assert (found.unknown.count, found.under_way.count) == (1, 0)


def of_rows(keys: str, messages: str, rules: Rules | None = None, flags: int = ACKNOWLEDGED) -> Findings:
    """Rows with one id and these keys, and their messages, each by its key; "-" is none."""
    books = Books(100, None)
    for key in keys:
        enter_row(books, A, flags, CREATED_US, key)
    sent = [message(at, A, key=None if key == "-" else key) for at, key in enumerate(messages)]
    return judged([], [sent], rules, books=books)


def clean(found: Findings) -> bool:
    return not any(kind.count for kind in (found.missing, found.twice, found.foreign, found.unknown))


def test_a_copy_of_one_rows_message_stands_for_no_other_row_with_its_id() -> None:
    found = of_rows("xy", "xx")
    assert (ids(found.missing.events), found.twice.count, found.unknown.count) == ([A], 1, 0)
    found = of_rows("xy", "x", Rules(unacknowledged="under way"), flags=0)
    assert (found.missing.count, found.under_way.count) == (0, 1)
    assert clean(of_rows("xy", "yx"))
    found = of_rows("xxy", "xyy")
    assert (found.missing.count, found.twice.count) == (0, 1)
    assert [each["why"] for each in found.unknown.events] == ["same id"]


def test_a_message_whose_key_no_row_has_may_be_that_of_any_row_with_its_id() -> None:
    """The key of its row was updated since, or another relay has chosen another one."""
    for messages in ("xz", "x-", "zz", "--"):
        assert clean(of_rows("xy", messages))
    found = of_rows("xy", "z")
    assert (found.missing.count, found.unknown.count) == (0, 1)
    assert of_rows("x", "xz").twice.count == of_rows("x", "-x").twice.count == 1


def test_each_of_the_rows_that_share_an_id_is_asked_for() -> None:
    """What needs no message stands for no other row, neither by being first nor by what was sent of it."""
    for spared, rules in ((LEFT_OUT, Rules()), (SENT, Rules(sent=False))):
        rows = [(A, ACKNOWLEDGED | spared), (A, ACKNOWLEDGED)]
        assert ids(judged(rows, [[]], rules).missing.events) == [A]
        assert ids(judged(rows[::-1], [[]], rules).missing.events) == [A]
    assert of_rows("xy", "").missing.count == 2
    books = Books(100, None)
    enter_row(books, A, ACKNOWLEDGED | SENT, CREATED_US, "x")
    enter_row(books, A, ACKNOWLEDGED, CREATED_US, "y")
    sent = [message(0, A, key="x"), message(1, A, key="x", source="replay")]
    assert ids(judged([], [sent], Rules(sent=False), books=books).missing.events) == [A]


def test_of_several_tables_a_message_with_another_key_stands_for_no_row() -> None:
    """It may be that of another table's row, which is gone; one of another relay's says nothing by its key."""
    shared = Rules(shared=True)
    for keys, messages, why in (("y", "x", "other key"), ("yz", "xz", "same id"), ("yz", "xx", "same id")):
        found = of_rows(keys, messages, shared)
        assert {each["why"] for each in found.unknown.events} == {why}
        assert found.missing.count == 0
    assert of_rows("y", "x", Rules(shared=True, unacknowledged="under way"), flags=0).under_way.count == 1
    for keys, messages in (("y", "y"), ("y", "-"), ("yz", "y-")):
        assert clean(of_rows(keys, messages, shared))


def test_a_message_of_another_tables_row_that_was_removed_is_no_copy_of_what_has_its_id() -> None:
    removed = Rules(may_lack_rows=True, shared=True)
    for keys, messages, twice, without in (
        ("y", "xy", 0, 1),
        ("y", "xyy", 1, 1),
        ("y", "xxy", 1, 1),
        ("y", "-y", 1, 0),
        ("y", "yy", 1, 0),
        ("", "xy", 0, 2),
        ("", "xxy", 1, 2),
    ):
        found = of_rows(keys, messages, removed)
        assert (found.twice.count, found.without_row) == (twice, without), (keys, messages)
    assert of_rows("y", "xy", Rules(may_lack_rows=True)).twice.count == 1
    assert of_rows("y", "xy", Rules(shared=True)).twice.count == 1


def test_a_message_without_a_row_is_foreign_unless_the_table_has_one_by_now() -> None:
    messages = [[message(0, A), message(1, B), message(2, "other"), message(3, None)]]
    found = judged(SURE[:1], messages, known=[B])
    assert [each["id"] for each in found.foreign.events] == [None, "other"]
    accepted = judged(SURE[:1], messages, Rules(may_lack_rows=True))
    assert (accepted.foreign.count, accepted.without_row) == (0, 3)


def test_a_window_leaves_alone_what_lies_outside() -> None:
    second = 1_000_000
    rules = Rules(since=10 * second, until=20 * second)
    messages = [
        message(0, "before", ms=9_999),
        message(1, "before", ms=9_999),
        message(2, A, ms=12_000),
        message(3, "inside", ms=15_000),
        message(4, None, ms=9_000),
        message(5, "after", ms=20_000),
        message(6, "late", ms=5_000),
    ]
    found = judged([(A, ACKNOWLEDGED)], [messages], rules)
    assert ids(found.foreign.events) == ["inside"]
    assert (found.twice.count, found.out_of_order.count) == (0, 0)


@pytest.mark.parametrize(
    ("first", "second", "late", "undecided"),
    [
        # By the commits' times, unless they are close.
        ({"ms": 2_000}, {"ms": 1_000}, 1, 0),
        ({"ms": 1_099}, {"ms": 1_000}, 0, 1),
        # By the log's positions, however close.
        ({"ms": 1_000, "lsn": 16}, {"ms": 1_000, "lsn": 8}, 1, 0),
        ({"ms": 1_000, "lsn": 8, "seq": 10}, {"ms": 1_000, "lsn": 8, "seq": 9}, 1, 0),
        ({"ms": 9_000, "lsn": 8, "seq": 9}, {"ms": 1_000, "lsn": 8, "seq": 10}, 0, 0),
        # Another slot's positions say nothing, and those of another server begin anew.
        ({"ms": 1_000, "lsn": 16}, {"ms": 1_000, "lsn": 8, "slot": "other"}, 0, 0),
        ({"ms": 1_000, "lsn": 16}, {"ms": 3_000, "lsn": 8}, 0, 0),
        # No time of the commit: the broker's clock, or a row sent from the table.
        ({"ms": 2_000, "broker_time": True}, {"ms": 1_000, "broker_time": True}, 0, 0),
        ({"ms": 2_000, "broker_time": True, "lsn": 16}, {"ms": 1_000, "broker_time": True, "lsn": 8}, 1, 0),
        ({"ms": 2_000}, {"ms": 1_000, "source": "recover"}, 0, 0),
        ({"ms": 2_000, "source": "backfill"}, {"ms": 1_000}, 0, 0),
        # Other keys, and no key at all.
        ({"ms": 2_000, "key": "x"}, {"ms": 1_000}, 0, 0),
        ({"ms": 2_000, "key": None}, {"ms": 1_000, "key": None}, 0, 0),
    ],
)
def test_order_is_judged_by_what_proves_it(
    first: dict[str, object], second: dict[str, object], late: int, undecided: int
) -> None:
    messages: list[Sent] = [message(0, A, **first), message(1, B, **second)]  # type: ignore[arg-type]
    found = judged(SURE, [messages])
    assert (found.out_of_order.count, found.undecided.count) == (late, undecided)
    if late:
        assert found.out_of_order.events == [
            {"id": B, "topic": TOPIC, "partition": 0, "offset": 1, "after": 0}
        ]


def test_beside_a_polling_relay_the_table_has_to_agree_with_the_times() -> None:
    """Its messages may bear the time of the sending: a later one of ours then seems to have committed before."""
    earlier, later = CREATED_US, CREATED_US + 5_000_000
    messages = [message(0, A, ms=2_000), message(1, B, ms=1_000)]
    for by_a, by_b, late in ((earlier, later, 0), (later, earlier, 1), (earlier, earlier, 1), (0, 0, 0)):
        books = Books(100, None)
        enter_row(books, A, ACKNOWLEDGED | SENT, by_a)
        enter_row(books, B, ACKNOWLEDGED, by_b)
        found = judged([], [messages], books=books)
        assert (found.out_of_order.count, found.undecided.count) == (late, 1 - late)


def test_a_key_in_two_partitions_is_told_once() -> None:
    partitions = [[message(0, A), message(1, C)], [message(0, B), message(1, C)]]
    found = judged([*SURE, (C, ACKNOWLEDGED)], partitions)
    assert found.moved_keys.events == [
        {"topic": TOPIC, "partition": 1, "offset": 0, "also": {"partition": 0, "offset": 1}}
    ]
    assert found.moved_keys.count == 1
    assert judged(SURE, partitions, Rules(keyed=False)).moved_keys.count == 0


def test_a_key_that_moved_before_the_window_has_not_moved_in_it() -> None:
    """Topics are read from before the window on: what lies there is no half of a fault."""
    before, inside = 1_000, 5_000
    rules = Rules(since=4_000_000)
    for there, here, moved in (
        ([before], [inside], 0),
        ([before], [before], 0),
        ([inside], [inside], 1),
        ([before], [before, inside, inside], 0),
        ([before, inside], [inside], 1),
    ):
        partitions = [[message(at, C, ms=ms) for at, ms in enumerate(some)] for some in (there, here)]
        for order in (partitions, partitions[::-1]):
            assert judged([(C, ACKNOWLEDGED)], order, rules).moved_keys.count == moved
    third = [[message(0, C, ms=before)], [message(7, C, ms=inside)], [message(8, C, ms=inside)]]
    assert judged([(C, ACKNOWLEDGED)], third, rules).moved_keys.events == [
        {"topic": TOPIC, "partition": 2, "offset": 8, "also": {"partition": 1, "offset": 7}}
    ]


def test_a_key_that_stays_after_a_move_before_the_window_is_told_when_it_returns() -> None:
    """The partitions are read by turns."""
    turns = ((0, 0, 1_000), (1, 0, 5_000), (0, 1, 6_000))
    with closing(Books(100, None)) as books:
        for partition, offset, ms in turns:
            books.enter_messages(TOPIC, partition, [message(offset, C, ms=ms)])
        with closing(Judge(books, Rules(since=4_000_000), limit=5)) as judge:
            list(judge.suspect())
            assert judge.findings.moved_keys.events == [
                {"topic": TOPIC, "partition": 0, "offset": 1, "also": {"partition": 1, "offset": 0}}
            ]


def test_rows_from_before_a_topics_first_record_are_unknown() -> None:
    found = judged(SURE, [[]], horizon=CREATED_US + 1.0)
    assert (found.missing.count, ids(found.unknown.events)) == (0, [A, B])
    assert judged(SURE, [[]], horizon=float(CREATED_US)).missing.count == 2


def test_the_first_of_each_kind_are_kept_and_all_are_counted() -> None:
    rows = [(str(uuid.UUID(int=n)), ACKNOWLEDGED) for n in range(50)]
    found = judged(rows, [[]], limit=3)
    assert (found.missing.count, len(found.missing.events)) == (50, 3)


def report(findings: Findings, *tables: str) -> Report:
    return Report(
        tuple(map(TableName.parse, tables)), None, None, {}, 0, 0, 0, 0, 0, findings, twice_ok=False, notes=[]
    )


def test_all_that_is_missing_is_sent_again_by_the_next_step() -> None:
    rows = [(str(uuid.UUID(int=n)), ACKNOWLEDGED) for n in range(50)]
    few = report(judged(rows[:7], [[]], limit=20)).next or ""
    assert few.startswith("cdc-outbox find ")
    named = few.partition(": cdc-outbox replay ")[2].removeprefix("--id ").split(" --id ")
    assert sorted(named) == [each for each, _ in rows[:7]]
    for limit, count in ((3, 4), (50, 50)):
        many = report(judged(rows[:count], [[]], limit=limit)).next or ""
        assert ": cdc-outbox replay --since 2024-01-17T13:14:10.250000Z, which sends all rows since " in many
    of_two = report(judged(rows[:1], [[]]), "a", "b").next or ""
    assert of_two.endswith(f": cdc-outbox replay --table NAME --id {rows[0][0]}")


def test_ids_of_another_relays_messages_are_found_where_they_are() -> None:
    books = Books(100, None, ids_from=[id_from("header:message-id"), id_from("payload:/event/id")])
    in_header = message(0, None, extra=[("message-id", A.encode())])
    in_payload = message(1, None, value=b'{"event": {"id": "%s"}}' % B.encode())
    found = judged(
        SURE, [[in_header, in_payload, message(2, None), message(3, None, value=b"[")]], books=books
    )
    assert (found.delivered, found.foreign.count, found.out_of_order.count) == (2, 2, 0)
    for wrong in ("headers:x", "header:", "payload:x", ""):
        with pytest.raises(ValueError, match=r"neither|pointer"):
            id_from(wrong)


def test_a_header_that_the_settings_fill_with_the_id_tells_it_in_another_relays_messages_too() -> None:
    plan = reader_of(
        TABLE_B, key="none", headers=(("message-id", "event_id"), ("kind", "topic"), ("row", "id"))
    ).plan
    found = ids_placed(plan)
    sent = message(0, None, extra=[("row", b"7"), ("kind", b"x"), ("message-id", A.encode())])
    assert [find(sent) for find in found] == [A.encode()]
    assert judged(SURE[:1], [[sent]], books=Books(100, None, ids_from=found)).delivered == 1


def test_the_oldest_missing_events_are_shown_in_the_order_of_their_writing() -> None:
    written = {f"{n:04}": CREATED_US + n * 1_000_000 for n in range(40)}
    with closing(Books(100, None)) as books:
        for id_, moment in reversed(written.items()):
            enter_row(books, id_, ACKNOWLEDGED, moment)
        with closing(Judge(books, Rules(), limit=5)) as judge:
            list(judge.suspect())
            list(judge.events({}))
            missing = judge.findings.missing
    assert missing.count == 40
    assert [each["id"] for each in missing.events] == list(written)[:5]


def test_the_table_says_what_was_sent_and_what_is_for_another_bus() -> None:
    with closing(Books(100, None)) as books:
        reader = reader_of(TABLE_B, key="none")
        usual: dict[str, bytes | None] = {"bus": b"kafka", "topic": b"t", "payload": b"{}"}
        changes: list[dict[str, bytes | None]] = [
            {"status": b"SENT"},
            {"status": b"pending", "bus": b"nats"},
            {"status": None},
            {"topic": b"no such!"},
        ]
        for number, changed in enumerate(changes):
            row = usual | {"event_id": b"%d" % number} | changed
            books.enter_rows(reader, [[row.get(name) for name in TABLE_B]], 0)
        books.enter_rows(reader, [[None] * len(TABLE_B)], 0)
        flags = {
            books.id(entry[0], entry[5]): entry[2] for at in range(16) for entry in books.events.bucket(at)
        }
        assert flags == {"0": SENT, "1": LEFT_OUT, "2": 0, "3": 8}
        assert (books.rows, books.unnamed_rows) == (5, 1)


def test_several_tables_may_count_from_one_each() -> None:
    with closing(Books(100, None, scoped=True)) as books:
        enter_row(books, "7", ACKNOWLEDGED, CREATED_US)
        books.enter_messages("another", 0, [message(0, "7")])
        books.enter_messages(TOPIC, 0, [message(0, "7")])
        entries = [entry for at in range(16) for entry in books.events.bucket(at)]
        assert len({entry[0] for entry in entries}) == 2
        assert {books.id(entry[0], entry[5]) for entry in entries} == {"7"}


def test_a_spool_gives_each_key_its_records_in_their_order() -> None:
    form = Struct(">16sI")
    keys = [uuid.UUID(int=n).bytes for n in range(200)]
    with closing(Spool(form, 16, None)) as spool:
        for number in range(60_000):
            spool.put(keys[number % 200], number)
        assert spool.count == 60_000
        found: dict[bytes, list[int]] = {}
        for at in range(len(spool)):
            for key, number in spool.bucket(at):
                assert spool.at(key) == at
                found.setdefault(key, []).append(number)
    assert found == {key: list(range(n, 60_000, 200)) for n, key in enumerate(keys)}


def test_ids_come_back_as_they_were() -> None:
    texts = [
        A,
        A.upper().replace("0", "A"),
        "7",
        "",
        "ü" * 500,
        "x" * 200_000,
        A.replace("-", "x"),
        A[:-1] + "g",
    ]
    with closing(Ids(None)) as kept:
        entered = [kept.enter(text.encode()) for text in texts]
        assert [kept.text(*each).decode() for each in entered] == texts
        assert len({key for key, _ in entered}) == len(texts)
        assert [where == 0 for _, where in entered] == [text == A for text in texts]


def test_buckets_are_enough_and_not_too_many() -> None:
    assert [buckets_for(n) for n in (0, 100, 1_000_000, 20_000_000, 10**10)] == [16, 16, 128, 4096, 8192]


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=f"{tmp_path}/none: no such file") as told:
        Books(100, tmp_path / "none")
    assert "--spool" in told.value.next


def test_a_system_that_is_read_only_is_told_where_records_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(SetupError, match="has no directory that may be written") as refused:
        Ids(None)
    assert "docker run --tmpfs /tmp" in refused.value.next
    assert "--spool DIR" in refused.value.next


@pytest.mark.parametrize(
    ("type_oid", "held", "not_held"),
    [
        (INT8, ["7", "-7", "9223372036854775807"], ["9223372036854775808", "x", "", "٣", "1" * 500]),
        (INT4, ["2147483647"], ["2147483648"]),
        (UUID, [A], [A.upper().replace("0", "A"), "7", A[:-1] + "g"]),
        (TEXT, ["anything"], ["\0"]),
    ],
)
def test_ids_that_a_column_cannot_hold_are_not_asked_for(
    type_oid: int, held: list[str], not_held: list[str]
) -> None:
    assert [spelled(type_oid, id_.encode()) for id_ in held] == held
    assert [spelled(type_oid, id_.encode()) for id_ in not_held] == [None] * len(not_held)
    assert spelled(type_oid, b"\xff") is None
    assert spelled(BYTEA, b"a\xff") == "\\x61ff"


def test_without_a_proof_rows_wait_for_a_word_and_too_many_are_taken_to_be_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cdc_outbox.repair.judgement.DOUBTFUL", 2)
    with closing(Books(100, None)) as books:
        for id_ in (A, B, C):
            enter_row(books, id_, 0, CREATED_US)
        with closing(Judge(books, Rules(unacknowledged="doubtful"), limit=10)) as judge:
            list(judge.events({}))
            found = judge.findings
            assert (len(judge.doubtful), found.under_way.count, found.assumed) == (2, 1, 1)
            judge.arrived(next(iter(judge.doubtful)))
            judge.give_up()
            assert (found.under_way.count, found.missing.count) == (2, 1)
            assert found.oldest_under_way == CREATED_US


def test_rows_that_share_an_id_wait_for_a_word_together() -> None:
    with closing(Books(100, None)) as books:
        for key in "xy":
            enter_row(books, A, 0, CREATED_US, key)
        with closing(Judge(books, Rules(unacknowledged="doubtful"), limit=10)) as judge:
            list(judge.events({}))
            (event,) = judge.doubtful
            judge.arrived(event)
            judge.give_up()
            assert (judge.findings.under_way.count, judge.findings.missing.count) == (2, 0)
