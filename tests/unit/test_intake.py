"""From frames to messages: places, relations, limits, and what a wrong stream is answered with."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from cdc_outbox import intake
from cdc_outbox.errors import (
    MappingError,
    PoisonEvent,
    PostgresUnavailable,
    ProtocolViolation,
)
from cdc_outbox.event import TableName
from cdc_outbox.intake import TableUnknown
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.pgoutput import (
    Column,
    Delete,
    Insert,
    Message,
    Origin,
    Relation,
    Truncate,
    Type,
    Update,
)
from cdc_outbox.publisher import TopicUnknown
from tests.unit.mapped import DEFAULT, TEXT
from tests.unit.scripted import COMMIT_US, OID, begin, commit, frame, insert, keepalive
from tests.unit.taken import Taken, relation, row

pytestmark = pytest.mark.usefixtures("loop")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine must not end a slice in the middle of a test."""
    monkeypatch.setattr(intake, "SLICE", 60.0)


def test_rows_come_out_in_order_with_their_places_and_commit_time() -> None:
    taken = Taken()
    more = taken.drain(
        begin(0x100), relation(), row("a"), row("b"), commit(0x100), begin(0x200), row("c"), commit(0x200)
    )
    assert not more
    assert taken.places() == [("0000000000000100", 0), ("0000000000000100", 1), ("0000000000000200", 0)]
    assert {message[4] for message in taken.publisher.messages} == {COMMIT_US // 1000}
    assert taken.intake.received == 3
    assert taken.ledger.confirmable == 0x208


def test_one_portion_after_another_is_one_stream() -> None:
    taken = Taken()
    frames = [begin(0x100), relation(), row("a"), row("b"), commit(0x100)]
    for each in frames:
        assert not taken.drain(each)
    assert taken.places() == [("0000000000000100", 0), ("0000000000000100", 1)]


def test_all_portions_that_are_there_are_taken_at_once() -> None:
    taken = Taken()
    for each in [begin(0x100), relation(), row("a"), commit(0x100)]:
        taken.stream.say(each)
    taken.drain()
    assert taken.keys() == [b"a"]


def test_nothing_is_confirmable_before_the_commit_and_the_bus() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), row("a"))
    assert taken.ledger.in_transaction
    taken.publisher.confirm()
    assert taken.ledger.confirmable == 0
    taken.drain(row("b"), commit(0x100))
    assert taken.ledger.confirmable == 0
    taken.publisher.confirm()
    assert taken.ledger.confirmable == 0x108


def test_rows_of_other_tables_keep_their_places_and_send_nothing() -> None:
    taken = Taken()
    foreign = relation("audit", 17_000, {"what": TEXT})
    taken.drain(
        begin(0x100), foreign, relation(), insert([b"x"], 17_000), row("a"), insert([b"y"], 17_000), row("b"),
        commit(0x100),
    )  # fmt: skip
    assert taken.places() == [("0000000000000100", 1), ("0000000000000100", 3)]
    assert taken.intake.skipped == {"foreign": 2}
    assert taken.intake.received == 2


def test_a_leaf_described_beside_its_root_changes_nothing() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation("outbox_2024", 16_999), relation(), row("a"), commit(0x100))
    assert taken.keys() == [b"a"]
    assert list(taken.intake.plans) == [TableName("public", "outbox")]


def test_whose_a_table_is_that_nobody_knows_is_asked_before_its_first_row() -> None:
    """A partition that was made meanwhile, whose rows come under its own name, or a table of somebody else."""
    outbox = TableName("public", "outbox")
    taken = Taken(ours={OID: outbox})
    with pytest.raises(TableUnknown) as raised:
        taken.drain(
            begin(0x100), relation(), row("a"), relation("outbox_new", 17_000), row("b", 17_000),
            relation("audit", 17_001), row("c", 17_001), row("d"), commit(0x100),
        )  # fmt: skip
    assert raised.value.relation.oid == 17_000
    assert taken.keys() == [b"a"]
    with pytest.raises(TableUnknown):  # whoever drains before there is an answer passes over nothing
        taken.drain(to_commit=True)
    taken.intake.recognise(raised.value.relation, {OID: outbox, 17_000: outbox})
    with pytest.raises(TableUnknown) as raised:
        taken.drain()
    assert raised.value.relation.oid == 17_001
    taken.intake.recognise(raised.value.relation, {OID: outbox, 17_000: outbox})
    taken.drain()
    assert taken.places() == [("0000000000000100", place) for place in (0, 1, 3)]
    assert taken.keys() == [b"a", b"b", b"d"]
    assert taken.intake.skipped == {"foreign": 1}


