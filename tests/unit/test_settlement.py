"""When a round of settlement begins."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest import mock

from cdc_outbox.acknowledge import Ledger
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
