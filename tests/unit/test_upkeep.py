"""The relay's own cleanup tells what is wrong once, and what is wrong then."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.errors import CdcOutboxError, SetupError
from cdc_outbox.repair import upkeep as module
from cdc_outbox.settings import load
from cdc_outbox.state import State, Status

TROUBLES = ("7 rows are locked", "8 rows are locked", "a foreign key is in the way", "9 rows are locked")


def test_another_trouble_of_the_same_class_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles: list[CdcOutboxError] = [SetupError(words, next="mend it") for words in TROUBLES]
    told: list[str] = []

    async def clean(*_: object) -> list[Any]:
        if not troubles:
            raise asyncio.CancelledError
        raise troubles.pop(0)

    class Log:
        def warning(self, _event: str, *, error: str, **_fields: object) -> None:
            told.append(error)

    monkeypatch.setattr(module, "clean", clean)
    monkeypatch.setattr(module, "_log", Log())
    monkeypatch.setattr(module, "SHORTEST", 0.0)
    settings = load("start", {"slot": "s"}, {}, Path("/nonexistent"))
    status = Status(slot="s")
    status.state = State.STREAMING
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(module.upkeep(settings, 0.0, status))
    assert told == [TROUBLES[0], TROUBLES[2], TROUBLES[3]]