def test_a_table_of_the_same_name_in_another_schema_is_foreign() -> None:
    taken = Taken()
    other = Relation(17_000, "archive", "outbox", "d", (Column("id", TEXT, -1, False),))
    taken.drain(begin(0x100), frame(other), insert([b"1"], 17_000), commit(0x100))
    assert taken.messages() == []
    assert taken.ledger.confirmable == 0x108


def test_a_new_relation_message_changes_how_rows_are_read() -> None:
    taken = Taken()
    moved = {"note": TEXT, **DEFAULT}
    taken.drain(
        begin(0x100), relation(), row("a"), relation(columns=moved),
        insert([b"!", b"b", b"order", b"b", b"placed", b"1", b"{}", None, None]), commit(0x100),
    )  # fmt: skip
    assert taken.keys() == [b"a", b"b"]


def test_several_tables_share_the_places_of_a_transaction() -> None:
    tables = (TableName("public", "outbox"), TableName("public", "more"))
    taken = Taken(tables=tables)
    taken.drain(
        begin(0x100),
        relation(),
        relation("more", 17_000),
        row("a"),
        row("b", 17_000),
        row("c"),
        commit(0x100),
    )
    assert taken.keys() == [b"a", b"b", b"c"]
    assert [seq for _, seq in taken.places()] == [0, 1, 2]
    assert set(taken.intake.plans) == set(tables)


def test_rows_that_are_left_out_are_counted_and_keep_their_places() -> None:
    taken = Taken(only={"event_type": ("wanted",)})
    wanted = insert([b"2", b"order", b"b", b"wanted", b"1", b"{}", None, None])
    taken.drain(begin(0x100), relation(), row("a"), wanted, commit(0x100))
    assert taken.places() == [("0000000000000100", 1)]
    assert taken.intake.skipped == {"only": 1}
    assert taken.intake.last == taken.messages()[-1]


def test_a_table_that_is_described_again_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "cdc_outbox")
    taken = Taken()
    columns = DEFAULT | {"bus": TEXT}
    values = [b"1", b"order", b"k", b"placed", b"1", b"{}", None, None]
    for lsn in (0x100, 0x200, 0x300):
        bus = b"rabbit" if lsn < 0x300 else b"nats"
        taken.drain(begin(lsn), relation(columns=columns), insert([*values, bus]), commit(lsn))
        taken.intake.notice()
    assert taken.intake.skipped == {"bus": 3}
    assert [vars(record)["fields"]["bus"] for record in caplog.records] == ["rabbit", "nats"]


def test_an_unknown_topic_neither_loses_nor_doubles_the_row() -> None:
    taken = Taken(topics={"outbox.event.order"})
    with pytest.raises(TopicUnknown) as unknown:
        taken.drain(begin(0x100), relation(), row("a"), row("b", type_=b"late"), row("c"), commit(0x100))
    assert unknown.value.topic == "outbox.event.late"
    assert taken.intake.place == (0x100, 1)
    with pytest.raises(TopicUnknown):
        taken.drain()
    assert taken.keys() == [b"a"]
    assert taken.publisher.topics is not None
    taken.publisher.topics.add("outbox.event.late")
    taken.drain()
    assert taken.keys() == [b"a", b"b", b"c"]
    assert [seq for _, seq in taken.places()] == [0, 1, 2]
    assert taken.intake.received == 3


