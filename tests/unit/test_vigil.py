"""Watching from outside, beside a relay that has watched the slot for longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc_outbox.postgres import remedy
from cdc_outbox.postgres.remedy import by_owner
from cdc_outbox.settings import load
from cdc_outbox.watch.forecast import Outlook
from cdc_outbox.watch.health import Level
from cdc_outbox.watch.rates import Rates
from cdc_outbox.watch.reads import Known, Reads
from cdc_outbox.watch.vigil import Vigil
from tests.unit.sampled import FORECAST, SAMPLE

SETTINGS = load("health", {}, {}, Path("/nonexistent"))


class Beside(Vigil):
    """One that has taken its two samples, and whose relay says `told`."""

    def __init__(self, told: dict[str, Any] | None, repeat: Callable[[str], str] = str) -> None:
        super().__init__(SETTINGS, ["outbox_slot"], repeat=repeat)
        self._told = told
        self._reads = {"outbox_slot": Reads("outbox_pub", SAMPLE.tables, Known.NAMED)}
        self._last = {"outbox_slot": SAMPLE}
        calm = replace(FORECAST, loss=Outlook.NEVER, rates=Rates(0.0, 0.0, 0.0, 0.0))
        self._forecasts = {"outbox_slot": calm}

    async def _take(self) -> None:
        pass

    async def _by_whom(self, step: str, read: Reads) -> str:
        return by_owner(step)

    async def _ask(self) -> dict[str, Any] | None:
        return self._told


@pytest.mark.parametrize(("slot", "status"), [("outbox_slot", Level.CRITICAL), ("another", Level.OK)])
def test_a_loss_that_its_relay_foresees_is_no_ok(slot: str, status: Level) -> None:
    forecast = {"loss": "in", "seconds_to_loss": 51.0, "basis": "max_slot_wal_keep_size"}
    health = {"forecast": forecast, "rate": {"wal_bytes_per_second": 1048576.0}}
    (seen,) = asyncio.run(Beside({"slot": slot, "state": "streaming", "health": health}).again())
    assert seen.status is status
    assert ("lost in about 51s at 1.0 MiB/s" in seen.summary) == (status is Level.CRITICAL)


@pytest.mark.parametrize(("system", "status"), [("7", Level.WARNING), (None, Level.WARNING), ("8", Level.OK)])
def test_a_relay_of_another_server_says_nothing_of_a_slot_of_the_same_name(
    system: str | None, status: Level
) -> None:
    told = {"slot": "outbox_slot", "state": "held", "reason": "no broker answers"}
    (seen,) = asyncio.run(Beside(told | ({"system_identifier": system} if system else {})).again())
    assert seen.status is status
    assert (seen.delivery.state is None) == (status is Level.OK)


def test_a_step_names_the_owner_and_has_the_flags_that_were_given() -> None:
    missing = replace(SAMPLE, slot=None, pending=None)

    def repeat(text: str) -> str:
        given = [("--config", "shop.toml")]
        return remedy.repeat(text, "health", given, lambda _name: {"--config"})

    beside = Beside(None, repeat)
    beside._last = {"outbox_slot": missing}
    (seen,) = asyncio.run(beside.again())
    assert seen.next is not None
    assert seen.next.count("cdc-outbox ") == seen.next.count("--config shop.toml") > 0
    assert "OWNER_DSN" in seen.next
