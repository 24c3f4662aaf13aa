"""When a round of settlement begins, and when one writes though nothing more comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cdc_outbox.acknowledge import Ledger
from cdc_outbox.lsn import LSN
from cdc_outbox.settlement import PUT_OFF, QUERIES, Settlement

INTERVAL = 0.05


def test_what_others_ask_puts_the_next_round_off_by_half_an_interval_at_most() -> None:
    async def scene() -> list[float]:
        now = asyncio.get_running_loop().time
        control = SimpleNamespace(lost=asyncio.get_running_loop().create_future(), asked=0)
        admission: Any = SimpleNamespace(control=control, guarded=lambda _: None, witness=None, position=None)
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


def test_rows_that_were_marked_are_proven_anew_on_an_idle_server() -> None:
    """A mark gives a row the number of its own transaction, which no proof from before it covers."""
    next_transaction, end = 100, 1000
    advance = mock.AsyncMock()
    proven: list[str | None] = []
    advance.side_effect = lambda position, snapshot: proven.append(snapshot)
    admission: Any = SimpleNamespace(
        guarded=lambda _: None, witness=None, position=LSN(end), advance=advance, note=mock.AsyncMock()
    )
    marks: Any = SimpleNamespace(marked=0, confirmed=mock.Mock(), proven=mock.Mock())
    ledger: Any = SimpleNamespace(confirmable=LSN(end))
    stream: Any = mock.Mock()
    intake: Any = SimpleNamespace(latest=LSN(0))
    settlement = Settlement(admission, stream, ledger, intake, interval=INTERVAL, marks=marks)

    async def look() -> Any:
        snapshot = f"{next_transaction}:{next_transaction}:"
        return SimpleNamespace(snapshot=snapshot, publication=SimpleNamespace(insert_lsn=LSN(end)))

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