def test_a_row_whose_topic_was_prepared_counts_against_the_limit() -> None:
    """A suspect is tried alone, and is the first row of its topic in a session that begins with it."""
    taken = Taken(topics=set())
    with pytest.raises(TopicUnknown):
        taken.drain(begin(0x100), relation(), row("a"), row("b"), commit(0x100), rows=1)
    assert taken.publisher.topics is not None
    taken.publisher.topics.add("outbox.event.order")
    assert taken.drain(rows=1)
    assert taken.keys() == [b"a"]
    assert taken.intake.place == (0x100, 1)
    assert taken.intake.last is not None
    assert taken.intake.last[2] == b"a"
    assert taken.drain(rows=1)
    assert taken.keys() == [b"a", b"b"]


def test_a_row_that_waits_for_its_topic_can_become_poison() -> None:
    taken = Taken(topics=set())
    with pytest.raises(TopicUnknown):
        taken.drain(begin(0x100), relation(), row("a"), commit(0x100))
    poison = taken.intake.poison(PostgresUnavailable("no such topic", next="make it"), reason="unknown_topic")
    assert (poison.lsn, poison.seq, poison.event_id) == (0x100, 0, "a")
    assert (poison.reason, poison.next) == ("unknown_topic", "make it")


def test_a_limit_of_rows_stops_exactly_there() -> None:
    taken = Taken()
    assert taken.drain(begin(0x100), relation(), row("a"), row("b"), row("c"), commit(0x100), rows=2)
    assert taken.keys() == [b"a", b"b"]
    assert taken.intake.place == (0x100, 2)
    assert not taken.drain(rows=2)
    assert taken.keys() == [b"a", b"b", b"c"]


def test_to_commit_ends_with_the_transaction_and_begins_none() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), row("a"))
    assert not taken.drain(row("b"), commit(0x100), begin(0x200), row("c"), commit(0x200), to_commit=True)
    assert not taken.ledger.in_transaction
    assert not taken.drain(to_commit=True)
    assert taken.keys() == [b"a", b"b"]


def test_keepalives_move_the_position_only_between_transactions() -> None:
    taken = Taken()
    taken.drain(keepalive(0x50))
    assert taken.ledger.confirmable == 0x50
    taken.drain(begin(0x100), relation(), keepalive(0x900), row("a"))
    taken.publisher.confirm()
    assert taken.ledger.confirmable == 0x50
    taken.drain(commit(0x100), keepalive(0x900))
    assert taken.ledger.confirmable == 0x900
    assert taken.stream.heard_up_to == [0x50, 0x900, 0x900]


def test_bytes_that_the_client_can_make_nothing_of_end_the_session_and_nothing_more() -> None:
    taken = Taken()
    taken.stream.torn = taken.stream.broken("lost synchronization with server")
    taken.stream.say(begin(0x100), relation(), row("a"), commit(0x100))
    with pytest.raises(PostgresUnavailable, match="lost synchronization"):
        taken.drain()
    assert [message[2] for message in taken.messages()] == [b"a"]


def test_a_storm_of_questions_is_the_sign_of_a_shutdown() -> None:
    taken = Taken()
    taken.drain(keepalive(0x50, reply=True))
    assert taken.stream.reply_due
    seen = taken.intake.shutdown_signs
    taken.stream.storm = True
    taken.drain(keepalive(0x60))
    assert not taken.intake.shutdown_signs
    taken.drain(keepalive(0x70, reply=True))
    assert (seen, taken.intake.shutdown_signs) == (False, True)


def test_empty_transactions_are_confirmable() -> None:
    taken = Taken()
    taken.drain(begin(0x100), commit(0x100))
    assert taken.ledger.confirmable == 0x108


def test_a_backlog_is_told_by_the_servers_own_clock() -> None:
    taken = Taken()
    seen = []
    for at, late_us in ((0x100, 5_000_000), (0x200, 1000), (0x300, 5_000_000)):
        taken.drain(begin(at, sent_us=COMMIT_US + late_us))
        seen.append(taken.intake.late)
        taken.drain(commit(at))
    assert seen == [5.0, 0.0, 5.0]
    taken.drain(keepalive(0x400))
    assert taken.intake.late == 0.0


