"""When a round of settlement begins, and when one writes though nothing more comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.errors import PostgresUnavailable
from cdc_outbox.event import TableName
from cdc_outbox.lsn import LSN
from cdc_outbox.postgres.witness import Witness
from cdc_outbox.settlement import PUT_OFF, QUERIES, Settlement

INTERVAL = 0.05


def test_what_others_ask_puts_the_next_round_off_by_half_an_interval_at_most() -> None:
    async def scene() -> list[float]:
        now = asyncio.get_running_loop().time
        control = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), asked=0)
        admission: Any = SimpleNamespace(control=control, guarded=lambda _: None, row=None, position=None)
        unused: Any = None
        settlement = Settlement(admission, unused, Ledger(), unused, interval=INTERVAL)
        began: list[float] = []

        async def round_of_ours() -> None:
            began.append(now())
            control.asked += QUERIES
            if len(began) == 2:
                asyncio.get_running_loop().call_later(INTERVAL / 2, others)
            if len(began) == 4:
                control.lost.set_result(None)
                running.cancel()

        def others() -> None:
            control.asked += 2000 * QUERIES

        with mock.patch.object(settlement, "_settle_with_control", round_of_ours):
            running = asyncio.create_task(settlement.run(asyncio.Event()))
            await asyncio.wait({running}, timeout=10)
            running.cancel()
        return began

    first, second, third, fourth = asyncio.run(scene())
    assert second - first >= 0.9 * INTERVAL
    assert third - second >= (1 + PUT_OFF - 0.1) * INTERVAL
    assert fourth - third >= 0.9 * INTERVAL


def test_a_slot_that_another_session_moved_is_looked_at_again_before_anything_is_confirmed() -> None:
    """Between the checks of a start and its stream: the server skips what lies before, and nobody else would tell."""
    passed = SimpleNamespace(incident=None, problem=None)
    admission: Any = SimpleNamespace(
        guarded=lambda _: SimpleNamespace(slot="outbox_slot"),
        row=None,
        position=LSN(0x100),
        advance=mock.AsyncMock(),
        note=mock.AsyncMock(),
        seen=mock.Mock(),
        watch=mock.Mock(look=mock.Mock(return_value=passed)),
    )
    ledger: Any = SimpleNamespace(confirmable=LSN(0x90000))
    any_: Any = mock.Mock(latest=LSN(0))

    async def test() -> None:
        settlement = Settlement(admission, any_, ledger, any_, interval=INTERVAL)
        for stands in (0x101, 0x100, 0x90000, 0x90001):
            publication = SimpleNamespace(insert_lsn=LSN(0x90000))
            report = SimpleNamespace(
                failure=None, snapshot="9:9:", publication=publication, lsn=LSN(1), confirmed=LSN(stands)
            )
            with mock.patch.object(settlement, "_look", mock.AsyncMock(return_value=report)):
                if stands in (0x101, 0x90001):
                    with pytest.raises(PostgresUnavailable, match="another session moved it"):
                        await settlement._settle(everything=False)
                else:
                    await settlement._settle(everything=False)

    asyncio.run(test())
    assert [call.args[0] for call in admission.advance.await_args_list] == [0x90000]


def test_whose_a_table_is_is_asked_again_on_another_connection() -> None:
    """The question was cut, by a stop, and the connection with it."""
    whose = {7: TableName("public", "outbox")}
    gone = PostgresUnavailable("who asked was cancelled", next="ask again")

    async def test() -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.set_result(gone)
        admission: Any = SimpleNamespace(
            control=SimpleNamespace(lost=lost),
            guarded=lambda _: SimpleNamespace(slot="outbox_slot"),
            row=None,
            position=None,
            runs=mock.AsyncMock(side_effect=[True, False]),
            ours=mock.AsyncMock(side_effect=[gone, whose]),
            reconnect=mock.AsyncMock(),
        )
        any_: Any = mock.Mock()
        assert await Settlement(admission, any_, Ledger(), any_, interval=INTERVAL).ours(7) == whose
        admission.reconnect.assert_awaited_once()

    asyncio.run(test())


def test_rows_that_were_marked_are_proven_anew_on_an_idle_server() -> None:
    """A mark gives a row the number of its own transaction, which no proof from before it covers."""
    next_transaction, end = 100, 1000
    advance = mock.AsyncMock()
    proven: list[str | None] = []
    advance.side_effect = lambda position, snapshot: proven.append(snapshot)
    admission: Any = SimpleNamespace(
        guarded=lambda _: None,
        row=None,
        position=LSN(end),
        advance=advance,
        note=mock.AsyncMock(),
        seen=mock.Mock(),
    )
    marks: Any = SimpleNamespace(done=True, marked=0, confirmed=mock.Mock(), proven=mock.Mock())
    ledger: Any = SimpleNamespace(confirmable=LSN(end))
    stream: Any = mock.Mock()
    intake: Any = SimpleNamespace(latest=LSN(0))
    settlement = Settlement(admission, stream, ledger, intake, interval=INTERVAL, marks=marks)

    async def look() -> Any:
        snapshot = f"{next_transaction}:{next_transaction}:"
        publication = SimpleNamespace(insert_lsn=LSN(end))
        return SimpleNamespace(snapshot=snapshot, publication=publication, confirmed=LSN(0))

    async def rounds() -> None:
        nonlocal end
        for _ in range(4):
            end += 100
            ledger.confirmable = LSN(end)
            await settlement._settle(everything=False)

    with (
        mock.patch.object(settlement, "_look", look),
        mock.patch.object(settlement, "_heed", mock.AsyncMock()),
    ):
        asyncio.run(rounds())
        assert proven[-1] == "100:100:"
        written = len(proven)
        asyncio.run(rounds())
        assert len(proven) == written, "there is nothing more to prove"
        next_transaction += 1
        marks.marked += 1
        asyncio.run(rounds())
    assert proven[written:] == ["101:101:"]


class Idle:
    """A server on which only the witness row is written; the stream follows it `late` rounds later.

    `proven`: what each row that was written says, and whether the relay was caught up by then.
    """

    def __init__(self, *, begins: int, end: int, late: int) -> None:
        self.end = end
        self.late = late
        self.looks = 0
        self.caught_up = asyncio.Event()
        self.proven: list[tuple[int, str | None, bool]] = []
        self.ledger = SimpleNamespace(confirmable=LSN(end))
        lost = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), asked=0)
        row = Witness("outbox_slot", "1", 1, LSN(begins), snapshot="90:90:")
        self.admission: Any = SimpleNamespace(
            control=lost,
            guarded=lambda _: None,
            row=row,
            position=LSN(begins),
            advance=self._advance,
            seen=mock.Mock(),
        )

    async def _advance(self, position: LSN, snapshot: str | None) -> None:
        self.proven.append((int(position), snapshot, self.caught_up.is_set()))
        self.end += 100

    async def look(self) -> Any:
        self.looks += 1
        at = 100 + self.looks
        report = SimpleNamespace(
            snapshot=f"{at}:{at}:",
            publication=SimpleNamespace(insert_lsn=LSN(self.end)),
            confirmed=LSN(0),
        )
        if self.looks > self.late:
            self.ledger.confirmable = LSN(self.end)
        return report

    async def until_caught_up(self, target: int, *, proves: bool = True, marks: Any = None) -> None:
        any_: Any = mock.Mock(latest=LSN(target))
        ledger: Any = self.ledger
        settlement = Settlement(
            self.admission,
            any_,
            ledger,
            any_,
            interval=INTERVAL,
            target=LSN(target),
            proves=proves,
            marks=marks,
        )
        with (
            mock.patch.object(settlement, "_look", self.look),
            mock.patch.object(settlement, "_heed", mock.AsyncMock()),
        ):
            running = asyncio.create_task(settlement.run(self.caught_up))
            await asyncio.wait_for(self.caught_up.wait(), 10)
            await settlement.finish(within=1)
            running.cancel()
            await asyncio.wait({running})
            await settlement.close()


@pytest.mark.parametrize("late", [1, 3])
@pytest.mark.parametrize("begins", [900, 1000], ids=["rows came", "nothing came"])
def test_who_is_caught_up_has_written_the_proof_of_the_last_rows(begins: int, late: int) -> None:
    """The relay ends then: a proof that would be written a round later is never written."""

    async def scene() -> Idle:
        idle = Idle(begins=begins, end=1000, late=late)
        await idle.until_caught_up(1000)
        return idle

    idle = asyncio.run(scene())
    before = [snapshot for _, snapshot, was_caught_up in idle.proven if not was_caught_up]
    assert before[-1] == "101:101:", "of this session, and taken after the target was known"
    assert [position for position, _, _ in idle.proven] == sorted(position for position, _, _ in idle.proven)


def test_what_is_marked_meanwhile_wants_a_proof_from_after_it() -> None:
    async def scene() -> Idle:
        idle = Idle(begins=900, end=1000, late=1)
        marks: Any = mock.Mock(marked=0)
        type(marks).done = mock.PropertyMock(side_effect=lambda: idle.looks > 2)
        await idle.until_caught_up(1000, marks=marks)
        return idle

    before = [snapshot for _, snapshot, caught_up in asyncio.run(scene()).proven if not caught_up]
    assert before[-1] is not None
    assert int(before[-1].split(":")[0]) > 102


def test_a_stop_waits_for_no_proof() -> None:
    async def scene() -> Idle:
        idle = Idle(begins=900, end=1000, late=5)
        await idle.until_caught_up(1000, proves=False)
        return idle

    assert asyncio.run(scene()).looks <= 2
