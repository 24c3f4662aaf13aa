"""Any frames at all: the intake takes them, or ends the session by an error of ours. It never guesses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cdc_outbox import intake
from cdc_outbox.errors import CdcOutboxError, MappingError, PoisonEvent, ProtocolViolation
from tests.unit.scripted import begin, commit, frame, insert, keepalive
from tests.unit.taken import Taken, relation, row


@pytest.fixture(autouse=True, scope="module")
def _patient() -> Iterator[None]:
    """A slow machine must not end a slice in the middle of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intake, "SLICE", 60.0)
        yield


GOOD = [
    keepalive(0x80),
    begin(0x100),
    relation(),
    row("a"),
    row("b"),
    keepalive(0x90),
    commit(0x100),
    keepalive(0x180, reply=True),
    begin(0x200),
    insert([b"c", b"order", None, b"placed", b"1", b"{}", b'{"x": 1}', None]),
    row("d", oid=17_000),
    frame(b"A\0\0\0\1\0\0\0\2"),
    commit(0x200),
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A good frame in which some bytes are others, or are missing, or are too many."""
    data = bytearray(draw(st.sampled_from(GOOD)))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    cut = draw(st.integers(0, len(data)))
    return draw(st.sampled_from([bytes(data), bytes(data[:cut]), bytes(data) + bytes(data[:cut])]))


frames = st.lists(
    st.one_of(st.sampled_from(GOOD), damaged(), st.binary(min_size=1, max_size=60)), max_size=20
)


@settings(max_examples=500, deadline=None)
@given(frames)
def test_any_frames_end_well_or_by_an_error_of_ours(sent: list[bytes]) -> None:
    async def take() -> None:
        taken = Taken()
        ended: CdcOutboxError | None = None
        for each in sent:
            try:
                taken.drain(each)
            except (ProtocolViolation, PoisonEvent, MappingError) as error:
                ended = error
                break
            assert taken.ledger.confirmable <= taken.ledger.complete
        assert ended is None or (str(ended) and ended.next)
        published = taken.messages()
        assert len(published) <= len(sent)
        assert taken.publisher.inflight_events == 0

    asyncio.run(take())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 4), max_size=40), st.lists(st.integers(1, 5), max_size=20))
def test_however_a_stream_is_cut_into_portions_it_is_the_same(portions: list[int], rows: list[int]) -> None:
    stream = [relation()]
    expected = []
    for number, count in enumerate(rows):
        lsn = 0x1000 + 0x100 * number
        stream += [begin(lsn), *(row(f"{number}-{seq}") for seq in range(count)), commit(lsn)]
        expected += [(f"{lsn:016x}", seq) for seq in range(count)]

    async def take() -> None:
        taken = Taken()
        left = list(stream)
        for size in portions:
            taken.drain(*left[:size], rows=size)
            del left[:size]
        while taken.drain(*left, rows=3):
            left = []
        assert taken.places() == expected
        assert taken.intake.received == sum(rows)

    asyncio.run(take())