def test_a_long_transaction_becomes_a_backlog_while_it_comes() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation())
    before = taken.intake.late
    taken.drain(
        frame(Insert(OID, [b"1", b"order", b"a", b"t", b"1", b"{}", None, None]), sent_us=COMMIT_US + 60_000)
    )
    assert (before, taken.intake.late) == (0.0, 0.06)


@pytest.mark.parametrize(
    "message",
    [
        Type(16_500, "public", "mood"),
        Origin(LSN(5), "elsewhere"),
        Message(True, LSN(5), "prefix", b"content"),
        Update(OID, None, False, [b"1"] * 8),
        Delete(OID, [b"1"] * 8, True),
        Truncate(0, (OID,)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_that_mean_nothing_to_an_outbox_are_passed_over(message: Any) -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), frame(message), row("a"), commit(0x100))
    assert taken.places() == [("0000000000000100", 0)]
    assert taken.intake.skipped == {}


def test_a_message_that_is_not_known_is_counted() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), frame(b"A\0\0\0\1\0\0\0\2"), row("a"), commit(0x100))
    assert taken.keys() == [b"a"]
    assert taken.intake.skipped == {"unknown_message": 1}


def test_rows_that_come_before_it_is_decided_whether_they_are_committed_are_refused() -> None:
    taken = Taken()
    taken.drain(begin(0x100), relation(), row("a"), commit(0x100))
    with pytest.raises(ProtocolViolation, match="two_phase"):
        taken.drain(frame(b"b" + bytes(29) + b"gid\0"), row("b"))
    assert taken.keys() == [b"a"]


@pytest.mark.parametrize(
    "frames",
    [
        [frame(b"")],
        [b"w"],
        [b"x" + bytes(30)],
        [b"k" + bytes(3)],
        [begin(0x100)[:-1]],
        [begin(0x100), relation(), row("a")[:-1]],
        [begin(0x100), relation(), row("a") + b"!"],
        [begin(0x100), row("a")],
        [begin(0x100), relation(), insert([b"1"], 99)],
        [begin(0x100), frame(b"R\0")],
        [begin(0x100), begin(0x200)],
        [commit(0x100)],
        [begin(0x100), commit(0x50, end=0x58)],
        [begin(0x100), commit(0x100), begin(0x90)],
    ],
)
def test_a_wrong_stream_ends_the_session_and_confirms_nothing_of_it(frames: list[bytes]) -> None:
    taken = Taken()
    with pytest.raises(ProtocolViolation):
        taken.drain(*frames)
    taken.messages()
    assert taken.ledger.confirmable in (0, 0x108)


def test_a_row_of_another_width_than_its_relation_never_becomes_a_wrong_event() -> None:
    taken = Taken()
    with pytest.raises(ProtocolViolation):
        taken.drain(begin(0x100), relation(), insert([b"1", b"order"]), commit(0x100))
    assert taken.messages() == []


def test_poison_stops_at_its_place_with_everything_before_published() -> None:
    taken = Taken()
    keyless = insert([b"bad", b"order", None, b"placed", b"1", b"{}", None, None])
    with pytest.raises(PoisonEvent) as poison:
        taken.drain(begin(0x100), relation(), row("a"), keyless, row("c"), commit(0x100))
    assert (poison.value.lsn, poison.value.seq, poison.value.event_id) == (0x100, 1, "bad")
    assert taken.intake.place == (0x100, 1)
    assert taken.keys() == [b"a"]
    assert taken.ledger.confirmable == 0


def test_a_table_that_cannot_be_mapped_is_refused_before_its_rows() -> None:
    taken = Taken()
    with pytest.raises(MappingError):
        taken.drain(begin(0x100), relation(columns={"id": TEXT}), insert([b"1"]), commit(0x100))
    assert taken.messages() == []
    assert taken.ledger.confirmable == 0


def test_the_end_of_the_copy_comes_after_everything_before_it() -> None:
    taken = Taken()
    taken.stream.break_with(PostgresUnavailable("gone", next="wait"))
    with pytest.raises(PostgresUnavailable, match="gone"):
        taken.drain(begin(0x100), relation(), row("a"), commit(0x100))
    assert taken.keys() == [b"a"]
    assert taken.ledger.confirmable == 0x108
