"""The event's id from what Kafka's clients hand out, and answers that can't be mistaken."""

from __future__ import annotations

import asyncio

import pytest

from cdc_outbox.errors import CallRefused
from cdc_outbox.inbox import event_id, statement
from cdc_outbox.inbox.answer import Answer
from cdc_outbox.inbox.header import Headers


@pytest.mark.parametrize(
    "headers",
    [
        [("type", b"Placed"), ("id", b"17")],  # confluent-kafka
        (("id", b"17"), ("id", b"18")),  # aiokafka
        [("id", "17")],
        {"id": b"17"},
    ],
)
def test_the_id_of_a_message(headers: Headers) -> None:
    assert event_id(headers) == "17"


def test_the_id_under_another_name() -> None:
    assert event_id([("id", b"1"), ("ce_id", b"2")], "ce_id") == "2"


@pytest.mark.parametrize("headers", [None, [], [("id", None)], [("ID", b"1")]])
def test_a_message_without_an_id(headers: Headers | None) -> None:
    with pytest.raises(CallRefused, match="the message has no header 'id'") as caught:
        event_id(headers)
    assert "event_id(headers, NAME)" in caught.value.__notes__[0]


def test_an_id_that_is_no_text() -> None:
    with pytest.raises(CallRefused, match="no text in UTF-8"):
        event_id([("id", b"\xff")])


@pytest.mark.parametrize(
    ("consumer", "id_"), [("", "1"), ("billing", None), ("billing", ""), ("billing", b"1")]
)
def test_what_says_nothing_is_refused(consumer: str, id_: object) -> None:
    with pytest.raises(CallRefused):
        statement.values(consumer, id_)


def test_an_answer_that_was_not_awaited_is_no_yes() -> None:
    async def work() -> bool:
        return False

    assert asyncio.run(_awaited(Answer(work()))) is False
    with pytest.raises(TypeError, match="if await first_time"):
        bool(Answer(work()))


async def _awaited(answer: Answer) -> bool:
    return await answer
