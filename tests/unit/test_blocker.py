"""Who holds something up is told when it is somebody else, and known at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from cdc_outbox.postgres import blocker
from cdc_outbox.postgres.blocker import Blocker, held_up, in_words


def prepared(gid: str) -> Blocker:
    return Blocker(None, "app", None, "shop", 3.0, None, gid)


def session(pid: int, query: str) -> Blocker:
    return Blocker(pid, "app", "worker", "shop", 3.0, query, None)


def play(*looks: Sequence[Blocker], monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], str]:
    """What was told, and who was seen last, when each look finds the next of these, and the work ends after them."""
    told: list[str] = []
    monkeypatch.setattr(blocker, "LOOK", 0.001)

    async def scene() -> tuple[Blocker, ...]:
        work = asyncio.get_running_loop().create_future()
        coming = [*looks]

        async def look() -> tuple[Blocker, ...]:
            found = coming.pop(0)
            if not coming:
                work.set_result(None)
            return tuple(found)

        return await held_up(work, look, lambda now: told.append(in_words(now)))

    return told, in_words(asyncio.run(scene()))


def test_each_of_two_prepared_transactions_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told, last = play([prepared("a")], [prepared("b")], [], monkeypatch=monkeypatch)
    assert [each.partition(" (")[0] for each in told] == [
        "prepared transaction 'a'",
        "prepared transaction 'b'",
    ]
    assert last == told[1]


def test_a_session_is_told_once_whatever_it_does_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    told, _ = play([session(7, "select 1")], [session(7, "commit")], monkeypatch=monkeypatch)
    assert len(told) == 1


def test_who_may_not_be_seen_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play([], [], monkeypatch=monkeypatch) == ([], "of sessions that this role can't see")
