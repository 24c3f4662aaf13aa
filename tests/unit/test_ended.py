"""Several tasks end together, whoever is impatient meanwhile."""

from __future__ import annotations

import asyncio

from cdc_outbox.ended import ended


def test_a_second_cancellation_leaves_none_running() -> None:
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # an end that takes a moment, in which the second cancellation comes

    async def scene() -> list[bool]:
        tasks = [asyncio.create_task(slow()), asyncio.create_task(asyncio.sleep(60))]
        await asyncio.sleep(0)
        ending = asyncio.create_task(ended(*tasks))
        await asyncio.sleep(0)
        ending.cancel()
        await asyncio.wait(tasks)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(scene()) == [True, True]


def test_what_a_task_raised_is_seen_and_nothing_to_end_is_no_error() -> None:
    async def fails() -> None:
        raise ValueError("seen")

    async def scene() -> None:
        task = asyncio.create_task(fails())
        await asyncio.wait({task})
        await ended(task)
        await ended()

    asyncio.run(scene())
